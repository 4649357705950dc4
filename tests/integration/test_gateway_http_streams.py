"""Exec and files through the gateway: passed on unchanged, cut when one end breaks, in constant memory."""

import asyncio
import base64
import contextlib
import hashlib
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import requests

from gateway import node_client
from gateway.http.routes import exec, sandboxes
from gateway.node_client import CALL_TIMEOUT, with_wait
from gateway.wire import limits
from gateway.wire.errors import ErrorCode
from gateway.wire.nodes import ExecOrder
from gateway.wire.tokens import TokenScope
from tests.fakes.scripted import Drop, Recorded, Reply, ScriptedServer
from tests.fakes.scripted_node import CHUNK, refusal
from tests.fakes.serving import stopped_server
from tests.integration.gateway_http import SESSION, HttpGateway, LogLines, body_of, in_thread, running_gateway
from ucloud_sandboxes_sdk import SandboxApiError, SandboxClient

OLD_SDK_EXEC = {"command": ["echo", "hi"], "env": {}, "working_dir": None, "stdin": False, "tty": False}
FILES = "/v1/sandboxes/box/files"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpGateway]:
    with running_gateway(tmp_path_factory.mktemp("gateway")) as running:
        yield running


@pytest.fixture
def gateway(shared: HttpGateway) -> HttpGateway:
    shared.new_script()
    return shared


# -- exec -------------------------------------------------------------------------------------------------------------


def test_the_body_of_the_old_sdk_starts_an_exec(gateway: HttpGateway) -> None:
    answer = gateway.call("POST", "/v1/sandboxes/box/exec", json=OLD_SDK_EXEC)
    assert answer.status_code == 201
    assert answer.json()["session"]["id"] == "s"
    (call,) = gateway.script.calls
    order = ExecOrder.model_validate_json(call.body)
    assert (call.path, call.query, order.generation) == ("/v1/sandboxes/box/exec", {"wait_seconds": "0.0"}, 1)
    prefix, generation, sandbox = order.session_id.split(".")
    assert (generation, sandbox) == ("1", "box")
    assert len(prefix.removeprefix("exec-")) == 32
    assert order.exec.command == ["echo", "hi"]


@pytest.mark.parametrize(("asked", "forwarded"), [("5", "5.0"), ("30.0", "20.0"), ("1e9", "20.0")])
def test_waits_are_cut_and_not_refused(gateway: HttpGateway, asked: str, forwarded: str) -> None:
    gateway.loop.soon(gateway.script.release.set)
    path = f"/v1/exec/{SESSION}/events?after=3&limit=5000&wait_seconds={asked}"
    assert gateway.call("GET", path).status_code == 200
    gateway.call("POST", f"/v1/sandboxes/box/exec?wait_seconds={asked}", json=OLD_SDK_EXEC)
    events, start = gateway.script.calls
    assert events.query == {"after": "3", "limit": "1000", "wait_seconds": forwarded}
    assert start.query == {"wait_seconds": forwarded}


def test_a_session_is_routed_by_its_generation(gateway: HttpGateway) -> None:
    session = f"exec-{'a' * 32}.1.box"
    assert gateway.call("GET", f"/v1/exec/{session}").json()["session"]["id"] == "s"
    assert [call.path for call in gateway.script.calls] == [f"/v1/exec/{session}"]
    other = gateway.call("GET", f"/v1/exec/exec-{'a' * 32}.7.box")
    assert (other.status_code, body_of(other).code) == (410, ErrorCode.EXEC_LOST)


@pytest.mark.parametrize(
    ("what", "body"),
    [
        ("stdin", {"data": "hello", "eof": True}),
        ("stdin", {"data_base64": base64.b64encode(b"\xff\0").decode()}),
        ("close-stdin", None),
        ("signal", {"signal": 9}),
    ],
)
def test_orders_to_a_session(gateway: HttpGateway, what: str, body: dict[str, Any] | None) -> None:
    assert gateway.call("POST", f"/v1/exec/{SESSION}/{what}", json=body).status_code == 200
    (call,) = gateway.script.calls
    assert call.path == f"/v1/exec/{SESSION}/{what}"
    forwarded = json.loads(call.body) if call.body else None
    assert body is None or forwarded is not None
    assert all(forwarded[key] == value for key, value in (body or {}).items())


def test_close_stdin_of_the_old_async_sdk(gateway: HttpGateway) -> None:
    headers = {**gateway.client, "Content-Type": "application/octet-stream"}
    assert gateway.call("POST", f"/v1/exec/{SESSION}/close-stdin", headers=headers, data=b"").status_code == 200


def test_input_reaches_the_sessions_of_a_sandbox_that_ended(gateway: HttpGateway) -> None:
    gateway.create("ended")
    gateway.beat()
    gateway.node.end("ended")
    gateway.beat()
    assert gateway.call("GET", "/v1/sandboxes/ended").json()["sandbox"]["state"] == "exited"
    path = f"/v1/exec/exec-{'0' * 32}.1.ended/stdin"
    assert gateway.call("POST", path, json={"data": "late"}).status_code == 200
    assert [call.path for call in gateway.script.calls] == [path]


def test_a_lost_sandbox_says_why(gateway: HttpGateway) -> None:
    gateway.create("lost")
    gateway.beat()
    del gateway.node.items["lost"]
    gateway.beat()
    session = f"exec-{'0' * 32}.1.lost"
    reason = gateway.call("GET", "/v1/sandboxes/lost").json()["sandbox"]["reason"]
    assert reason
    for answer in (
        gateway.call("POST", "/v1/sandboxes/lost/exec", json=OLD_SDK_EXEC),
        gateway.call("GET", f"/v1/exec/{session}/events"),
        gateway.call("GET", f"/v1/exec/{session}/stream"),
        gateway.call("GET", "/v1/sandboxes/lost/files?path=/x"),
        gateway.call("PUT", "/v1/sandboxes/lost/files?path=/x", data=b"x"),
    ):
        assert answer.status_code == 409
        body = body_of(answer)
        assert (body.code, body.state, body.reason) == (ErrorCode.SANDBOX_NOT_RUNNING, "lost", reason)


def test_a_long_poll_ends_at_the_node_when_its_caller_leaves(gateway: HttpGateway) -> None:
    with pytest.raises(requests.Timeout):
        gateway.call("GET", f"/v1/exec/{SESSION}/events?wait_seconds=15", timeout=0.3)
    gateway.loop.call(gateway.script.left.wait())


def test_a_stream_arrives_as_it_happens(gateway: HttpGateway) -> None:
    with (
        gateway.touches() as touches,
        gateway.call("GET", f"/v1/exec/{SESSION}/stream?after=2", stream=True) as answer,
    ):
        assert answer.headers["content-type"] == "application/x-ndjson"
        lines = answer.iter_lines(chunk_size=1)
        assert next(lines) == b'{"event":1}'
        assert not gateway.script.release.is_set()
        gateway.loop.soon(gateway.script.release.set)
        assert list(lines) == [b'{"session":2}']
    assert [call.query for call in gateway.script.calls] == [{"after": "2"}]
    assert touches.count("box") >= 2


def test_a_stream_ends_at_the_node_when_its_caller_leaves(gateway: HttpGateway) -> None:
    with gateway.call("GET", f"/v1/exec/{SESSION}/stream", stream=True) as answer:
        next(answer.iter_lines(chunk_size=1))
    gateway.loop.call(gateway.script.left.wait())


# -- errors of nodes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "becomes"),
    [
        (ErrorCode.EXEC_NOT_FOUND, ErrorCode.EXEC_NOT_FOUND),
        (ErrorCode.SANDBOX_NOT_FOUND, ErrorCode.SANDBOX_NOT_RUNNING),
        (ErrorCode.UNAUTHORIZED, ErrorCode.NODE_UNREACHABLE),
    ],
)
def test_a_refusal_of_the_node_is_passed_on(gateway: HttpGateway, code: ErrorCode, becomes: ErrorCode) -> None:
    gateway.script.answer = refusal(code)
    for path in (f"/v1/exec/{SESSION}/events", f"/v1/exec/{SESSION}/stream", "/v1/sandboxes/box/logs"):
        assert body_of(gateway.call("GET", path)).code is becomes


def test_a_node_that_is_not_there(gateway: HttpGateway) -> None:
    with gateway.node_at("http://127.0.0.1:9"):
        for answer in (
            gateway.call("GET", f"/v1/exec/{SESSION}"),
            gateway.call("GET", f"/v1/exec/{SESSION}/stream"),
            gateway.call("GET", f"{FILES}?path=/x"),
            gateway.call("PUT", f"{FILES}?path=/x", data=bytes(limits.MIB)),
            # Nothing was sent, so even a start may be tried again.
            gateway.call("POST", "/v1/sandboxes/box/exec", json=OLD_SDK_EXEC),
        ):
            assert answer.status_code == 503
            body = body_of(answer)
            assert (body.code, body.retryable, body.begun) == (ErrorCode.NODE_UNREACHABLE, True, False)
            assert int(answer.headers["retry-after"]) > 0
            assert "127.0.0.1" not in body.error
            assert "retry-after" in answer.headers


class BreaksOff:
    """A node that takes an exec and breaks off, and afterwards answers questions about the session."""

    def __init__(self, later: Reply) -> None:
        self.later = later
        self.seen: list[Recorded] = []

    def __call__(self, request: Recorded) -> Reply:
        self.seen.append(request)
        return Drop() if request.method == "POST" else self.later


def test_the_sdk_sends_an_exec_again_that_met_no_node(gateway: HttpGateway) -> None:
    met: list[str | None] = []
    with (
        contextlib.ExitStack() as away,
        SandboxClient(gateway.url, api_token=gateway.secrets[TokenScope.CLIENT]) as client,
    ):
        away.enter_context(gateway.node_at("http://127.0.0.1:9"))

        def back(error: SandboxApiError) -> None:
            met.append(error.code)
            away.close()

        client.transport.on_retry = back
        client.transport.sleep = lambda _: None
        session = client.start_exec("box", ["true"]).session
    assert session["id"]
    assert set(met) == {"node_unreachable"}


def test_a_start_whose_answer_was_lost_is_found_again(gateway: HttpGateway) -> None:
    node = BreaksOff(Reply(200, b'{"session": {"id": "found"}, "events": []}'))
    with ScriptedServer(node) as server, gateway.node_at(server.url):
        answer = gateway.call("POST", "/v1/sandboxes/box/exec", json=OLD_SDK_EXEC)
    assert (answer.status_code, answer.json()["session"]["id"]) == (201, "found")
    session_id = node.seen[0].json()["session_id"]
    assert [(r.method, r.path) for r in node.seen[1:]] == [("GET", f"/v1/exec/{session_id}/events")]


@pytest.mark.parametrize("later", [Drop(), Reply(404, bytes(refusal(ErrorCode.EXEC_NOT_FOUND).body))])
def test_a_start_whose_outcome_is_unknown_is_not_retryable(gateway: HttpGateway, later: Reply) -> None:
    node = BreaksOff(later)
    with ScriptedServer(node) as server, gateway.node_at(server.url):
        answer = gateway.call("POST", "/v1/sandboxes/box/exec", json=OLD_SDK_EXEC)
    body = body_of(answer)
    assert (body.code, body.retryable) == (ErrorCode.NODE_UNREACHABLE, False)
    assert "retry-after" not in answer.headers
    assert [r.method for r in node.seen].count("POST") == 1


def test_all_waits_of_a_call_together_are_shorter_than_clients_in_the_field_wait() -> None:
    longest = with_wait(limits.MAX_LONG_POLL, CALL_TIMEOUT - exec.LOOK_TIMEOUT)
    assert longest > limits.MAX_LONG_POLL
    assert longest + exec.LOOK_TIMEOUT <= CALL_TIMEOUT < 30
    assert limits.MAX_LONG_POLL < with_wait(limits.MAX_LONG_POLL) <= CALL_TIMEOUT
    assert with_wait(0) == node_client.ANSWER_TIMEOUT


def test_a_start_on_a_node_that_hangs_reports_all_its_waits(
    gateway: HttpGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_client, "ANSWER_TIMEOUT", 0.25)
    monkeypatch.setattr(exec, "LOOK_TIMEOUT", 0.125)
    with stopped_server() as url, gateway.node_at(url):
        answer = gateway.call("POST", "/v1/sandboxes/box/exec?wait_seconds=0.25", json=OLD_SDK_EXEC)
    body = body_of(answer)
    assert (answer.status_code, body.code, body.retryable) == (504, ErrorCode.TIMEOUT, False)
    assert "0.5 s" in body.error
    assert "0.125 s" in body.error


@pytest.mark.parametrize("path", [f"/v1/exec/{SESSION}/stream", f"{FILES}?path=/zeros-1"])
def test_a_stream_from_a_node_that_hangs_ends_before_its_first_byte(
    gateway: HttpGateway, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    for module in (exec, sandboxes):
        monkeypatch.setattr(module, "CALL_TIMEOUT", 0.25)
    with stopped_server() as url, gateway.node_at(url):
        body = body_of(gateway.call("GET", path))
    assert (body.code, body.retryable) == (ErrorCode.TIMEOUT, True)


def test_an_upload_to_a_node_that_takes_nothing_ends(gateway: HttpGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandboxes, "IDLE_TIMEOUT", 0.25)
    with stopped_server() as url, gateway.node_at(url):
        body = body_of(gateway.call("PUT", f"{FILES}?path=/x", data=bytes(64 * limits.MIB)))
    assert (body.code, body.retryable) == (ErrorCode.TIMEOUT, True)


# -- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, limits.MIB, 20 * limits.MIB + 7])
def test_a_file_up(gateway: HttpGateway, size: int) -> None:
    content = bytes(range(256)) * (size // 256) + bytes(size % 256)
    answer = gateway.call("PUT", FILES, params={"path": "a b/ü'\"\n+%&=#;"}, data=content)
    assert answer.status_code == 200
    assert answer.json() == {"ok": True, "size": size, "path": hashlib.sha256(content).hexdigest()}
    (call,) = gateway.script.calls
    assert call.query == {"path": "a b/ü'\"\n+%&=#;", "generation": "1"}
    assert call.headers["content-length"] == str(size)


@pytest.mark.parametrize("size", [0, 1, limits.MIB, 20 * limits.MIB + 7])
def test_a_file_down(gateway: HttpGateway, size: int) -> None:
    answer = gateway.call("GET", f"{FILES}?path=/zeros-{size}")
    assert answer.status_code == 200
    assert answer.headers["content-length"] == str(size)
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.content == bytes(size)


def test_refusals_come_before_the_first_byte(gateway: HttpGateway) -> None:
    for answer in (
        gateway.call("GET", f"{FILES}?path=/refused"),
        gateway.call("PUT", f"{FILES}?path=/refused", data=bytes(30 * limits.MIB)),
    ):
        assert answer.status_code == 404
        assert body_of(answer).code is ErrorCode.FILE_NOT_FOUND


def test_a_node_that_dies_in_the_middle_cuts_the_download(gateway: HttpGateway) -> None:
    with LogLines("gateway.http") as lines:
        with pytest.raises(requests.exceptions.ChunkedEncodingError):
            gateway.call("GET", f"{FILES}?path=/cut-{8 * limits.MIB}")
        assert lines.next("stream cut")
    # The gateway itself keeps serving.
    assert gateway.call("GET", f"{FILES}?path=/zeros-10").content == bytes(10)


def test_a_stream_that_dies_in_the_middle_is_cut_and_not_ended(gateway: HttpGateway) -> None:
    reply = Reply(200, headers={"Content-Type": "application/x-ndjson"}, chunks=[b'{"event":1}\n'], cut=0)
    with (
        ScriptedServer(lambda _: reply) as server,
        gateway.node_at(server.url),
        pytest.raises(requests.exceptions.ChunkedEncodingError),
    ):
        gateway.call("GET", f"/v1/exec/{SESSION}/stream")


def test_a_client_that_leaves_during_a_download_frees_the_node(gateway: HttpGateway) -> None:
    with gateway.call("GET", f"{FILES}?path=/held-{100 * limits.MIB}", stream=True) as answer:
        answer.raw.read(1)
    gateway.loop.call(gateway.script.left.wait())


@pytest.mark.parametrize(
    "body", [b"Content-Length: 1000000\r\n\r\n" + bytes(1000), b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"]
)
def test_an_upload_whose_client_leaves_never_completes(gateway: HttpGateway, body: bytes) -> None:
    token = gateway.secrets[TokenScope.CLIENT]
    with socket.create_connection(gateway.address, timeout=10) as raw:
        head = f"PUT {FILES}?path=/x HTTP/1.1\r\nHost: x\r\nX-UCloud-Sandbox-Token: {token}\r\n"
        raw.sendall(head.encode() + body)
        gateway.loop.call(gateway.script.waiting.wait())
    gateway.loop.call(gateway.script.left.wait())
    assert gateway.script.upload_whole is False


def test_a_slow_reader_holds_the_node_back(gateway: HttpGateway) -> None:
    """What a client does not read stays at the node: the gateway holds only its buffers."""
    size = 64 * limits.MIB
    with gateway.call("GET", f"{FILES}?path=/zeros-{size}", stream=True) as answer:
        answer.raw.read(1)
        # Other calls pass meanwhile; each round trip gives the stream every chance to run ahead.
        for _ in range(20):
            assert gateway.call("GET", f"{FILES}?path=/zeros-10").status_code == 200
        assert gateway.script.sent < size // 2
        assert len(answer.raw.read()) == size - 1


def test_a_slow_node_holds_the_client_back(gateway: HttpGateway) -> None:
    size = 64 * limits.MIB
    taken = 0

    def chunks() -> Iterator[bytes]:
        nonlocal taken
        for _ in range(size // CHUNK):
            yield bytes(CHUNK)
            taken += CHUNK

    with ThreadPoolExecutor(1) as pool:
        upload = pool.submit(gateway.call, "PUT", f"{FILES}?path=/slow", data=chunks())
        gateway.loop.call(gateway.script.waiting.wait())
        for _ in range(20):
            assert gateway.call("GET", f"/v1/exec/{SESSION}").status_code == 200
        assert taken < size // 2
        assert not upload.done()
        gateway.loop.soon(gateway.script.release.set)
        assert upload.result().json()["size"] == size


# -- many at once, overload, stop -------------------------------------------------------------------------------------


async def test_many_long_polls_do_not_hinder_short_calls(gateway: HttpGateway) -> None:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(gateway.url, headers=gateway.client, connector=connector) as session:

        async def poll() -> int:
            async with session.get(f"/v1/exec/{SESSION}/events?wait_seconds=15") as answer:
                return answer.status

        polls = [asyncio.ensure_future(poll()) for _ in range(150)]
        async with session.get("/v1/sandboxes/box") as answer:
            assert answer.status == 200
        assert not any(task.done() for task in polls)
        gateway.loop.soon(gateway.script.release.set)
        assert await asyncio.gather(*polls) == [200] * 150


async def test_creates_beyond_the_bound_are_refused_for_now(tmp_path: Path) -> None:
    with running_gateway(tmp_path, max_creates=6) as gateway:
        gateway.script.hold_orders = True
        async with aiohttp.ClientSession(gateway.url, headers=gateway.client) as session:

            async def create(name: str) -> tuple[int, str | None]:
                async with session.post("/v1/sandboxes", json={"id": name, "image": "i"}) as answer:
                    if answer.status == 503:
                        gateway.loop.soon(gateway.script.release.set)
                    return answer.status, answer.headers.get("retry-after")

            answers = await asyncio.gather(*(create(name) for name in ("a", "b", "c")))
            assert sorted(answers, key=str) == [(201, None), (201, None), (503, "2")]
            # The creates that were let in have given their places back.
            assert await create("d") == (201, None)


async def test_node_traffic_passes_an_overloaded_gateway(tmp_path: Path) -> None:
    with running_gateway(tmp_path, max_requests=1) as gateway:
        async with aiohttp.ClientSession(gateway.url, headers=gateway.client) as session:
            held = asyncio.ensure_future(session.get(f"/v1/exec/{SESSION}/events?wait_seconds=15"))
            await asyncio.to_thread(gateway.loop.call, gateway.script.waiting.wait())
            async with session.get("/v1/sandboxes") as answer:
                assert answer.status == 503
                assert (await answer.json())["code"] == "busy"
            await asyncio.to_thread(gateway.beat)
            gateway.loop.soon(gateway.script.release.set)
            (await held).release()


@pytest.mark.parametrize(
    ("method", "path", "content", "repeatable"),
    [
        ("GET", f"/v1/exec/{SESSION}/events?wait_seconds=15", None, True),
        ("POST", "/v1/sandboxes", {"id": "held", "image": "i"}, True),
        ("POST", "/v1/sandboxes/box/exec?wait_seconds=15", OLD_SDK_EXEC, False),
    ],
)
def test_a_stop_ends_waits_with_an_answer(
    tmp_path: Path, method: str, path: str, content: Any, repeatable: bool
) -> None:
    with running_gateway(tmp_path, stop_grace=0.0) as gateway:
        gateway.script.hold = gateway.script.hold_orders = True
        answers: list[requests.Response] = []
        caller = in_thread(lambda: answers.append(gateway.call(method, path, json=content)))
        gateway.loop.call(gateway.script.waiting.wait())
        gateway.loop.call(gateway.gateway.graceful_stop.stop())
        caller.join(10)
        body = body_of(answers[0])
        assert (answers[0].status_code, body.code, body.retryable) == (503, ErrorCode.BUSY, repeatable)
        assert answers[0].headers["retry-after"] == "1"
        gateway.loop.soon(gateway.script.release.set)


def test_a_stop_cuts_streams(tmp_path: Path) -> None:
    with (
        running_gateway(tmp_path, stop_grace=0.0) as gateway,
        gateway.call("GET", f"/v1/exec/{SESSION}/stream", stream=True) as answer,
    ):
        lines = answer.iter_lines(chunk_size=1)
        next(lines)
        gateway.loop.call(gateway.gateway.graceful_stop.stop())
        with pytest.raises(requests.exceptions.ChunkedEncodingError):
            list(lines)
