"""Sandboxes through the client: creating, finding and ending them."""

import asyncio
import signal
import threading
from dataclasses import replace

import pytest

from gateway.wire.errors import ErrorCode
from gateway.wire.states import DeathReason, SandboxState
from tests.fakes.gateway import Gateway, error
from tests.fakes.scripted import Drop, Reply
from tests.waiting import wait_until
from ucloud_sandboxes_sdk import (
    AuthenticationError,
    CreateProgress,
    Image,
    InvalidRequestError,
    NeverFitsError,
    NoRoomError,
    NotFoundError,
    PolicyDeniedError,
    QuotaExceededError,
    SandboxApiError,
    SandboxClient,
    SandboxHandle,
    SandboxSpec,
    SpecConflictError,
    StartError,
)

IMAGE = Image.from_registry("busybox:1.36")
NO_ROOM = error(ErrorCode.NO_ROOM, headers={"Retry-After": "2"})


def test_lifecycle(client: SandboxClient, gateway: Gateway) -> None:
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


def test_create_by_keywords_generates_id(client: SandboxClient) -> None:
    first, second = (client.create_sandbox(image=IMAGE, cpus=2) for _ in range(2))
    assert first.id != second.id
    assert first.record["spec"]["cpus"] == 2


def test_list_reads_all_pages_and_filters_on_the_service(client: SandboxClient, gateway: Gateway) -> None:
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


def test_create_retries_and_reports_progress(client: SandboxClient, gateway: Gateway, naps: list[float]) -> None:
    busy = error(ErrorCode.CREATE_IN_PROGRESS)
    gateway.next("POST", "/v1/sandboxes", NO_ROOM, Drop(), busy, error(ErrorCode.NODE_UNREACHABLE))
    reported: list[CreateProgress] = []
    sandbox = client.create_sandbox(SandboxSpec(id="patient", image=IMAGE), on_progress=reported.append)
    assert sandbox.state == "running"
    assert [type(step.error).__name__ for step in reported] == [
        "NoRoomError",
        "TransportError",
        "CreateInProgressError",
        "NodeUnreachableError",
    ]
    assert naps[0] >= 2.0  # Retry-After
    assert {request.body for request in gateway.sent("POST", "/v1/sandboxes")} == {
        gateway.requests[0].body
    }  # the same wish every time


def test_create_raises_last_error_at_its_deadline(client: SandboxClient, gateway: Gateway) -> None:
    gateway.next("POST", "/v1/sandboxes", *[NO_ROOM] * 3)
    with pytest.raises(NoRoomError):
        client.create_sandbox(image=IMAGE, request_timeout_seconds=1.0)
    assert len(gateway.sent("POST", "/v1/sandboxes")) == 1  # two seconds do not fit into the one that is left
    assert gateway.requests[0].query == {"wait_seconds": "0.5"}  # so that the reason comes within it


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.NEVER_FITS, NeverFitsError),
        (ErrorCode.INVALID_REQUEST, InvalidRequestError),
        (ErrorCode.POLICY_DENIED, PolicyDeniedError),
        (ErrorCode.QUOTA_EXCEEDED, QuotaExceededError),
        (ErrorCode.SPEC_CONFLICT, SpecConflictError),
    ],
)
def test_create_does_not_retry_permanent_errors(
    client: SandboxClient, gateway: Gateway, code: ErrorCode, kind: type[SandboxApiError]
) -> None:
    gateway.next("POST", "/v1/sandboxes", error(code))
    with pytest.raises(kind):
        client.create_sandbox(image=IMAGE)
    assert len(gateway.sent("POST", "/v1/sandboxes")) == 1


FAILURES = [
    (error(ErrorCode.START_ERROR), StartError, True),
    (error(ErrorCode.NEVER_FITS), NeverFitsError, True),
    (Reply(200), SandboxApiError, True),
    (error(ErrorCode.INVALID_REQUEST), InvalidRequestError, False),
    (error(ErrorCode.UNAUTHORIZED), AuthenticationError, False),
]


@pytest.mark.parametrize(("reply", "kind", "deleted"), FAILURES, ids=lambda value: getattr(value, "__name__", ""))
def test_failed_create_without_an_id_leaves_nothing(
    client: SandboxClient, gateway: Gateway, reply: Reply, kind: type[SandboxApiError], deleted: bool
) -> None:
    gateway.next("POST", "/v1/sandboxes", reply)
    with pytest.raises(kind):
        client.create_sandbox(image=IMAGE)
    name = gateway.requests[0].json()["id"]
    assert bool(gateway.sent("DELETE", f"/v1/sandboxes/{name}")) is deleted


def test_failed_create_with_an_id_keeps_its_record(client: SandboxClient, gateway: Gateway) -> None:
    gateway.next("POST", "/v1/sandboxes", error(ErrorCode.START_ERROR))
    with pytest.raises(StartError):
        client.create_sandbox(id="mine", image=IMAGE)
    assert [request.method for request in gateway.requests] == ["POST"]


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError])
def test_interrupted_create_leaves_nothing(
    client: SandboxClient, gateway: Gateway, interrupt: type[BaseException]
) -> None:
    gateway.next("POST", "/v1/sandboxes", NO_ROOM)

    def stop(_: CreateProgress) -> None:
        raise interrupt

    with pytest.raises(interrupt):
        client.create_sandbox(image=IMAGE, on_progress=stop)
    name = gateway.requests[0].json()["id"]
    # There is none yet; its create may still be on its way, so that one look is not enough.
    assert len(gateway.sent("DELETE", f"/v1/sandboxes/{name}")) > 1


def test_create_that_arrives_after_its_delete_is_deleted(client: SandboxClient, gateway: Gateway) -> None:
    gateway.next("POST", "/v1/sandboxes", NO_ROOM)

    def stop(_: CreateProgress) -> None:
        raise KeyboardInterrupt

    def late(_: float) -> None:
        first = gateway.requests[0]
        gateway.reply(replace(first))

    client.transport.sleep = late
    with pytest.raises(KeyboardInterrupt):
        client.create_sandbox(image=IMAGE, on_progress=stop)
    assert gateway.sandboxes == {}


def test_deletion_goes_on_after_a_second_interrupt(client: SandboxClient, gateway: Gateway) -> None:
    held = threading.Event()
    sandbox = client.create_sandbox(image=IMAGE)
    gateway.next("DELETE", sandbox.id, Reply(503, b'{"retryable":true}', hang=held))

    def press_again() -> None:
        gateway.wait_for("the delete", lambda: gateway.sent("DELETE", sandbox.id))
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        held.set()

    presser = threading.Thread(target=press_again)
    with pytest.raises(KeyboardInterrupt), sandbox:
        presser.start()
        raise KeyboardInterrupt
    presser.join()
    gateway.wait_for("the sandbox is gone", lambda: not gateway.sandboxes)


def test_deletion_that_fails_after_a_second_interrupt_is_logged(
    client: SandboxClient, gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    held = threading.Event()
    sandbox = client.create_sandbox(image=IMAGE)
    gateway.next("DELETE", sandbox.id, Reply(500, b'{"error":"the disk is gone"}', hang=held))

    def press() -> None:
        gateway.wait_for("the delete", lambda: gateway.sent("DELETE", sandbox.id))
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    presser = threading.Thread(target=press)
    presser.start()
    with pytest.raises(KeyboardInterrupt), sandbox:
        pass
    held.set()
    presser.join()
    wait_until(lambda: "the disk is gone" in caplog.text)


def test_failed_deletion_does_not_hide_what_ended_the_block(client: SandboxClient, gateway: Gateway) -> None:
    sandbox = client.create_sandbox(image=IMAGE)
    gateway.next("DELETE", sandbox.id, error(ErrorCode.INTERNAL))
    with pytest.raises(ZeroDivisionError) as caught, sandbox:
        raise ZeroDivisionError
    assert sandbox.id in caught.value.__notes__[0]


def test_deleted_sandbox_is_not_found(client: SandboxClient, gateway: Gateway, sandbox: SandboxHandle) -> None:
    gone = gateway.sandboxes[sandbox.id].model_copy(update={"state": SandboxState.DELETED, "reason": DeathReason.TTL})
    gateway.sandboxes[sandbox.id] = gone  # as the service shows it for a day
    assert client.get_sandbox(sandbox.id) is None
    shown = client.get_sandbox(sandbox.id, include_deleted=True)
    assert shown is not None
    assert shown["reason"] == "ttl"
    with pytest.raises(NotFoundError):
        client.attach(sandbox.id)
    with pytest.raises(NotFoundError):
        sandbox.refresh()
    assert (sandbox.state, sandbox.record["reason"]) == ("deleted", "ttl")


def test_create_of_existing_id_with_other_spec_conflicts(client: SandboxClient) -> None:
    client.create_sandbox(SandboxSpec(id="same", image=IMAGE))
    assert client.create_sandbox(SandboxSpec(id="same", image=IMAGE)).id == "same"
    with pytest.raises(SpecConflictError):
        client.create_sandbox(SandboxSpec(id="same", image=IMAGE, cpus=3))


def test_ids_are_quoted_in_paths(client: SandboxClient, gateway: Gateway) -> None:
    assert client.get_sandbox("a/../b c") is None
    assert gateway.requests[0].path == "/v1/sandboxes/a%2F..%2Fb%20c"
