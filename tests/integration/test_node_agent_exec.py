"""Exec sessions over real HTTP and the fake runtime."""

import base64
import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from gateway.wire import limits
from gateway.wire.errors import ErrorCode
from gateway.wire.states import DeathReason
from node_agent.errors import RuntimeFailure
from node_agent.exec import sessions
from tests.fakes.node import NodeUnderTest, served
from tests.fakes.node_fixtures import box, fresh, node
from tests.fakes.runtime import FakeProcess
from tests.waiting import wait_until

__all__ = ["box", "fresh", "node"]

Json = dict[str, Any]


def started(answer: requests.Response) -> Json:
    assert answer.status_code == 200, answer.text
    body: Json = answer.json()
    return body


def all_events(node: NodeUnderTest, session: str) -> list[Json]:
    """Return everything until the end, by long-poll."""
    events: list[Json] = []
    while True:
        body: Any = node.events(session, len(events))
        events += body["events"]
        if body["session"]["status"] != "running" and not body["events"]:
            return events


def output(events: list[Json], stream: str = "stdout") -> bytes:
    return b"".join(
        base64.b64decode(e["data_base64"]) if e["data_base64"] else e["data"].encode()
        for e in events
        if e["stream"] == stream
    )


def sequences(events: list[Json]) -> list[int]:
    return [event["sequence"] for event in events]


def test_a_quick_command_is_one_round_trip(node: NodeUnderTest, box: str) -> None:
    body = started(node.exec(box, ["sh", "-c", "echo out; echo err >&2; exit 7"]))
    session, events = body["session"], body["events"]
    assert (session["status"], session["exit_code"], session["signal"]) == ("exited", 7, None)
    assert (output(events), output(events, "stderr")) == (b"out\n", b"err\n")
    assert (events[0]["stream"], events[0]["data"]) == ("status", "started")
    assert (events[-1]["stream"], events[-1]["exit_code"]) == ("exit", 7)
    assert sequences(events) == list(range(1, session["last_sequence"] + 1))
    assert (session["stdout_bytes"], session["stderr_bytes"], session["truncated"]) == (4, 4, False)


def test_without_a_wait_the_answer_comes_at_once(node: NodeUnderTest, box: str) -> None:
    body = started(node.exec(box, ["sleep", "60"], wait=0))
    assert body["session"]["status"] == "running"
    session = body["session"]["id"]
    assert node.call("POST", f"/v1/exec/{session}/signal", json={"signal": 9}).status_code == 200
    events = all_events(node, session)
    assert events[-1]["exit_code"] == 137


def test_a_signal_reaches_the_whole_group(node: NodeUnderTest, box: str) -> None:
    session = started(node.exec(box, ["sh", "-c", "sleep 60 | sleep 60"], wait=0))["session"]["id"]
    body: Any = node.events(session, 0)
    assert body["events"][0]["data"] == "started"
    node.call("POST", f"/v1/exec/{session}/signal", json={"signal": int(signal.SIGTERM)})
    assert all_events(node, session)[-1]["exit_code"] == 143
    final = node.call("GET", f"/v1/exec/{session}").json()["session"]
    assert (final["status"], final["signal"]) == ("exited", 15)


def test_characters_split_across_writes_stay_whole(node: NodeUnderTest, box: str) -> None:
    script = "for i in 1 2 3; do printf '\\342'; sleep 0.05; printf '\\202'; sleep 0.05; printf '\\254'; done"
    events = started(node.exec(box, ["sh", "-c", script]))["events"]
    assert "".join(e["data"] for e in events if e["stream"] == "stdout") == "€€€"
    assert all(e["data_base64"] is None for e in events)


def test_binary_output_is_exact(node: NodeUnderTest, box: str) -> None:
    data = bytes(range(256)) * 50
    node.call("PUT", f"/v1/sandboxes/{box}/files", params={"path": "binary"}, data=data)
    session = started(node.exec(box, ["cat", "binary"]))["session"]["id"]
    assert output(all_events(node, session)) == data


def test_output_of_many_megabytes_is_whole_and_replayable(node: NodeUnderTest, box: str) -> None:
    command = ["sh", "-c", "head -c 30000000 /dev/zero | tr '\\0' 'a'"]
    session = started(node.exec(box, command, wait=0))["session"]["id"]
    events = all_events(node, session)
    assert output(events) == b"a" * 30_000_000
    assert sequences(events) == list(range(1, len(events) + 1))
    assert max(len(e["data"]) for e in events) <= limits.EXEC_CHUNK
    assert all_events(node, session) == events


def test_one_read_is_bounded(node: NodeUnderTest, box: str) -> None:
    session = started(node.exec(box, ["head", "-c", "30000000", "/dev/zero"]))["session"]["id"]
    body: Any = node.events(session, 0)
    assert 0 < sum(len(e["data"]) for e in body["events"]) <= limits.MAX_EVENT_BYTES_PER_READ + limits.EXEC_CHUNK
    few: Any = node.events(session, 2, limit=2)
    assert sequences(few["events"]) == [3, 4]


def test_truncated_output_is_reported_with_true_totals(node: NodeUnderTest, box: str) -> None:
    body = started(node.exec(box, ["head", "-c", "100000", "/dev/zero"], max_output_bytes=1000))
    assert len(output(body["events"])) == 1000
    assert [e["stream"] for e in body["events"]].count("truncated") == 1
    assert (body["session"]["stdout_bytes"], body["session"]["truncated"]) == (100_000, True)
    assert body["session"]["exit_code"] == 0


def test_the_timeout_kills_the_group_and_keeps_the_output(node: NodeUnderTest, box: str) -> None:
    command = ["sh", "-c", "echo before; sleep 60 & sleep 60"]
    body = started(node.exec(box, command, timeout_seconds=0.3))
    session = body["session"]
    assert (session["status"], session["exit_code"], session["timed_out"]) == ("failed", 124, True)
    assert output(body["events"]) == b"before\n"
    assert body["events"][-1]["exit_code"] == 124


def test_a_timeout_before_the_engine_has_started_the_process_still_kills_it(node: NodeUnderTest, box: str) -> None:
    node.runtime.controls.exec_gate = gate = threading.Event()
    try:
        session = started(node.exec(box, ["sleep", "60"], wait=0, timeout_seconds=0.001))["session"]["id"]
        live = node.node.sessions.get(session)
        wait_until(lambda: live.expired)
    finally:
        node.runtime.controls.exec_gate = None
        gate.set()
    events = all_events(node, session)
    assert events[-1]["exit_code"] == 124
    assert not any("given up" in event["data"] for event in events)


def test_a_signal_before_the_engine_has_started_the_process_reaches_it(node: NodeUnderTest, box: str) -> None:
    node.runtime.controls.exec_gate = gate = threading.Event()
    try:
        session = started(node.exec(box, ["sleep", "60"], wait=0))["session"]["id"]
        assert node.call("POST", f"/v1/exec/{session}/signal", json={"signal": 15}).status_code == 200
    finally:
        node.runtime.controls.exec_gate = None
        gate.set()
    assert all_events(node, session)[-1]["exit_code"] == 143


def test_a_signal_that_the_engine_cannot_deliver_is_the_engines_error(
    node: NodeUnderTest, box: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = started(node.exec(box, ["sleep", "60"], wait=0))["session"]["id"]
    assert node.events(session)["events"]  # the process has begun

    def refuse(_process: FakeProcess, _number: int) -> None:
        raise RuntimeFailure(ErrorCode.BUSY, "the engine is busy")

    with monkeypatch.context() as patched:
        patched.setattr(FakeProcess, "signal", refuse)
        answer = node.call("POST", f"/v1/exec/{session}/signal", json={"signal": 15})
    assert (answer.status_code, answer.json()["code"]) == (503, "busy")
    assert node.call("POST", f"/v1/exec/{session}/signal", json={"signal": 9}).status_code == 200


def test_a_background_child_does_not_hold_the_exec(node: NodeUnderTest, box: str) -> None:
    body = started(node.exec(box, ["sh", "-c", "sleep 30 & echo hi"], wait=10))
    assert body["session"]["status"] == "exited"
    assert output(body["events"]) == b"hi\n"


def test_without_stdin_the_process_reads_an_empty_one(node: NodeUnderTest, box: str) -> None:
    assert started(node.exec(box, ["cat"]))["session"]["exit_code"] == 0


@pytest.mark.parametrize(("program", "code"), [("no-such-program", 127), ("/etc/passwd", 126)])
def test_a_program_that_cannot_start_is_a_failed_session(
    node: NodeUnderTest, box: str, program: str, code: int
) -> None:
    body = started(node.exec(box, [program]))
    assert (body["session"]["status"], body["session"]["exit_code"]) == ("failed", code)
    assert [e["stream"] for e in body["events"]] == ["error", "exit"]
    assert program in body["events"][0]["data"]


def test_stdin_in_pieces_and_its_end(node: NodeUnderTest, box: str) -> None:
    session = started(node.exec(box, ["cat"], stdin=True, wait=0))["session"]["id"]
    feed = f"/v1/exec/{session}/stdin"
    assert node.call("POST", feed, json={"data": "hé"}).status_code == 200
    body = node.call("POST", feed, json={"data_base64": base64.b64encode(b"\x00\xff").decode()})
    assert body.json()["session"]["stdin_open"]
    assert node.call("POST", f"/v1/exec/{session}/close-stdin").status_code == 200
    events = all_events(node, session)
    assert output(events) == "hé".encode() + b"\x00\xff"
    assert [e["stream"] for e in events].count("stdin_closed") == 1
    assert node.call("POST", f"/v1/exec/{session}/close-stdin").status_code == 200
    assert node.call("POST", feed, json={"data": "late"}).status_code == 200


def test_stdin_with_its_end_in_one_request(node: NodeUnderTest, box: str) -> None:
    session = started(node.exec(box, ["wc", "-c"], stdin=True, wait=0))["session"]["id"]
    big = "x" * 5_000_000
    assert node.call("POST", f"/v1/exec/{session}/stdin", json={"data": big, "eof": True}).status_code == 200
    assert output(all_events(node, session)) == b"5000000\n"


def test_stdin_that_was_never_open_or_is_closed_is_refused(node: NodeUnderTest, box: str) -> None:
    for options in ({}, {"stdin": True}):
        session = started(node.exec(box, ["sleep", "60"], wait=0, **options))["session"]["id"]
        node.call("POST", f"/v1/exec/{session}/close-stdin")
        answer = node.call("POST", f"/v1/exec/{session}/stdin", json={"data": "x"})
        assert (answer.status_code, answer.json()["code"]) == (409, "stdin_closed")
        node.call("POST", f"/v1/exec/{session}/signal", json={"signal": 9})


def test_stdin_that_is_not_read_holds_the_sender_back(
    node: NodeUnderTest, box: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_LONG_POLL", 0.3)
    session = started(node.exec(box, ["sleep", "60"], stdin=True, wait=0))["session"]["id"]
    feed, piece = f"/v1/exec/{session}/stdin", {"data": "x" * 10_000_000}
    assert node.call("POST", feed, json=piece).status_code == 200
    answer = node.call("POST", feed, json=piece)
    assert (answer.status_code, answer.json()["code"]) == (503, "busy")
    node.call("POST", f"/v1/exec/{session}/signal", json={"signal": 9})
    assert all_events(node, session)[-1]["stream"] == "exit"


def test_the_stream_ends_with_the_session_and_replays_from_anywhere(node: NodeUnderTest, box: str) -> None:
    script = "for i in 1 2 3; do echo $i; sleep 0.05; done"
    session = started(node.exec(box, ["sh", "-c", script], wait=0))["session"]["id"]
    with node.call("GET", f"/v1/exec/{session}/stream", stream=True) as answer:
        lines = [json.loads(line) for line in answer.iter_lines()]
    assert [line["event"]["sequence"] for line in lines[:-1]] == list(range(1, len(lines)))
    assert lines[-1]["session"]["status"] == "exited"
    with node.call("GET", f"/v1/exec/{session}/stream?after=2", stream=True) as answer:
        again = [json.loads(line) for line in answer.iter_lines()]
    assert again == lines[2:]


def test_a_reader_that_leaves_costs_nothing_and_another_reads_on(node: NodeUnderTest, box: str) -> None:
    session = started(node.exec(box, ["sh", "-c", "echo one; sleep 0.5; echo two"], wait=0))["session"]["id"]
    with node.call("GET", f"/v1/exec/{session}/stream", stream=True) as answer:
        first = json.loads(next(answer.iter_lines(chunk_size=1)))
    assert first["event"]["sequence"] == 1
    assert output(all_events(node, session)) == b"one\ntwo\n"


def test_a_silent_stream_sends_heartbeats(node: NodeUnderTest, box: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node_agent.http.routes.exec.HEARTBEAT", 0.1)
    session = started(node.exec(box, ["sleep", "0.5"], wait=0))["session"]["id"]
    with node.call("GET", f"/v1/exec/{session}/stream", stream=True) as answer:
        lines = [json.loads(line) for line in answer.iter_lines()]
    assert sum("session" in line and line["session"]["status"] == "running" for line in lines) >= 2


def test_a_long_poll_waits_for_news_only(node: NodeUnderTest, box: str) -> None:
    session = started(node.exec(box, ["sh", "-c", "sleep 0.3; echo now; sleep 60"], wait=0))["session"]["id"]
    body: Any = node.events(session, 1, wait=20)
    assert output(body["events"]) == b"now\n"
    quiet: Any = node.events(session, 2, wait=0.1)
    assert (quiet["events"], quiet["session"]["status"]) == ([], "running")
    node.call("POST", f"/v1/exec/{session}/signal", json={"signal": 9})


def test_the_same_session_id_again_is_the_same_session(node: NodeUnderTest, box: str) -> None:
    order = {"session_id": f"exec-{'a' * 32}.1.{box}", "generation": 1, "exec": {"command": ["sh", "-c", "echo once"]}}
    first = node.call("POST", f"/v1/sandboxes/{box}/exec?wait_seconds=20", json=order).json()
    again = node.call("POST", f"/v1/sandboxes/{box}/exec?wait_seconds=20", json=order).json()
    assert first == again


@pytest.mark.parametrize("session", ["exec-1.1.box", f"exec-{'a' * 32}.2.box", f"exec-{'a' * 32}.1.other", "../x"])
def test_a_session_id_carries_its_route(node: NodeUnderTest, box: str, session: str) -> None:
    order = {"session_id": session, "generation": 1, "exec": {"command": ["true"]}}
    answer = node.call("POST", f"/v1/sandboxes/{box}/exec", json=order)
    assert answer.status_code == 422
    assert answer.json()["fields"][0]["field"] == "session_id"


def test_an_unknown_session_is_not_found(node: NodeUnderTest) -> None:
    for method, path in (("GET", ""), ("GET", "/events"), ("GET", "/stream"), ("POST", "/close-stdin")):
        answer = node.call(method, f"/v1/exec/exec-nothing{path}")
        assert (answer.status_code, answer.json()["code"]) == (404, "exec_not_found")


def test_environment_directory_and_a_long_argument_arrive(node: NodeUnderTest, box: str) -> None:
    long = "x" * limits.MAX_ARGUMENT_BYTES
    wish = {"env": {"A": "b c"}, "working_dir": "/"}
    body = started(node.exec(box, ["sh", "-c", 'echo "$A" "$PWD" ${#1}', "sh", long], **wish))
    assert output(body["events"]) == f"b c / {len(long)}\n".encode()


def test_the_death_of_the_sandbox_ends_its_sessions_with_the_reason(node: NodeUnderTest, fresh: str) -> None:
    node.create(fresh)
    session = started(node.exec(fresh, ["sleep", "60"], wait=0))["session"]["id"]
    node.runtime.die(fresh, DeathReason.OOM, "it took more than 64 MiB")
    events = all_events(node, session)
    final = node.call("GET", f"/v1/exec/{session}").json()["session"]
    assert (final["status"], final["exit_code"]) == ("failed", 137)
    assert "oom" in final["error"]
    assert any(e["stream"] == "error" and "64 MiB" in e["data"] for e in events)


def test_deleting_the_sandbox_ends_a_waiting_reader(
    node: NodeUnderTest, fresh: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.create(fresh)
    session = started(node.exec(fresh, ["sleep", "60"], wait=0))["session"]["id"]
    body: Any = node.events(session, 0)
    reader: list[list[Json]] = []
    thread = threading.Thread(target=lambda: reader.append(all_events(node, session)))
    thread.start()
    assert node.delete(fresh).status_code == 200
    thread.join(20)
    assert reader and reader[0][-1]["stream"] == "exit"
    assert body["session"]["status"] == "running"


@pytest.fixture
def small(tmp_path: Path) -> Iterator[NodeUnderTest]:
    with served(tmp_path / "small", given={"max_execs": 16, "exec_retention": 0.5}) as under_test:
        assert under_test.create("box").status_code == 200
        yield under_test
        under_test.remove_all()


def test_the_number_of_running_processes_is_bounded(small: NodeUnderTest) -> None:
    running = [started(small.exec("box", ["sleep", "60"], wait=0))["session"]["id"] for _ in range(2)]
    answer = small.exec("box", ["true"])
    assert (answer.status_code, answer.json()["code"]) == (429, "exec_limit")
    small.call("POST", f"/v1/exec/{running[0]}/signal", json={"signal": 9})
    assert all_events(small, running[0])
    wait_until(lambda: small.exec("box", ["true"]).status_code != 429)


def test_an_ended_session_is_dropped_with_its_files_after_its_retention(small: NodeUnderTest) -> None:
    session = started(small.exec("box", ["true"]))["session"]["id"]
    spool = small.node._settings.root / "spool"
    assert [p.name for p in spool.iterdir() if session in p.name]
    wait_until(lambda: small.call("GET", f"/v1/exec/{session}").status_code == 404)
    wait_until(lambda: not any(session in path.name for path in spool.iterdir()))


def test_a_process_that_survives_its_kill_is_given_up(
    node: NodeUnderTest, box: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "KILL_GRACE", 0.2)
    monkeypatch.setattr("tests.fakes.runtime.FakeProcess.kill", lambda self: None)
    body = started(node.exec(box, ["sh", "-c", "echo $$; exec sleep 61"], timeout_seconds=0.2))
    assert (body["session"]["status"], body["session"]["exit_code"]) == ("failed", 124)
    os.kill(int(output(body["events"])), signal.SIGKILL)
