"""Exec and files through the gateway: passed on as they are, cut when one end breaks, in constant memory."""

import asyncio
import base64
import contextlib
import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import aiohttp
import pytest
import requests

from gateway import node_client
from gateway.errors import ApiError
from gateway.http.routes import exec, sandboxes
from gateway.node_client import CALL_TIMEOUT, with_wait
from gateway.wire import limits
from gateway.wire.errors import ErrorCode
from gateway.wire.nodes import ExecOrder
from tests.fakes.edge import CLIENT, SESSION, Edge, Lines, body_of, refusal, running_edge
from tests.fakes.scripted import Drop, Recorded, Reply, ScriptedServer

OLD_SDK_EXEC = {"command": ["echo", "hi"], "env": {}, "working_dir": None, "stdin": False, "tty": False}
FILES = "/v1/sandboxes/box/files"


@pytest.fixture(scope="module")
def shared() -> Iterator[Edge]:
    with running_edge() as running:
        yield running


@pytest.fixture
def edge(shared: Edge) -> Edge:
    shared.reset()
    return shared


def call(edge: Edge, method: str, path: str, **more: Any) -> requests.Response:
    return requests.request(method, edge.url + path, headers=CLIENT, timeout=20, **more)


@contextlib.contextmanager
def stands_still() -> Iterator[str]:
    """A node whose kernel takes connections and that itself never looks at them, as one that is stopped."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


# -- exec -------------------------------------------------------------------------------------------------------------


def test_the_body_of_the_old_sdk_starts_an_exec(edge: Edge) -> None:
    answer = call(edge, "POST", "/v1/sandboxes/box/exec", json=OLD_SDK_EXEC)
    assert answer.status_code == 201
    assert answer.json()["session"]["id"] == "s"
    seen = edge.node.seen[0]
    order = ExecOrder.model_validate_json(seen["body"])
    assert (seen["path"], seen["query"], order.generation) == ("/v1/sandboxes/box/exec", {"wait_seconds": "0.0"}, 1)
    prefix, generation, sandbox = order.session_id.split(".")
    assert (generation, sandbox) == ("1", "box")
    assert len(prefix.removeprefix("exec-")) == 32
    assert order.exec.command == ["echo", "hi"]
    assert edge.services.calls == [("route", ("box", None, True))]


@pytest.mark.parametrize(("asked", "told"), [("5", "5.0"), ("30.0", "20.0"), ("1e9", "20.0")])
def test_waits_are_cut_and_not_refused(edge: Edge, asked: str, told: str) -> None:
    edge.node.release.set()
    assert call(edge, "GET", f"/v1/exec/{SESSION}/events?after=3&limit=5000&wait_seconds={asked}").status_code == 200
    assert edge.node.seen[0]["query"] == {"after": "3", "limit": "1000", "wait_seconds": told}
    call(edge, "POST", f"/v1/sandboxes/box/exec?wait_seconds={asked}", json=OLD_SDK_EXEC)
    assert edge.node.seen[1]["query"] == {"wait_seconds": told}


def test_the_generation_of_the_session_is_routed(edge: Edge) -> None:
    session = f"exec-{'a' * 32}.7.box"
    assert call(edge, "GET", f"/v1/exec/{session}").json()["session"]["id"] == "s"
    assert edge.services.calls == [("route", ("box", 7, False))]
    assert edge.node.seen[0]["path"] == f"/v1/exec/{session}"


@pytest.mark.parametrize(
    ("what", "body"),
    [
        ("stdin", {"data": "hello", "eof": True}),
        ("stdin", {"data_base64": base64.b64encode(b"\xff\0").decode()}),
        ("close-stdin", None),
        ("signal", {"signal": 9}),
    ],
)
def test_orders_to_a_session(edge: Edge, what: str, body: dict[str, Any] | None) -> None:
    assert call(edge, "POST", f"/v1/exec/{SESSION}/{what}", json=body).status_code == 200
    seen = edge.node.seen[0]
    assert seen["path"] == f"/v1/exec/{SESSION}/{what}"
    told = json.loads(seen["body"]) if seen["body"] else None
    assert body is None or told is not None
    assert all(told[key] == value for key, value in (body or {}).items())


def test_close_stdin_of_the_old_async_sdk(edge: Edge) -> None:
    headers = {**CLIENT, "Content-Type": "application/octet-stream"}
    answer = requests.post(f"{edge.url}/v1/exec/{SESSION}/close-stdin", headers=headers, data=b"", timeout=10)
    assert answer.status_code == 200


def test_input_reaches_the_sessions_of_a_sandbox_that_ended(edge: Edge) -> None:
    edge.services.route_refusals[True] = ApiError(ErrorCode.SANDBOX_NOT_RUNNING, "it has exited", reason="exited")
    assert call(edge, "POST", f"/v1/exec/{SESSION}/stdin", json={"data": "late"}).status_code == 200


def test_a_lost_sandbox_says_why(edge: Edge) -> None:
    lost = ApiError(ErrorCode.SANDBOX_NOT_RUNNING, "its node is lost", state="lost", reason="node_lost")
    edge.services.route_refusals = {True: lost, False: lost}
    for answer in (
        call(edge, "POST", "/v1/sandboxes/box/exec", json=OLD_SDK_EXEC),
        call(edge, "GET", f"/v1/exec/{SESSION}/events"),
        call(edge, "GET", f"/v1/exec/{SESSION}/stream"),
        call(edge, "GET", f"{FILES}?path=/x"),
        call(edge, "PUT", f"{FILES}?path=/x", data=b"x"),
    ):
        assert answer.status_code == 409
        body = body_of(answer)
        assert (body.code, body.state, body.reason) == (ErrorCode.SANDBOX_NOT_RUNNING, "lost", "node_lost")


def test_a_long_poll_ends_at_the_node_when_its_caller_leaves(edge: Edge) -> None:
    with pytest.raises(requests.Timeout):
        requests.get(f"{edge.url}/v1/exec/{SESSION}/events?wait_seconds=15", headers=CLIENT, timeout=0.3)
    edge.loop.call(edge.node.left.wait())


def test_the_stream_comes_as_it_happens(edge: Edge) -> None:
    with call(edge, "GET", f"/v1/exec/{SESSION}/stream?after=2", stream=True) as answer:
        assert answer.headers["content-type"] == "application/x-ndjson"
        lines = answer.iter_lines(chunk_size=1)
        assert next(lines) == b'{"event":1}'
        assert not edge.node.release.is_set()
        edge.loop.soon(edge.node.release.set)
        assert list(lines) == [b'{"session":2}']
    assert edge.node.seen[0]["query"] == {"after": "2"}
    assert edge.services.touched >= 2


def test_a_stream_ends_at_the_node_when_its_caller_leaves(edge: Edge) -> None:
    with call(edge, "GET", f"/v1/exec/{SESSION}/stream", stream=True) as answer:
        next(answer.iter_lines(chunk_size=1))
    edge.loop.call(edge.node.left.wait())


# -- refusals of nodes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "becomes"),
    [
        (ErrorCode.FILE_NOT_FOUND, ErrorCode.FILE_NOT_FOUND),
        (ErrorCode.EXEC_NOT_FOUND, ErrorCode.EXEC_NOT_FOUND),
        (ErrorCode.EXEC_LIMIT, ErrorCode.EXEC_LIMIT),
        (ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_REQUEST),
        (ErrorCode.SANDBOX_NOT_FOUND, ErrorCode.SANDBOX_NOT_RUNNING),
        (ErrorCode.UNAUTHORIZED, ErrorCode.NODE_UNREACHABLE),
        (ErrorCode.FORBIDDEN, ErrorCode.NODE_UNREACHABLE),
        (ErrorCode.NOT_FOUND, ErrorCode.NODE_UNREACHABLE),
        (ErrorCode.METHOD_NOT_ALLOWED, ErrorCode.NODE_UNREACHABLE),
    ],
)
def test_what_a_node_refuses(edge: Edge, code: ErrorCode, becomes: ErrorCode) -> None:
    edge.node.answer = refusal(code)
    for path in (f"/v1/exec/{SESSION}/events", f"/v1/exec/{SESSION}/stream", "/v1/sandboxes/box/logs"):
        body = body_of(call(edge, "GET", path))
        assert body.code is becomes
        assert "the node says no" in body.error


def test_an_answer_in_other_words_is_a_node_out_of_reach(edge: Edge) -> None:
    with ScriptedServer(lambda _: Reply(502, b"<html>bad gateway</html>")) as node:
        edge.services.node_url = node.url
        body = body_of(call(edge, "GET", f"/v1/exec/{SESSION}"))
        assert (body.code, body.retryable) == (ErrorCode.NODE_UNREACHABLE, True)


def test_a_node_that_is_not_there(edge: Edge) -> None:
    edge.services.node_url = "http://127.0.0.1:9"
    for answer in (
        call(edge, "GET", f"/v1/exec/{SESSION}"),
        call(edge, "GET", f"/v1/exec/{SESSION}/stream"),
        call(edge, "GET", f"{FILES}?path=/x"),
        call(edge, "PUT", f"{FILES}?path=/x", data=bytes(limits.MIB)),
        # Nothing was sent, so even a start may be tried again.
        call(edge, "POST", "/v1/sandboxes/box/exec", json=OLD_SDK_EXEC),
    ):
        assert answer.status_code == 503
        body = body_of(answer)
        assert (body.code, body.retryable) == (ErrorCode.NODE_UNREACHABLE, True)
        assert "Connection refused" in body.error
        assert "127.0.0.1" not in body.error
        assert "retry-after" in answer.headers


@pytest.mark.parametrize("url", ["http://[bad", "nonsense", "http://", "ftp://127.0.0.1:9", "http://127.0.0.1:99999"])
def test_a_node_that_registered_nonsense(edge: Edge, url: str) -> None:
    edge.services.node_url = url
    body = body_of(call(edge, "GET", f"/v1/exec/{SESSION}"))
    assert (body.code, body.retryable) == (ErrorCode.NODE_UNREACHABLE, True)


class BreaksOff:
    """A node that takes an exec and breaks off, and then says what it is told to about the session."""

    def __init__(self, later: Reply) -> None:
        self.later = later
        self.seen: list[Recorded] = []

    def __call__(self, request: Recorded) -> Reply:
        self.seen.append(request)
        return Drop() if request.method == "POST" else self.later


def test_a_start_whose_answer_was_lost_is_found_again(edge: Edge) -> None:
    node = BreaksOff(Reply(200, b'{"session": {"id": "found"}, "events": []}'))
    with ScriptedServer(node) as server:
        edge.services.node_url = server.url
        answer = call(edge, "POST", "/v1/sandboxes/box/exec", json=OLD_SDK_EXEC)
    assert (answer.status_code, answer.json()["session"]["id"]) == (201, "found")
    session_id = node.seen[0].json()["session_id"]
    assert [(r.method, r.path) for r in node.seen[1:]] == [("GET", f"/v1/exec/{session_id}/events")]


@pytest.mark.parametrize("later", [Drop(), Reply(404, refusal(ErrorCode.EXEC_NOT_FOUND).body)])
def test_a_start_whose_outcome_is_unknown_is_not_retryable(edge: Edge, later: Reply) -> None:
    node = BreaksOff(later)
    with ScriptedServer(node) as server:
        edge.services.node_url = server.url
        answer = call(edge, "POST", "/v1/sandboxes/box/exec", json=OLD_SDK_EXEC)
    body = body_of(answer)
    assert (body.code, body.retryable) == (ErrorCode.NODE_UNREACHABLE, False)
    assert "not known" in body.error
    assert "retry-after" not in answer.headers
    assert [r.method for r in node.seen].count("POST") == 1


def test_all_that_a_call_waits_for_is_less_than_clients_in_the_field_wait() -> None:
    longest = with_wait(limits.MAX_LONG_POLL, CALL_TIMEOUT - exec.LOOK_TIMEOUT)
    assert longest > limits.MAX_LONG_POLL
    assert longest + exec.LOOK_TIMEOUT <= CALL_TIMEOUT < 30
    assert limits.MAX_LONG_POLL < with_wait(limits.MAX_LONG_POLL) <= CALL_TIMEOUT
    assert with_wait(0) == node_client.ANSWER_TIMEOUT


def test_a_start_on_a_node_that_stands_still_tells_all_that_was_waited(
    edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_client, "ANSWER_TIMEOUT", 0.25)
    monkeypatch.setattr(exec, "LOOK_TIMEOUT", 0.125)
    with stands_still() as url:
        edge.services.node_url = url
        answer = call(edge, "POST", "/v1/sandboxes/box/exec?wait_seconds=0.25", json=OLD_SDK_EXEC)
    body = body_of(answer)
    assert (answer.status_code, body.code, body.retryable) == (504, ErrorCode.TIMEOUT, False)
    assert "within 0.5 s" in body.error
    assert "0.125 s more" in body.error
    assert "not known" in body.error


@pytest.mark.parametrize("path", [f"/v1/exec/{SESSION}/stream", f"{FILES}?path=/zeros-1"])
def test_a_stream_from_a_node_that_stands_still_ends_before_its_first_byte(
    edge: Edge, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    for module in (exec, sandboxes):
        monkeypatch.setattr(module, "CALL_TIMEOUT", 0.25)
    with stands_still() as url:
        edge.services.node_url = url
        body = body_of(call(edge, "GET", path))
    assert (body.code, body.retryable) == (ErrorCode.TIMEOUT, True)
    assert "within 0.25 s" in body.error


def test_an_upload_to_a_node_that_takes_nothing_ends(edge: Edge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandboxes, "IDLE_TIMEOUT", 0.25)
    with stands_still() as url:
        edge.services.node_url = url
        body = body_of(call(edge, "PUT", f"{FILES}?path=/x", data=bytes(64 * limits.MIB)))
    assert (body.code, body.retryable) == (ErrorCode.TIMEOUT, True)


# -- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, limits.MIB, 20 * limits.MIB + 7])
def test_a_file_up(edge: Edge, size: int) -> None:
    content = bytes(range(256)) * (size // 256) + bytes(size % 256)
    answer = call(edge, "PUT", FILES, params={"path": "a b/ü'\"\n+%&=#;"}, data=content)
    assert answer.status_code == 200
    assert answer.json() == {"ok": True, "size": size, "path": hashlib.sha256(content).hexdigest()}
    seen = edge.node.seen[0]
    assert seen["query"] == {"path": "a b/ü'\"\n+%&=#;", "generation": "1"}
    assert seen["headers"]["content-length"] == str(size)


@pytest.mark.parametrize("size", [0, 1, limits.MIB, 20 * limits.MIB + 7])
def test_a_file_down(edge: Edge, size: int) -> None:
    answer = call(edge, "GET", f"{FILES}?path=/zeros-{size}")
    assert answer.status_code == 200
    assert answer.headers["content-length"] == str(size)
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.content == bytes(size)


def test_refusals_come_before_the_first_byte(edge: Edge) -> None:
    for answer in (
        call(edge, "GET", f"{FILES}?path=/refused"),
        call(edge, "PUT", f"{FILES}?path=/refused", data=bytes(30 * limits.MIB)),
    ):
        assert answer.status_code == 404
        assert body_of(answer).code is ErrorCode.FILE_NOT_FOUND


def test_a_node_that_dies_in_the_middle_cuts_the_download(edge: Edge) -> None:
    with Lines("gateway.http") as lines:
        with pytest.raises(requests.exceptions.ChunkedEncodingError):
            call(edge, "GET", f"{FILES}?path=/cut-{8 * limits.MIB}")
        assert "stream cut" in lines.next().getMessage()
    # The gateway itself is none the worse.
    assert call(edge, "GET", f"{FILES}?path=/zeros-10").content == bytes(10)


def test_a_stream_that_dies_in_the_middle_is_cut_and_not_ended(edge: Edge) -> None:
    reply = Reply(200, headers={"Content-Type": "application/x-ndjson"}, chunks=[b'{"event":1}\n'], cut=0)
    with ScriptedServer(lambda _: reply) as node:
        edge.services.node_url = node.url
        with pytest.raises(requests.exceptions.ChunkedEncodingError):
            call(edge, "GET", f"/v1/exec/{SESSION}/stream")


def test_a_client_that_leaves_during_a_download_frees_the_node(edge: Edge) -> None:
    with call(edge, "GET", f"{FILES}?path=/held-{100 * limits.MIB}", stream=True) as answer:
        answer.raw.read(1)
    edge.loop.call(edge.node.left.wait())


def test_a_client_that_leaves_during_an_upload_never_completes_it(edge: Edge) -> None:
    host, port = edge.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as raw:
        raw.sendall(
            f"PUT {FILES}?path=/x HTTP/1.1\r\nHost: x\r\nX-UCloud-Sandbox-Token: client-secret\r\n"
            "Content-Length: 1000000\r\n\r\n".encode()
        )
        raw.sendall(bytes(1000))
        edge.loop.call(edge.node.waiting.wait())
    edge.loop.call(edge.node.left.wait())
    assert edge.node.upload_whole is False


def test_a_chunked_upload_that_breaks_off_never_completes(edge: Edge) -> None:
    host, port = edge.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as raw:
        raw.sendall(
            f"PUT {FILES}?path=/x HTTP/1.1\r\nHost: x\r\nX-UCloud-Sandbox-Token: client-secret\r\n"
            "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n".encode()
        )
        edge.loop.call(edge.node.waiting.wait())
    edge.loop.call(edge.node.left.wait())
    assert edge.node.upload_whole is False


def test_a_slow_reader_holds_the_node_back(edge: Edge) -> None:
    """What a client does not take stays at the node: the gateway holds no more than its buffers."""
    size = 64 * limits.MIB
    with call(edge, "GET", f"{FILES}?path=/zeros-{size}", stream=True) as answer:
        answer.raw.read(1)
        # Other calls pass meanwhile; each round trip gives the stream every chance to run ahead.
        for _ in range(20):
            assert call(edge, "GET", f"{FILES}?path=/zeros-10").status_code == 200
        taken = edge.services.touched - 20
        assert taken * 256 * 1024 < size // 2
        assert len(answer.raw.read()) == size - 1


def test_a_slow_node_holds_the_client_back(edge: Edge) -> None:
    size = 64 * limits.MIB
    with ThreadPoolExecutor(1) as pool:
        upload = pool.submit(call, edge, "PUT", f"{FILES}?path=/slow", data=bytes(size))
        while not edge.services.touched:
            assert call(edge, "GET", f"/v1/exec/{SESSION}").status_code == 200
        for _ in range(20):
            assert call(edge, "GET", f"/v1/exec/{SESSION}").status_code == 200
        # Each touch stands for what one read of a socket can bring, 256 KiB at most.
        assert edge.services.touched * 256 * 1024 < size // 2
        assert not upload.done()
        edge.loop.soon(edge.node.release.set)
        assert upload.result().json()["size"] == size


# -- many at once, overload, stop -------------------------------------------------------------------------------------


async def test_many_long_polls_do_not_hinder_short_calls(edge: Edge) -> None:
    async with aiohttp.ClientSession(edge.url, headers=CLIENT, connector=aiohttp.TCPConnector(limit=0)) as session:

        async def poll() -> int:
            async with session.get(f"/v1/exec/{SESSION}/events?wait_seconds=15") as answer:
                return answer.status

        polls = [asyncio.ensure_future(poll()) for _ in range(150)]
        async with session.get("/v1/sandboxes/box") as answer:
            assert answer.status == 200
        assert not any(task.done() for task in polls)
        edge.loop.soon(edge.node.release.set)
        assert await asyncio.gather(*polls) == [200] * 150


def gate_creates(edge: Edge) -> None:
    async def make() -> None:
        edge.services.create_gate = asyncio.Event()

    edge.loop.call(make())


def open_gate(edge: Edge) -> None:
    gate = edge.services.create_gate
    assert gate is not None
    edge.loop.soon(gate.set)


async def test_creates_beyond_the_bound_are_told_to_come_again() -> None:
    with running_edge(max_creates=2) as edge:
        gate_creates(edge)
        async with aiohttp.ClientSession(edge.url, headers=CLIENT) as session:

            async def create() -> tuple[int, str | None]:
                async with session.post("/v1/sandboxes", json={"id": "box", "image": "i"}) as answer:
                    if answer.status == 503:
                        open_gate(edge)
                    return answer.status, answer.headers.get("retry-after")

            answers = sorted(await asyncio.gather(*(create() for _ in range(3))), key=str)
            assert answers == [(201, None), (201, None), (503, "2")]
            # What was let in gave its place back.
            assert await create() == (201, None)


async def test_node_traffic_passes_an_overloaded_gateway() -> None:
    with running_edge(max_requests=1) as edge:
        async with aiohttp.ClientSession(edge.url, headers=CLIENT) as session:
            held = asyncio.ensure_future(session.get(f"/v1/exec/{SESSION}/events?wait_seconds=15"))
            await asyncio.to_thread(edge.loop.call, edge.node.waiting.wait())
            async with session.get("/v1/sandboxes") as answer:
                assert answer.status == 503
                assert (await answer.json())["code"] == "busy"
            async with session.get("/v1/nodes", headers={"X-UCloud-Sandbox-Token": "operator-secret"}) as answer:
                assert answer.status == 200
            edge.loop.soon(edge.node.release.set)
            (await held).release()


@pytest.mark.parametrize(
    ("method", "path", "body", "again"),
    [
        ("GET", f"/v1/exec/{SESSION}/events?wait_seconds=15", None, True),
        ("POST", "/v1/sandboxes", {"id": "box", "image": "i"}, True),
        ("POST", "/v1/sandboxes/box/exec?wait_seconds=15", OLD_SDK_EXEC, False),
    ],
)
def test_a_stop_ends_waits_with_a_word(method: str, path: str, body: Any, again: bool) -> None:
    with running_edge(stop_grace=0.0) as edge:
        gate_creates(edge)
        edge.node.hold = True
        answers: list[requests.Response] = []

        def wait() -> None:
            answers.append(call(edge, method, path, json=body))

        caller = threading.Thread(target=wait)
        with Lines("gateway.access") as lines:
            caller.start()
            if path == "/v1/sandboxes":
                edge.loop.call(_creating(edge))
            else:
                edge.loop.call(edge.node.waiting.wait())
            edge.loop.call(edge.gateway.stopping.stop())
            assert " 503 " in lines.next().getMessage()
        caller.join(10)
        told = body_of(answers[0])
        assert (told.code, told.retryable) == (ErrorCode.BUSY, again)
        assert answers[0].headers["retry-after"] == "1"


async def _creating(edge: Edge) -> None:
    while not edge.services.creating:
        await asyncio.sleep(0.001)


def test_a_stop_cuts_streams() -> None:
    with running_edge(stop_grace=0.0) as edge, call(edge, "GET", f"/v1/exec/{SESSION}/stream", stream=True) as answer:
        lines = answer.iter_lines(chunk_size=1)
        next(lines)
        edge.loop.call(edge.gateway.stopping.stop())
        with pytest.raises(requests.exceptions.ChunkedEncodingError):
            list(lines)
