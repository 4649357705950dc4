"""The one way in which a call to the node fails, and its translation into the wire's error body."""

from collections.abc import Sequence

from gateway.wire.errors import CODE_RULES, ErrorBody, ErrorCode, FieldError
from gateway.wire.states import DeathReason, SandboxState
from node_agent.runtime.base import RuntimeFailure


class ApiError(Exception):
    """A refusal that the caller is told.

    Attributes:
        code: decides the HTTP status and whether the same call may help later.
        message: what happened, to what, and what to do next.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        sandbox_id: str | None = None,
        state: SandboxState | None = None,
        reason: DeathReason | None = None,
        fields: Sequence[FieldError] = (),
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self._details = {"sandbox_id": sandbox_id, "state": state, "reason": reason, "fields": list(fields) or None}

    @property
    def status(self) -> int:
        """HTTP status that goes with the code."""
        return CODE_RULES[self.code].status

    def body(self) -> ErrorBody:
        """The error as the wire tells it."""
        known = {key: value for key, value in self._details.items() if value is not None}
        return ErrorBody.model_validate(
            {"error": self.message, "code": self.code, "retryable": CODE_RULES[self.code].retryable, **known}
        )

    def json(self) -> bytes:
        """The body as bytes."""
        return self.body().model_dump_json(exclude_none=True).encode()


def of_failure(failure: RuntimeFailure, sandbox_id: str) -> ApiError:
    """An engine's refusal as the caller is told it."""
    return ApiError(failure.code, failure.message, sandbox_id=sandbox_id, reason=failure.reason)


def bad_field(field: str, problem: str) -> ApiError:
    """A 422 that names one field."""
    return ApiError(ErrorCode.INVALID_REQUEST, f"{field}: {problem}", fields=[FieldError(field=field, problem=problem)])
