"""Sandboxes through the client: what is sent, what is sent again, and what is not."""

import os
import socket
import threading

import pytest

from gateway.wire.errors import ErrorCode
from gateway.wire.exec import ExecRequest
from tests.fakes.gateway import TOKEN, Drop, Gateway, Reply, error
from ucloud_sandboxes_sdk import (
    AuthenticationError,
    BusyError,
    CreateProgress,
    DeadlineExceededError,
    FileNotFoundInSandboxError,
    Image,
    InvalidRequestError,
    NeverFitsError,
    NoRoomError,
    NotFoundError,
    SandboxApiError,
    SandboxClient,
    SandboxHandle,
    SandboxSpec,
    SpecConflictError,
    TransportError,
)

IMAGE = Image.from_registry("busybox:1.36")
NO_ROOM = error(ErrorCode.NO_ROOM, headers={"Retry-After": "2"})


def test_life_of_a_sandbox(client: SandboxClient, gateway: Gateway) -> None:
    with client.create_sandbox(SandboxSpec(id="one", image=IMAGE, labels={"team": "a"})) as sandbox:
        assert (sandbox.id, sandbox.state) == ("one", "running")
        assert sandbox.pause()["state"] == "paused"
        assert sandbox.resume()["state"] == "running"
        assert sandbox.restart()["generation"] == 2
        assert sandbox.refresh()["generation"] == 2
        assert sandbox.usage().pids == 2
        assert client.attach("one").record == sandbox.record
    assert gateway.sandboxes == {}
    assert client.get_sandbox("one") is None
    with pytest.raises(NotFoundError):
        sandbox.refresh()
    assert sandbox.delete()["deleted"] is False


def test_keywords_alone_make_a_sandbox_with_an_id_of_its_own(client: SandboxClient) -> None:
    first, second = (client.create_sandbox(image=IMAGE, cpus=2) for _ in range(2))
    assert first.id != second.id
    assert first.record["spec"]["cpus"] == 2


def test_the_list_is_read_page_by_page_and_filtered_by_the_service(client: SandboxClient, gateway: Gateway) -> None:
    gateway.page = 2
    for number in range(5):
        client.create_sandbox(id=f"n{number}", image=IMAGE, labels={"odd": str(number % 2)})
    assert [record["id"] for record in client.list_sandboxes()] == ["n0", "n1", "n2", "n3", "n4"]
    assert [record["id"] for record in client.list_sandboxes(labels={"odd": "1"})] == ["n1", "n3"]
    assert client.list_sandboxes(state="paused") == []


def test_logs_are_read_to_the_end(client: SandboxClient, gateway: Gateway, sandbox: SandboxHandle) -> None:
    gateway.logs = {"stdout": b"\xff0123456789", "stderr": b"0123456789a"}
    assert b"".join(sandbox.iter_logs()) == b"\xff0123456789"
    assert sandbox.logs("stderr", offset=9).data == b"9a"


def test_a_create_waits_for_room_and_tells_why(client: SandboxClient, gateway: Gateway, naps: list[float]) -> None:
    busy = error(ErrorCode.CREATE_IN_PROGRESS)
    gateway.next("POST", "/v1/sandboxes", NO_ROOM, Drop(), busy, error(ErrorCode.NODE_UNREACHABLE))
    told: list[CreateProgress] = []
    sandbox = client.create_sandbox(SandboxSpec(id="patient", image=IMAGE), on_progress=told.append)
    assert sandbox.state == "running"
    assert [type(step.error).__name__ for step in told] == [
        "NoRoomError",
        "TransportError",
        "CreateInProgressError",
        "NodeUnreachableError",
    ]
    assert naps[0] >= 2.0  # Retry-After
    assert {request.body for request in gateway.sent("POST", "/v1/sandboxes")} == {
        gateway.requests[0].body
    }  # the same wish every time


def test_a_create_gives_up_at_its_deadline_with_the_last_reason(client: SandboxClient, gateway: Gateway) -> None:
    gateway.next("POST", "/v1/sandboxes", *[NO_ROOM] * 3)
    with pytest.raises(NoRoomError):
        client.create_sandbox(image=IMAGE, request_timeout_seconds=1.0)
    assert len(gateway.requests) == 1  # two seconds do not fit into the one that is left


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.NEVER_FITS, NeverFitsError),
        (ErrorCode.INVALID_REQUEST, InvalidRequestError),
        (ErrorCode.SPEC_CONFLICT, SpecConflictError),
    ],
)
def test_a_create_that_cannot_pass_fails_at_once(
    client: SandboxClient, gateway: Gateway, code: ErrorCode, kind: type[SandboxApiError]
) -> None:
    gateway.next("POST", "/v1/sandboxes", error(code))
    with pytest.raises(kind):
        client.create_sandbox(image=IMAGE)
    assert len(gateway.requests) == 1


def test_the_same_id_with_another_spec_is_refused(client: SandboxClient) -> None:
    client.create_sandbox(SandboxSpec(id="same", image=IMAGE))
    assert client.create_sandbox(SandboxSpec(id="same", image=IMAGE)).id == "same"
    with pytest.raises(SpecConflictError):
        client.create_sandbox(SandboxSpec(id="same", image=IMAGE, cpus=3))


@pytest.mark.parametrize("failure", [error(ErrorCode.BUSY), Reply(502, b"<html>bad gateway"), Drop()])
def test_reads_and_deletes_are_repeated(
    client: SandboxClient, gateway: Gateway, sandbox: SandboxHandle, failure: Reply
) -> None:
    gateway.next("GET", f"/{sandbox.id}", failure, failure)
    gateway.next("DELETE", f"/{sandbox.id}", failure)
    assert sandbox.refresh()["id"] == sandbox.id
    assert sandbox.delete()["ok"] is True
    assert len(gateway.sent("GET", f"/{sandbox.id}")) == 3
    assert len(gateway.sent("DELETE", f"/{sandbox.id}")) == 2


@pytest.mark.parametrize("failure", [error(ErrorCode.BUSY), Reply(503, b""), Drop()])
def test_what_could_happen_twice_is_sent_once(
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


def test_tries_are_bounded(client: SandboxClient, gateway: Gateway, naps: list[float]) -> None:
    gateway.next("GET", "/healthz", *[error(ErrorCode.BUSY)] * 20)
    met: list[SandboxApiError] = []
    client.transport.on_retry = met.append
    with pytest.raises(SandboxApiError):
        client.health()
    assert len(gateway.requests) == 8
    assert len(met) == 7 and all(isinstance(each, BusyError) for each in met)
    assert naps == sorted(naps)


def test_a_refused_connection_is_tried_again_even_for_an_exec(naps: list[float]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: refuses
        client = SandboxClient(f"http://127.0.0.1:{unused.getsockname()[1]}", api_token="x")
        client.transport.sleep = naps.append
        with pytest.raises(TransportError, match="cannot connect") as caught:
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


def test_a_wrong_token_is_said_so(gateway: Gateway) -> None:
    with SandboxClient(gateway.url, api_token="wrong") as client, pytest.raises(AuthenticationError, match="not known"):
        client.list_sandboxes()


@pytest.mark.parametrize("body", [b"[]", b"null", b"<html>", b"\xff"])
def test_an_answer_that_is_no_json_object_is_an_error(client: SandboxClient, gateway: Gateway, body: bytes) -> None:
    gateway.next("GET", "/healthz", Reply(body=body))
    with pytest.raises(SandboxApiError, match="is not a JSON object"):
        client.health()


def test_redirects_are_not_followed(client: SandboxClient, gateway: Gateway) -> None:
    gateway.next("GET", "/healthz", Reply(302, b"", {"Location": f"{gateway.url}/elsewhere"}))
    with pytest.raises(SandboxApiError) as caught:
        client.health()
    assert caught.value.status_code == 302
    assert len(gateway.requests) == 1


def test_one_connection_serves_call_after_call(client: SandboxClient, gateway: Gateway, sandbox: SandboxHandle) -> None:
    for _ in range(5):
        sandbox.exec(["true"])
        sandbox.exec(["cat"], input="x")  # ends with a stream
        sandbox.upload_file("/f", b"x" * 100_000)
        sandbox.download_file("/f")
        with pytest.raises(FileNotFoundInSandboxError):
            sandbox.download_file("/missing")
    assert gateway.connections == 1


def test_a_connection_that_was_idle_for_long_is_not_used_again(
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


def test_ids_are_quoted_in_paths(client: SandboxClient, gateway: Gateway) -> None:
    assert client.get_sandbox("a/../b c") is None
    assert gateway.requests[0].path == "/v1/sandboxes/a%2F..%2Fb%20c"


def test_from_env_names_what_is_missing(monkeypatch: pytest.MonkeyPatch, gateway: Gateway) -> None:
    monkeypatch.delenv("UCLOUD_SANDBOX_URL", raising=False)
    monkeypatch.delenv("UCLOUD_SANDBOX_API_TOKEN", raising=False)
    with pytest.raises(ValueError, match="UCLOUD_SANDBOX_URL and UCLOUD_SANDBOX_API_TOKEN must be set"):
        SandboxClient.from_env()
    monkeypatch.setenv("UCLOUD_SANDBOX_URL", gateway.url + "/")
    with pytest.raises(ValueError, match=r"^UCLOUD_SANDBOX_API_TOKEN must be set"):
        SandboxClient.from_env()
    monkeypatch.setenv("UCLOUD_SANDBOX_API_TOKEN", f" {TOKEN}\n")
    with SandboxClient.from_env() as client:
        assert client.list_sandboxes() == []
        assert TOKEN not in repr(client)


@pytest.mark.parametrize("url", ["", "localhost:8090", "ftp://host", "http://"])
def test_a_base_url_must_be_one(url: str) -> None:
    with pytest.raises(ValueError, match="base URL"):
        SandboxClient(url)


def test_a_fork_gets_connections_of_its_own(client: SandboxClient, monkeypatch: pytest.MonkeyPatch) -> None:
    client.health()
    before = client.transport._connections()
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    assert client.transport._connections() is not before
