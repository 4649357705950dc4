"""Calls on the wire: what is retried, what is not, and how connections are used."""

import io
import os
import socket
import threading

import pytest

from gateway.wire.errors import ErrorCode
from gateway.wire.exec import ExecRequest
from tests.fakes.gateway import Gateway, error
from tests.fakes.scripted import Drop, Reply
from ucloud_sandboxes_sdk import (
    BusyError,
    DeadlineExceededError,
    FileNotFoundInSandboxError,
    NodeUnreachableError,
    SandboxApiError,
    SandboxClient,
    SandboxHandle,
    TransportError,
)
from ucloud_sandboxes_sdk.errors import error_from_answer
from ucloud_sandboxes_sdk.transport import Backoff, Deadline, may_retry


def test_backoff_doubles_up_to_the_cap_with_jitter() -> None:
    backoff = Backoff(base=1.0, cap=4.0)
    assert [backoff.delay(n, None, 0.0) for n in range(4)] == [0.5, 1.0, 2.0, 2.0]
    assert backoff.delay(50, None, 0.999) == pytest.approx(4.0, abs=0.01)


def test_backoff_respects_retry_after() -> None:
    assert Backoff().delay(0, 7.0, 0.0) == 7.0
    assert 7.0 < Backoff().delay(0, 7.0, 0.9) <= 7.0 * 1.25


@pytest.mark.parametrize(
    ("status", "body", "safe", "again"),
    [
        (503, {"retryable": True}, True, True),
        (503, {"retryable": False}, True, False),
        (503, {}, True, True),
        (502, {"error": "<html>"}, True, True),
        (500, {}, True, False),
        (409, {"retryable": True}, True, True),
        (404, {}, True, False),
        (503, {"retryable": True}, False, False),
        (503, {"retryable": True, "begun": False}, False, True),
        (503, {"retryable": False, "begun": False}, False, False),
    ],
)
def test_only_safe_calls_are_retried_and_only_if_transient(status: int, body: object, safe: bool, again: bool) -> None:
    assert may_retry(error_from_answer(status, body, {}), safe=safe) is again


def test_call_that_never_left_may_always_be_retried() -> None:
    assert may_retry(TransportError("refused", sent=False), safe=False)
    assert not may_retry(TransportError("reset"), safe=False)
    assert may_retry(TransportError("reset"), safe=True)


def test_deadline_runs_on_its_clock_and_stops_at_zero() -> None:
    now = [10.0]
    deadline = Deadline.after(5.0, lambda: now[0])
    now[0] = 12.0
    assert deadline.remaining() == 3.0
    now[0] = 99.0
    assert deadline.remaining() == 0.0


@pytest.mark.parametrize("failure", [error(ErrorCode.BUSY), Reply(502, b"<html>bad gateway"), Drop()])
def test_reads_and_deletes_are_retried(
    client: SandboxClient, gateway: Gateway, sandbox: SandboxHandle, failure: Reply
) -> None:
    gateway.next("GET", f"/{sandbox.id}", failure, failure)
    gateway.next("DELETE", f"/{sandbox.id}", failure)
    assert sandbox.refresh()["id"] == sandbox.id
    assert sandbox.delete()["ok"] is True
    assert len(gateway.sent("GET", f"/{sandbox.id}")) == 3
    assert len(gateway.sent("DELETE", f"/{sandbox.id}")) == 2


@pytest.mark.parametrize("failure", [error(ErrorCode.BUSY), Reply(503, b""), Drop()])
def test_calls_that_are_not_idempotent_are_sent_once(
    client: SandboxClient, gateway: Gateway, sandbox: SandboxHandle, failure: Reply
) -> None:
    session = gateway.add_session(sandbox.id, ExecRequest(command=["cat"], stdin=True)).session.id
    for path in ("/exec", "/restart", "/stdin", "/signal"):
        gateway.next("POST", path, *[failure] * 3)
    gateway.next("PUT", "/files", *[failure] * 3)
    for call in (
        lambda: sandbox.exec(["true"]),
        sandbox.restart,
        lambda: client.write_exec_stdin(session, "x"),
        lambda: client.signal_exec(session),
        lambda: sandbox.upload_file("/f", b"x"),
    ):
        seen = len(gateway.requests)
        with pytest.raises(SandboxApiError):
            call()
        assert len(gateway.requests) == seen + 1


def test_what_was_not_begun_is_sent_again_whatever_it_is(
    gateway: Gateway, client: SandboxClient, sandbox: SandboxHandle, naps: list[float]
) -> None:
    away = error(ErrorCode.NODE_UNREACHABLE, headers={"Retry-After": "2"}, begun=False)
    gateway.next("POST", "/exec", away, away)
    assert sandbox.exec(["true"]).exit_code == 0
    assert len(gateway.sent("POST", "/exec")) == 3
    assert len(naps) == 2 and min(naps) >= 2


def test_a_stream_that_the_service_may_have_read_from_is_not_sent_again(
    gateway: Gateway, sandbox: SandboxHandle
) -> None:
    gateway.next("PUT", "/files", *[error(ErrorCode.NODE_UNREACHABLE, begun=False)] * 2)
    with pytest.raises(NodeUnreachableError):
        sandbox.upload_file("/f", io.BytesIO(b"x"))
    assert len(gateway.sent("PUT", "/files")) == 1


def test_attempts_are_bounded(client: SandboxClient, gateway: Gateway, naps: list[float]) -> None:
    gateway.next("GET", "/healthz", *[error(ErrorCode.BUSY)] * 20)
    met: list[SandboxApiError] = []
    client.transport.on_retry = met.append
    with pytest.raises(SandboxApiError):
        client.health()
    assert len(gateway.requests) == 8
    assert len(met) == 7 and all(isinstance(each, BusyError) for each in met)
    assert naps == sorted(naps)


def test_refused_connection_is_retried_even_for_exec(naps: list[float]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: refuses
        client = SandboxClient(f"http://127.0.0.1:{unused.getsockname()[1]}", api_token="x")
        client.transport.sleep = naps.append
        with pytest.raises(TransportError) as caught:
            client.exec("a", ["true"])
    assert caught.value.sent is False
    assert len(naps) == 7


def test_silence_ends_at_the_deadline(client: SandboxClient, gateway: Gateway) -> None:
    release = threading.Event()
    gateway.next("GET", "/healthz", Reply(hang=release))
    client.timeout_seconds = 0.2
    with pytest.raises(DeadlineExceededError):
        client.health()
    release.set()


def test_effect_is_in_doubt_only_for_a_call_that_changes_something(client: SandboxClient, gateway: Gateway) -> None:
    release = threading.Event()
    client.timeout_seconds = 0.2
    doubtful = []
    for method, path, call in (
        ("GET", "/healthz", client.health),
        ("POST", "/sandboxes/a/pause", lambda: client.pause_sandbox("a")),
    ):
        gateway.next(method, path, Reply(hang=release))
        with pytest.raises(DeadlineExceededError) as caught:
            call()
        doubtful.append("took effect" in str(caught.value))
    release.set()
    assert doubtful == [False, True]


@pytest.mark.parametrize("body", [b"[]", b"null", b"<html>", b"\xff"])
def test_response_that_is_no_json_object_is_an_error(client: SandboxClient, gateway: Gateway, body: bytes) -> None:
    gateway.next("GET", "/healthz", Reply(body=body))
    with pytest.raises(SandboxApiError):
        client.health()


def test_redirects_are_not_followed(client: SandboxClient, gateway: Gateway) -> None:
    gateway.next("GET", "/healthz", Reply(302, b"", {"Location": f"{gateway.url}/elsewhere"}))
    with pytest.raises(SandboxApiError) as caught:
        client.health()
    assert caught.value.status_code == 302
    assert len(gateway.requests) == 1


def test_one_connection_is_reused(client: SandboxClient, gateway: Gateway, sandbox: SandboxHandle) -> None:
    for _ in range(5):
        sandbox.exec(["true"])
        sandbox.exec(["cat"], input="x")  # ends with a stream
        sandbox.upload_file("/f", b"x" * 100_000)
        sandbox.download_file("/f")
        with pytest.raises(FileNotFoundInSandboxError):
            sandbox.download_file("/missing")
    assert gateway.connections == 1


def test_connection_idle_for_long_is_not_reused(
    client: SandboxClient, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.health()
    monkeypatch.setattr("ucloud_sandboxes_sdk.transport.MAX_IDLE", 0.0)
    client.health()
    assert gateway.connections == 2


def test_connections_are_shared_between_threads(client: SandboxClient, gateway: Gateway) -> None:
    failures: list[SandboxApiError] = []

    def work() -> None:
        try:
            for _ in range(20):
                client.health()
        except SandboxApiError as problem:
            failures.append(problem)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(gateway.requests) == 160
    assert gateway.connections <= 8


def test_fork_gets_connections_of_its_own(client: SandboxClient, monkeypatch: pytest.MonkeyPatch) -> None:
    client.health()
    before = client.transport._connections()
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    assert client.transport._connections() is not before
