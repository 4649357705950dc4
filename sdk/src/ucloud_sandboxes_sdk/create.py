"""Creating a sandbox: the same wish again and again, under one id, until it runs or cannot."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from .errors import SandboxApiError, TransportError
from .retry import Backoff, Deadline, may_retry
from .transport import Call, Transport

CREATE_TIMEOUT: Final = 600.0
# The service answers after 25 s at most and goes on with the create; what is silent for longer is a dead connection.
ATTEMPT_TIMEOUT: Final = 60.0
SILENCE: Final = 90.0  # with no answer at all for so long, there is no service to wait for
BACKOFF: Final = Backoff(base=0.25, cap=10.0)


@dataclass(frozen=True)
class CreateProgress:
    """Why a create has not finished yet, told before each new try.

    Attributes:
        sandbox_id: the id that is asked for.
        waited_seconds: since the first try.
        retry_in_seconds: until the next one.
        error: what the last try met, e.g. `NoRoomError`.
    """

    sandbox_id: str
    waited_seconds: float
    retry_in_seconds: float
    error: SandboxApiError


OnCreateProgress = Callable[[CreateProgress], None]


def create(
    transport: Transport, payload: dict[str, Any], timeout_seconds: float, on_progress: OnCreateProgress | None
) -> dict[str, Any]:
    """The answer of the create that succeeded.

    Raises:
        SandboxApiError: what the last try met, when it cannot pass or the time is over.
    """
    call = Call.with_json("POST", "/v1/sandboxes", payload, safe=True)
    started = time.monotonic()
    deadline = Deadline.after(timeout_seconds)
    silence = Deadline.after(SILENCE)
    attempt = 0
    while True:
        try:
            return transport.json_once(call, timeout_seconds=min(ATTEMPT_TIMEOUT, deadline.remaining()))
        except SandboxApiError as error:
            delay = BACKOFF.delay(attempt, error.retry_after_seconds, transport.chance())
            if not isinstance(error, TransportError):
                silence = Deadline.after(SILENCE)
            if not may_retry(error, safe=True) or silence.remaining() <= 0:
                raise
            if delay >= deadline.remaining():
                error.add_note(f"gave up after {timeout_seconds:g} s; the sandbox may still come up under its id")
                raise
            if on_progress:
                on_progress(CreateProgress(payload["id"], time.monotonic() - started, delay, error))
        attempt += 1
        transport.sleep(delay)
