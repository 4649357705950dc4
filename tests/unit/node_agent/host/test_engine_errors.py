"""What is wrong by the Docker engine's own sentences, as it wrote them."""

import pytest

from gateway.wire.errors import ErrorCode
from gateway.wire.states import DeathReason
from node_agent.host.engine_errors import refusal

_GONE = "/engine/exec/containerd/containerd.sock: connect: connection refused"


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (
            "failed to create shim: OCI runtime create failed: no such user: unknown",
            ErrorCode.START_ERROR,
            "start_error",
        ),
        ("the service is unavailable: unknown", ErrorCode.START_ERROR, "start_error"),
        (
            f'connection error: desc = "transport: Error while dialing dial unix {_GONE}": unavailable',
            ErrorCode.BUSY,
            None,
        ),
        ("Cannot pause container a75: transport is closing: unavailable", ErrorCode.BUSY, None),
        ("failed to start shim: write /data/x: no space left on device: unknown", ErrorCode.DISK_FULL, "disk_full"),
        ("ttrpc: closed: unknown", ErrorCode.BUSY, None),
    ],
)
def test_refusals_of_the_engine(words: str, code: ErrorCode, reason: str | None) -> None:
    failure = refusal("sandbox a", words, ErrorCode.START_ERROR, DeathReason.START_ERROR)

    assert (failure.code, failure.reason) == (code, reason)
    assert failure.retryable is (code is ErrorCode.BUSY)
