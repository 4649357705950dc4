"""Everything that the SDK raises.

::

    SandboxApiError                     the service refused, or no response came
    ├── AuthenticationError             no token, a wrong one, or one without the right (401, 403)
    ├── InvalidRequestError             a field was refused; ``fields`` names it (400, 413, 422)
    │   ├── PolicyDeniedError           the operator's policy does not allow it; ``fields`` names each value (403)
    │   └── QuotaExceededError          the tenant has as much as its quota allows; ``fields`` names the limit (429)
    ├── NotFoundError                   no such sandbox or exec session (404)
    ├── SpecConflictError               the id exists with another spec (409)
    ├── ConflictError                   something else is being done with it right now (409, retryable)
    ├── SandboxNotRunningError          the sandbox is paused, ended or not up yet (409)
    ├── NeverFitsError                  no node of this service can ever hold the spec (422)
    ├── NoRoomError                     no room now; capacity may be coming (503, retryable)
    ├── CreateInProgressError           still being created (503, retryable)
    ├── NodeUnreachableError            the sandbox's node does not answer; its state is unknown (503, retryable)
    ├── BusyError                       a bound of the service is reached (429, 503, retryable)
    ├── ServiceTimeoutError             the service waited too long for a part of itself (504, retryable)
    ├── ImageError                      the image cannot be had or used (422)
    ├── StartError                      the sandbox's first process did not start (422)
    ├── StdinClosedError                the process takes no more input (409)
    ├── ExecLostError                   the session's outcome cannot be known any more (410)
    ├── ExecEventHistoryLostError       events are missing between two reads
    ├── SandboxFileError                a file operation failed inside the sandbox
    │   ├── FileNotFoundInSandboxError
    │   ├── IsADirectoryInSandboxError
    │   ├── NotADirectoryInSandboxError
    │   ├── PermissionDeniedInSandboxError
    │   ├── DiskFullError
    │   └── TransferInterruptedError    the sandbox or its engine went away meanwhile (503, retryable)
    └── TransportError                  no complete response: refused, reset, cut short; the outcome is unknown
        └── DeadlineExceededError       the call's own deadline ran out; also a built-in `TimeoutError`
"""

import email.utils
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .results import SandboxExecResult

MAX_RETRY_AFTER: Final = 60.0


class SandboxApiError(RuntimeError):
    """A call did not succeed.  ``str()`` is one sentence for people; programs decide by type or ``code``.

    Attributes:
        status_code: HTTP status, or ``None`` when no response came.
        body: the decoded error body; ``{"error": <text>}`` where the response was not JSON.
        headers: headers of the response.
    """

    def __init__(
        self,
        message: str,
        *,
        status_code: int | None = None,
        body: object | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status_code = status_code
        self.body = body
        self.headers = dict(headers or {})

    def _get(self, key: str) -> Any:
        return self.body.get(key) if isinstance(self.body, dict) else None

    @property
    def code(self) -> str | None:
        """The service's code for what went wrong, e.g. ``no_room``; ``None`` when the response had none."""
        value = self._get("code")
        return value if isinstance(value, str) else None

    @property
    def retryable(self) -> bool | None:
        """Whether the service says that the same call may succeed later; ``None`` when it did not say."""
        value = self._get("retryable")
        return value if isinstance(value, bool) else None

    @property
    def begun(self) -> bool | None:
        """False where the service says that nothing of the call was begun; ``None`` when it did not say."""
        value = self._get("begun")
        return value if isinstance(value, bool) else None

    @property
    def retry_after_seconds(self) -> float | None:
        """Seconds to wait before the next attempt, from ``Retry-After``, between 0 and 60; ``None`` without it."""
        text = next((value for key, value in self.headers.items() if key.lower() == "retry-after"), None)
        return None if text is None else _retry_after(text)

    @property
    def request_id(self) -> str | None:
        """What to quote when asking the operator about this call."""
        value = self._get("request_id")
        if value is None:
            value = next((v for key, v in self.headers.items() if key.lower() == "x-request-id"), None)
        return value if isinstance(value, str) else None


class AuthenticationError(SandboxApiError):
    """The token is missing, wrong, revoked, or does not carry the right for this call."""


class InvalidRequestError(SandboxApiError):
    """The service refused a field of the request; nothing happened."""

    @property
    def fields(self) -> list[dict[str, str]]:
        """The refused fields: ``[{"field": "security.pids_limit", "problem": "…"}]``; may be empty."""
        value = self._get("fields")
        return value if isinstance(value, list) else []


class PolicyDeniedError(InvalidRequestError):
    """The operator's policy does not let this token ask for that; nothing happened.

    Each of ``fields`` also says what is ``allowed``, and ``where`` the operator has set it.
    """


class QuotaExceededError(InvalidRequestError):
    """The tenant of this token has as much as its quota allows, or creates too fast; nothing happened.

    ``fields`` names the limit, what is ``allowed``, and ``where`` the operator has set it.  Only too many creates a
    second are ``retryable``, and are retried for you; otherwise something of the tenant's has to end first.
    """


class NotFoundError(SandboxApiError):
    """There is no sandbox or exec session of that id."""


class SpecConflictError(SandboxApiError):
    """A sandbox of this id exists and was asked for with another spec."""


class ConflictError(SandboxApiError):
    """Another change of the same thing is under way; try again."""


class SandboxNotRunningError(SandboxApiError):
    """The call needs a running sandbox; ``state`` and ``reason`` say where it stands."""

    @property
    def state(self) -> str | None:
        """State of the sandbox, e.g. ``exited``."""
        value = self._get("state")
        return value if isinstance(value, str) else None

    @property
    def reason(self) -> str | None:
        """Why it is no longer there, e.g. ``oom``; ``None`` while it lives."""
        value = self._get("reason")
        return value if isinstance(value, str) else None


class NeverFitsError(SandboxApiError):
    """No node that this service has or could start is large enough; ask for less."""


class NoRoomError(SandboxApiError):
    """No node has room now.  The wish is known to the service, which may be starting capacity."""


class CreateInProgressError(SandboxApiError):
    """The sandbox is still being created; the same create again waits for it."""


class NodeUnreachableError(SandboxApiError):
    """The node that holds the sandbox does not answer.  The sandbox may well be alive."""


class BusyError(SandboxApiError):
    """A bound of the service is reached (calls in flight, exec sessions of a node)."""


class ServiceTimeoutError(SandboxApiError):
    """The service gave up waiting for a part of itself; the outcome is unknown."""


class ImageError(SandboxApiError):
    """The image cannot be found, pulled or unpacked."""


class StartError(SandboxApiError):
    """The first process of the sandbox could not be started."""


class StdinClosedError(SandboxApiError):
    """The process ended or its input was closed before."""


class ExecLostError(SandboxApiError):
    """What became of the process cannot be known any more, e.g. because its node restarted."""

    result: "SandboxExecResult | None" = None
    """Its output so far, where it could be read to its end."""


class ExecEventHistoryLostError(SandboxApiError):
    """The service left out events: output is missing between two sequence numbers."""

    def __init__(self, session_id: str, *, expected_sequence: int, received_sequence: int) -> None:
        super().__init__(
            f"exec session {session_id}: expected event {expected_sequence} but received {received_sequence};"
            " output in between is lost"
        )
        self.session_id = session_id
        self.expected_sequence = expected_sequence
        self.received_sequence = received_sequence


class SandboxFileError(SandboxApiError):
    """A file could not be read or written inside the sandbox."""


class FileNotFoundInSandboxError(SandboxFileError):
    """There is no such file in the sandbox."""


class IsADirectoryInSandboxError(SandboxFileError):
    """The path is a directory."""


class NotADirectoryInSandboxError(SandboxFileError):
    """A part of the path that should be a directory is not."""


class PermissionDeniedInSandboxError(SandboxFileError):
    """The sandbox's user may not read or write there."""


class DiskFullError(SandboxFileError):
    """The sandbox's disk is full."""


class TransferInterruptedError(SandboxFileError):
    """The sandbox restarted, ended, or lost its engine during a transfer; an upload left the old file, or none."""


class TransportError(SandboxApiError):
    """No complete response arrived.  Whether the call took effect is unknown, unless ``sent`` is false.

    Attributes:
        sent: false when the connection could not be made, so that the service cannot have seen the call.
    """

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


class DeadlineExceededError(TransportError, TimeoutError):
    """The deadline of the call ran out before a response came."""


BY_CODE: Final[Mapping[str, type[SandboxApiError]]] = {
    "unauthorized": AuthenticationError,
    "forbidden": AuthenticationError,
    "policy_denied": PolicyDeniedError,
    "quota_exceeded": QuotaExceededError,
    "not_found": NotFoundError,
    "invalid_request": InvalidRequestError,
    "payload_too_large": InvalidRequestError,
    "unsupported": InvalidRequestError,
    "sandbox_not_found": NotFoundError,
    "sandbox_not_running": SandboxNotRunningError,
    "spec_conflict": SpecConflictError,
    "conflict": ConflictError,
    "never_fits": NeverFitsError,
    "capacity": NeverFitsError,
    "no_room": NoRoomError,
    "create_in_progress": CreateInProgressError,
    "image_error": ImageError,
    "start_error": StartError,
    "exec_not_found": NotFoundError,
    "exec_lost": ExecLostError,
    "exec_limit": BusyError,
    "stdin_closed": StdinClosedError,
    "file_not_found": FileNotFoundInSandboxError,
    "is_directory": IsADirectoryInSandboxError,
    "not_a_directory": NotADirectoryInSandboxError,
    "file_permission": PermissionDeniedInSandboxError,
    "disk_full": DiskFullError,
    "transfer_interrupted": TransferInterruptedError,
    "node_not_found": NotFoundError,
    "node_unreachable": NodeUnreachableError,
    "node_refused": NodeUnreachableError,
    "busy": BusyError,
    "timeout": ServiceTimeoutError,
}

BY_STATUS: Final[Mapping[int, type[SandboxApiError]]] = {
    400: InvalidRequestError,
    401: AuthenticationError,
    403: AuthenticationError,
    404: NotFoundError,
    413: InvalidRequestError,
    422: InvalidRequestError,
    429: BusyError,
    504: ServiceTimeoutError,
}
"""Used where a response carries no code, e.g. one from a proxy in front of the service."""


def error_from_answer(status: int, body: object, headers: Mapping[str, str]) -> SandboxApiError:
    """Return the typed error for a response that is not 2xx."""
    code = body.get("code") if isinstance(body, dict) else None
    sentence = body.get("error") if isinstance(body, dict) else None
    kind = (BY_CODE.get(code) if isinstance(code, str) else None) or BY_STATUS.get(status, SandboxApiError)
    message = sentence if isinstance(sentence, str) and sentence else f"the service answered HTTP {status}"
    return kind(message, status_code=status, body=body, headers=headers)


def _retry_after(text: str) -> float | None:
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
        except ValueError:
            return None
    return min(MAX_RETRY_AFTER, max(0.0, seconds)) if seconds == seconds else None  # NaN is no delay
