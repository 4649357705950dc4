"""Sandboxes through the client: creating, finding and ending them."""

import pytest

from gateway.wire.errors import ErrorCode
from tests.fakes.gateway import Gateway, error
from tests.fakes.scripted import Drop
from ucloud_sandboxes_sdk import (
    CreateProgress,
    Image,
    InvalidRequestError,
    NeverFitsError,
    NoRoomError,
    NotFoundError,
    PolicyDeniedError,
    SandboxApiError,
    SandboxClient,
    SandboxHandle,
    SandboxSpec,
    SpecConflictError,
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
    assert len(gateway.requests) == 1  # two seconds do not fit into the one that is left


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.NEVER_FITS, NeverFitsError),
        (ErrorCode.INVALID_REQUEST, InvalidRequestError),
        (ErrorCode.POLICY_DENIED, PolicyDeniedError),
        (ErrorCode.SPEC_CONFLICT, SpecConflictError),
    ],
)
def test_create_does_not_retry_permanent_errors(
    client: SandboxClient, gateway: Gateway, code: ErrorCode, kind: type[SandboxApiError]
) -> None:
    gateway.next("POST", "/v1/sandboxes", error(code))
    with pytest.raises(kind):
        client.create_sandbox(image=IMAGE)
    assert len(gateway.requests) == 1


def test_create_of_existing_id_with_other_spec_conflicts(client: SandboxClient) -> None:
    client.create_sandbox(SandboxSpec(id="same", image=IMAGE))
    assert client.create_sandbox(SandboxSpec(id="same", image=IMAGE)).id == "same"
    with pytest.raises(SpecConflictError):
        client.create_sandbox(SandboxSpec(id="same", image=IMAGE, cpus=3))


def test_ids_are_quoted_in_paths(client: SandboxClient, gateway: Gateway) -> None:
    assert client.get_sandbox("a/../b c") is None
    assert gateway.requests[0].path == "/v1/sandboxes/a%2F..%2Fb%20c"
