"""One greedy sandbox, or one greedy tenant, on a node: the others go on as if it were not there."""

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from node_agent.files import transfer
from tests.fakes.node import NodeUnderTest, served
from tests.waiting import wait_until

GREEDY, SIBLING, VICTIM = "greedy..box", "greedy..other", "victim..box"
MIB = 1024 * 1024
Json = dict[str, Any]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeUnderTest]:
    bounds = {"max_execs": 32, "spool_mb": 16}
    with served(tmp_path_factory.mktemp("node"), given=bounds) as under_test:
        for sandbox in (GREEDY, SIBLING, VICTIM):
            assert under_test.create(sandbox).status_code == 200
        yield under_test
        under_test.remove_all()


def sleeping(node: NodeUnderTest, sandbox: str) -> list[str]:
    """Start execs that sleep until the node refuses one; return their sessions."""
    sessions = []
    for _ in range(100):
        answer = node.exec(sandbox, ["sleep", "60"], wait=0)
        if answer.status_code == 429:
            assert answer.json()["retryable"] is True
            return sessions
        sessions.append(answer.json()["session"]["id"])
    raise AssertionError("nothing bounds the execs of one sandbox")


def works(answer: requests.Response) -> Json:
    """Return the session of an exec that printed ``well`` and ended."""
    assert answer.status_code == 200, answer.text
    body: Json = answer.json()
    assert "".join(event["data"] for event in body["events"] if event["stream"] == "stdout") == "well\n"
    session: Json = body["session"]
    return session


def test_sleeping_execs_leave_room_for_neighbours_and_siblings(node: NodeUnderTest) -> None:
    sessions = sleeping(node, GREEDY)
    try:
        for sandbox in (VICTIM, SIBLING):
            works(node.exec(sandbox, ["echo", "well"]))
    finally:
        for session in sessions:
            node.call("POST", f"/v1/exec/{session}/signal", json={"signal": 9})
        wait_until(lambda: not node.node.sessions.live())
    assert len(sessions) < 16


def test_a_flood_of_output_is_cut_and_its_neighbours_is_kept(node: NodeUnderTest) -> None:
    flood = ["head", "-c", str(20 * MIB), "/dev/zero"]
    flooded = node.exec(GREEDY, flood).json()["session"]
    kept = works(node.exec(VICTIM, ["echo", "well"]))

    assert (flooded["truncated"], flooded["stdout_bytes"]) == (True, 20 * MIB)
    assert not kept["truncated"]


def test_the_oldest_output_of_the_greedy_makes_room_for_its_newest(
    node: NodeUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node_agent.exec.history.KEPT_AT_LEAST", 0.0)
    part = ["head", "-c", str(MIB), "/dev/zero"]
    sessions = [node.exec(GREEDY, part).json()["session"] for _ in range(6)]

    assert [session["truncated"] for session in sessions] == [False] * 6
    assert node.call("GET", f"/v1/exec/{sessions[0]['id']}").status_code == 404
    assert node.call("GET", f"/v1/exec/{sessions[-1]['id']}/events").status_code == 200


@contextlib.contextmanager
def idle_uploads(node: NodeUnderTest, sandbox: str, count: int) -> Iterator[list[socket.socket]]:
    """Begin uploads whose bodies never come."""
    host, port = node.url.removeprefix("http://").split(":")
    head = (
        f"PUT /v1/sandboxes/{sandbox}/files?path=idle HTTP/1.1\r\nHost: node\r\nContent-Length: 10\r\n"
        f"Authorization: {node.session.headers['Authorization']!s}\r\n\r\n"
    )
    with contextlib.ExitStack() as stack:
        uploads = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(count)]
        for upload in uploads:
            upload.sendall(head.encode())
        yield uploads


def test_idle_uploads_leave_room_for_neighbours_transfers(node: NodeUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "SHARE_WAIT", 0.05, raising=False)
    query = {"params": {"path": "file"}, "data": b"content"}
    assert node.call("PUT", f"/v1/sandboxes/{VICTIM}/files", **query).status_code == 200
    with idle_uploads(node, GREEDY, 64):
        refused = node.session.put(f"{node.url}/v1/sandboxes/{GREEDY}/files", **query, timeout=10)
        while refused.ok:  # the others have not arrived yet
            refused = node.session.put(f"{node.url}/v1/sandboxes/{GREEDY}/files", **query, timeout=10)
        for sandbox in (VICTIM, SIBLING):
            assert node.session.put(f"{node.url}/v1/sandboxes/{sandbox}/files", **query, timeout=10).status_code == 200

    assert (refused.status_code, refused.json()["code"], refused.json()["retryable"]) == (503, "busy", True)


def test_an_idle_upload_is_ended_and_leaves_nothing(node: NodeUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "IDLE_WAIT", 0.1, raising=False)
    with idle_uploads(node, VICTIM, 1) as (upload,):
        upload.settimeout(10)
        assert b"504 " in upload.recv(100)
    listed = node.exec(VICTIM, ["ls", "-a"]).json()["events"]

    assert ".upload" not in "".join(event["data"] for event in listed)
