"""The exceptions of the gateway.

    Exception
      · ApiError             a request is refused; crosses the wire as `ErrorBody`
      · GatewayStartError    the gateway cannot start; one sentence that names the cause and the cure
          · StoreError       its database or another file of its state cannot be used

Within the gateway code decides by `ApiError.code`, never by the sentence. Each border translates once:
`gateway.store.db` what a database raises, `gateway.node_client` what a node answers, `gateway.http` what the frameworks
refuse.
"""

from typing import TypedDict, Unpack

from gateway.wire.errors import CODE_RULES, ErrorBody, ErrorCode, FieldError
from gateway.wire.resources import Shape


class ErrorDetails(TypedDict, total=False):
    """What an error may carry beside its code and sentence; the fields of `gateway.wire.errors.ErrorBody`."""

    fields: list[FieldError]
    sandbox_id: str
    state: str
    reason: str
    reasons: list[str]
    pending_resources: Shape
    requested_resources: Shape
    maximum_resources: Shape


class ApiError(Exception):
    """A request is refused.

    Attributes:
        code: decides the HTTP status and, unless ``retryable`` is given, whether the same call may succeed later.
        message: one sentence: what happened, to what, and what to do next.
        retryable: as on the wire.
        retry_after: seconds for the ``Retry-After`` header; ``None`` sends none.
        details: further fields of the body.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        retryable: bool | None = None,
        retry_after: float | None = None,
        **details: Unpack[ErrorDetails],
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retryable = CODE_RULES[code].retryable if retryable is None else retryable
        self.retry_after = retry_after
        self.details = details

    @property
    def status(self) -> int:
        """The HTTP status of the answer."""
        return CODE_RULES[self.code].status

    def body(self, request_id: str | None = None) -> ErrorBody:
        """Return the answer's body."""
        return ErrorBody(
            error=self.message, code=self.code, retryable=self.retryable, request_id=request_id, **self.details
        )

    @classmethod
    def from_body(cls, body: ErrorBody, retry_after: float | None = None) -> "ApiError":
        """Return the error that somebody else, e.g. a node, sent as ``body``."""
        error = cls(body.code, body.error, retryable=body.retryable, retry_after=retry_after)
        present = body.model_dump(exclude_none=True, include=set(ErrorDetails.__annotations__))
        for name in present:
            error.details[name] = getattr(body, name)  # type: ignore[literal-required]
        return error


class GatewayStartError(Exception):
    """The gateway cannot start; one sentence that names the cause and the cure."""


class StoreError(GatewayStartError):
    """The database, the lock or the secret cannot be used; the sentence says which, why, and what to do."""
