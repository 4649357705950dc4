"""The errors of the node agent: one tree, and any of them answers an HTTP request.

NodeError             a call to the node fails, with a code, a sentence, and what the wire says beside them
└── RuntimeFailure    an engine, or the host below it, could not do what was asked
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from gateway.wire.errors import CODE_RULES, ErrorBody, ErrorCode, FieldError
from gateway.wire.states import DeathReason, SandboxState

AT_PROCESS_BOUND: Final = "the sandbox is at its bound on processes (security.pids_limit)"
"""Why no further process starts in a sandbox, in every message about it."""


class NodeError(Exception):
    """A call to the node fails.

    Attributes:
        code: decides the HTTP status, and whether the same call may help later.
        message: what happened, to what, and what to do next.
        reason: why the sandbox is dead, where that is the cause.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        state: SandboxState | None = None,
        reason: DeathReason | None = None,
        fields: Sequence[FieldError] = (),
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.reason = reason
        self._state = state
        self._fields = list(fields) or None

    @property
    def status(self) -> int:
        """HTTP status that goes with the code."""
        return CODE_RULES[self.code].status

    @property
    def retryable(self) -> bool:
        """Whether the same call may succeed later."""
        return CODE_RULES[self.code].retryable

    def json(self, sandbox_id: str | None = None) -> bytes:
        """Return the wire's error body, which names the sandbox that the call was about."""
        body = ErrorBody(
            error=self.message,
            code=self.code,
            retryable=self.retryable,
            sandbox_id=sandbox_id,
            state=self._state,
            reason=self.reason,
            fields=self._fields,
        )
        return body.model_dump_json(exclude_none=True).encode()


class StartFault(StrEnum):
    """Why a program did not start, as a POSIX shell distinguishes it: by exit code 127 or 126."""

    NOT_FOUND = "not_found"
    NOT_EXECUTABLE = "not_executable"  # also: its user or its working directory is not as it has to be


class RuntimeFailure(NodeError):  # noqa: N818 - it is what an engine's refusal is called throughout
    """An engine, or the host below it, could not do what was asked.

    Attributes:
        start_fault: with ``START_ERROR`` of an exec: what was wrong with its program.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        reason: DeathReason | None = None,
        start_fault: StartFault | None = None,
    ) -> None:
        super().__init__(code, message, reason=reason)
        self.start_fault = start_fault


def bad_field(field: str, problem: str) -> NodeError:
    """Return the 422 that names one field."""
    return NodeError(
        ErrorCode.INVALID_REQUEST, f"{field}: {problem}", fields=[FieldError(field=field, problem=problem)]
    )
