"""Commands through the client: exact bytes, no gaps, and what a broken stream does."""

import io
import json
from itertools import pairwise
from typing import Any

import pytest

from gateway.wire.errors import ErrorCode
from gateway.wire.exec import ExecRequest
from gateway.wire.states import ExecStatus
from tests.fakes.gateway import Gateway, Output, Program, error
from tests.fakes.scripted import Drop, Reply
from ucloud_sandboxes_sdk import (
    ExecEventHistoryLostError,
    ExecHandle,
    ExecLostError,
    SandboxClient,
    SandboxHandle,
    SandboxNotRunningError,
    StdinClosedError,
    TransportError,
    event_bytes,
)


def says(output: Output, code: int = 0) -> Program:
    return lambda request, stdin: (output, code)


def test_quick_command_costs_one_round_trip(gateway: Gateway, sandbox: SandboxHandle) -> None:
    seen = len(gateway.requests)
    result = sandbox.exec(["echo", "hello"])
    assert (result.stdout, result.stderr, result.exit_code, result.status) == ("hello\n", "", 0, "exited")
    assert result.success
    assert len(gateway.requests) == seen + 1


def test_failed_command_is_a_result(gateway: Gateway, sandbox: SandboxHandle) -> None:
    gateway.program = says([("stderr", b"no\n")], 3)
    result = sandbox.exec(["false"])
    assert (result.exit_code, result.stderr, result.success) == (3, "no\n", False)


def test_options_reach_the_service(gateway: Gateway, sandbox: SandboxHandle) -> None:
    sandbox.exec("ls", env={"A": "b"}, working_dir="/w", timeout_seconds=5, user="0", max_output_bytes=7)
    order = ExecRequest.model_validate_json(gateway.requests[-1].body)
    assert (order.command, order.env, order.working_dir) == (["ls"], {"A": "b"}, "/w")
    assert (order.timeout_seconds, order.user, order.max_output_bytes, order.stdin) == (5, "0", 7, False)


def test_output_is_exact_and_text_is_decoded_once(gateway: Gateway, sandbox: SandboxHandle) -> None:
    euro = "€".encode()
    binary = bytes(range(256))
    gateway.program = says([("stdout", euro[:1]), ("stderr", binary), ("stdout", euro[1:] + b"\xff")])
    result = sandbox.exec(["x"])
    assert result.stdout_bytes == euro + b"\xff"
    assert result.stdout == "€\N{REPLACEMENT CHARACTER}"
    assert result.stderr_bytes == binary
    assert [event["sequence"] for event in result.events] == [1, 2, 3, 4]


def test_timeout_is_a_result_with_the_output_so_far(gateway: Gateway, sandbox: SandboxHandle) -> None:
    gateway.open_session = True
    handle = sandbox.start_exec(["sleep", "60"], timeout_seconds=1)
    gateway.sessions[handle.session_id].finish([("stdout", b"so far")], 124, status=ExecStatus.FAILED, timed_out=True)
    result = handle.wait()
    assert (result.timed_out, result.exit_code, result.stdout, result.success) == (True, 124, "so far", False)


def test_events_beyond_the_first_response_are_streamed(gateway: Gateway, sandbox: SandboxHandle) -> None:
    gateway.program = says([("stdout", str(n).encode()) for n in range(100)])
    session = gateway.add_session(sandbox.id, ExecRequest(command=["x"]))
    session.finish(*gateway.program(session.request, b""))
    part = {
        "session": session.session.model_dump(mode="json"),
        "events": [event.model_dump(mode="json") for event in session.events[:10]],
    }
    gateway.next("POST", "/exec", Reply(201, json.dumps(part).encode()))
    assert sandbox.exec(["x"]).stdout == "".join(map(str, range(100)))
    assert gateway.sent("GET", "/stream")[0].query["after"] == "10"


def finished(gateway: Gateway, client: SandboxClient, sandbox: SandboxHandle, count: int = 20) -> ExecHandle:
    session = gateway.add_session(sandbox.id, ExecRequest(command=["x"]))
    session.finish([("stdout", f"{n};".encode()) for n in range(count)], 0)
    handle = ExecHandle(client, session.session.id, sandbox.id)
    handle.session = {"id": session.session.id, "status": "running"}
    return handle


def test_broken_stream_resumes_where_it_broke(gateway: Gateway, client: SandboxClient, sandbox: SandboxHandle) -> None:
    handle = finished(gateway, client, sandbox)
    lines = gateway.sessions[handle.session_id].lines(0)
    gateway.next(
        "GET",
        "/stream",
        Reply(chunks=lines[:5], cut=1),  # the connection breaks between two lines
        Drop(),
        Reply(chunks=[*lines[5:8], lines[8][:7]], cut=1),  # in the middle of a line
        error(ErrorCode.NODE_UNREACHABLE),
        Reply(chunks=lines[8:12]),  # ends cleanly, but too early
    )
    events = list(handle.events())
    assert "".join(event["data"] for event in events) == "".join(f"{n};" for n in range(20))
    assert all(b["sequence"] == a["sequence"] + 1 for a, b in pairwise(events))
    assert [request.query["after"] for request in gateway.sent("GET", "/stream")] == ["0", "5", "5", "8", "8", "12"]
    assert handle.session["status"] == "exited"


def test_gap_in_the_events_is_an_error(gateway: Gateway, client: SandboxClient, sandbox: SandboxHandle) -> None:
    handle = finished(gateway, client, sandbox)
    lines = gateway.sessions[handle.session_id].lines(0)
    gateway.next("GET", "/stream", Reply(chunks=[*lines[:3], *lines[4:]]))
    with pytest.raises(ExecEventHistoryLostError) as caught:
        list(handle.events())
    assert (caught.value.expected_sequence, caught.value.received_sequence) == (4, 5)


def test_lost_session_is_not_exit_0(gateway: Gateway, client: SandboxClient, sandbox: SandboxHandle) -> None:
    handle = finished(gateway, client, sandbox)
    gateway.next("GET", "/stream", error(ErrorCode.EXEC_LOST))
    with pytest.raises(ExecLostError):
        handle.wait()


def test_unknown_outcome_is_an_error_with_the_output_so_far(gateway: Gateway, sandbox: SandboxHandle) -> None:
    gateway.open_session = True
    handle = sandbox.start_exec(["make"])
    lost = {"status": ExecStatus.FAILED, "lost": True, "error": "the node agent restarted"}
    gateway.sessions[handle.session_id].finish([("stdout", b"so far")], -1, **lost)
    with pytest.raises(ExecLostError) as caught:
        handle.wait()
    assert caught.value.code == "exec_lost"
    assert caught.value.result is not None
    assert (caught.value.result.stdout, caught.value.result.exit_code) == ("so far", None)
    with pytest.raises(ExecLostError):
        list(handle.events())


def test_interrupt_kills_what_exec_started(gateway: Gateway, client: SandboxClient, sandbox: SandboxHandle) -> None:
    gateway.open_session = True

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    client._collect = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        sandbox.exec(["sleep", "300"])
    (session,) = gateway.sessions.values()
    assert session.signals == [9]


def test_input_that_cannot_be_read_kills_the_process(gateway: Gateway, sandbox: SandboxHandle) -> None:
    class Broken(io.BytesIO):
        def read(self, _: int | None = -1, /) -> bytes:
            raise OSError("the disk is gone")

    with pytest.raises(OSError, match="gone"):
        sandbox.exec(["cat"], input=Broken())
    (session,) = gateway.sessions.values()
    assert session.signals == [9]


def test_start_that_overtakes_its_kill_is_killed(
    gateway: Gateway, client: SandboxClient, sandbox: SandboxHandle, naps: list[float]
) -> None:
    started = client._start

    def interrupted(*_: Any, **__: Any) -> Any:
        client.transport.sleep = lambda seconds: (naps.append(seconds), started(*_, **__))  # type: ignore[assignment,return-value]
        raise KeyboardInterrupt

    gateway.open_session = True
    client._start = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        sandbox.exec(["sleep", "300"])
    (session,) = gateway.sessions.values()
    assert session.signals == [9]


def test_stream_that_never_comes_back_ends_in_an_error(
    gateway: Gateway, client: SandboxClient, sandbox: SandboxHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ucloud_sandboxes_sdk.events.REATTACH_SECONDS", 0.5)
    handle = finished(gateway, client, sandbox)
    gateway.next("GET", "/stream", *[Drop()] * 10_000)
    with pytest.raises(TransportError):
        handle.wait()


def test_wait_returns_everything_after_events_were_read(
    gateway: Gateway, client: SandboxClient, sandbox: SandboxHandle
) -> None:
    handle = finished(gateway, client, sandbox, 3)
    stream = handle.events()
    assert event_bytes(next(stream)) == b"0;"
    stream.close()
    assert handle.wait().stdout == "0;1;2;"
    assert [event["sequence"] for event in handle.events()] == [2, 3, 4]  # goes on where it was left


def test_another_program_can_take_over(gateway: Gateway, client: SandboxClient, sandbox: SandboxHandle) -> None:
    handle = finished(gateway, client, sandbox, 2)
    assert client.get_exec(handle.session_id).wait().stdout == "0;1;"
    page = client.read_exec_events(handle.session_id, after=1)
    assert [event["sequence"] for event in page["events"]] == [2, 3]


def test_wait_has_a_deadline_of_its_own(gateway: Gateway, sandbox: SandboxHandle) -> None:
    gateway.open_session = True
    handle = sandbox.start_exec(["sleep", "60"])
    with pytest.raises(TimeoutError):
        handle.wait(timeout_seconds=0.3)
    assert handle.kill()["exit_code"] == 137
    assert gateway.sessions[handle.session_id].signals == [9]
    assert handle.wait().exit_code == 137


@pytest.mark.parametrize(
    "given", ["Grüße", "Grüße".encode(), bytes(range(256)), b"", b"x" * (2 * 1024 * 1024 + 1)], ids=len
)
def test_input_arrives_byte_for_byte(sandbox: SandboxHandle, given: str | bytes, gateway: Gateway) -> None:
    gateway.program = lambda request, stdin: ([("stdout", stdin)], 0)
    expected = given.encode() if isinstance(given, str) else given
    assert sandbox.exec(["cat"], input=given).stdout_bytes == expected
    if isinstance(given, bytes):
        assert sandbox.exec(["cat"], input=io.BytesIO(given)).stdout_bytes == expected


def test_process_that_ends_before_its_input_is_no_error(
    gateway: Gateway, client: SandboxClient, sandbox: SandboxHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = client._start

    def ends_at_once(*args: Any, **options: Any) -> Any:
        answer = started(*args, **options)
        gateway.sessions[answer["session"]["id"]].finish([("stdout", b"done")], 0)
        return answer

    monkeypatch.setattr(client, "_start", ends_at_once)
    assert sandbox.exec(["head", "-1"], input=b"y" * 10_000_000).stdout == "done"
    assert len(gateway.sent("POST", "/stdin")) == 1


def test_process_without_stdin_takes_no_input(gateway: Gateway, sandbox: SandboxHandle) -> None:
    gateway.open_session = True
    with pytest.raises(StdinClosedError):
        sandbox.start_exec(["cat"]).write_stdin("x")


def test_stdin_can_be_written_in_steps(gateway: Gateway, sandbox: SandboxHandle) -> None:
    handle = sandbox.start_exec(["cat"], stdin=True)
    handle.write_stdin("one ")
    handle.write_stdin(b"two")
    handle.close_stdin()
    assert handle.wait().stdout == "one two"


def test_error_carries_state_of_sandbox_that_does_not_run(
    gateway: Gateway, client: SandboxClient, sandbox: SandboxHandle
) -> None:
    gateway.next("POST", "/exec", error(ErrorCode.SANDBOX_NOT_RUNNING, state="exited", reason="oom"))
    with pytest.raises(SandboxNotRunningError) as caught:
        sandbox.exec(["true"])
    assert (caught.value.state, caught.value.reason) == ("exited", "oom")


def test_truncated_output_is_reported(gateway: Gateway, client: SandboxClient, sandbox: SandboxHandle) -> None:
    session = gateway.add_session(sandbox.id, ExecRequest(command=["x"]))
    session.finish([("stdout", b"ab")], 0, truncated=True, stdout_bytes=1000)
    result = client.get_exec(session.session.id).wait()
    assert result.truncated
    assert result.session["stdout_bytes"] == 1000
