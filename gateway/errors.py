"""The exceptions of the gateway, and below them the refusals of calls about a sandbox, one function for each.

    Exception
      · ApiError             a request is refused; crosses the wire as `ErrorBody`
      · GatewayStartError    the gateway cannot start; one sentence that names the cause and the cure
          · StoreError       its database or another file of its state cannot be used

Within the gateway code decides by `ApiError.code`, never by the sentence. Each border translates once:
`gateway.store.db` what a database raises, `gateway.node_client` what a node answers, `gateway.http` what the frameworks
refuse.
"""

from collections.abc import Sequence
from typing import Final, TypedDict, Unpack

from gateway.core.model import Sandbox
from gateway.core.placement import NeverFits, NoRoom
from gateway.core.policy import Quota
from gateway.core.policy_check import Violation
from gateway.core.quota import Excess
from gateway.wire import limits
from gateway.wire.errors import CODE_RULES, ErrorBody, ErrorCode, FieldError
from gateway.wire.resources import Shape
from gateway.wire.states import SandboxState


class ErrorDetails(TypedDict, total=False):
    """What an error may carry beside its code and sentence; the fields of `gateway.wire.errors.ErrorBody`."""

    begun: bool
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
        allow: methods for the ``Allow`` header; empty sends none.
        details: further fields of the body.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        retryable: bool | None = None,
        retry_after: float | None = None,
        allow: tuple[str, ...] = (),
        **details: Unpack[ErrorDetails],
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retryable = CODE_RULES[code].retryable if retryable is None else retryable
        self.retry_after = retry_after
        self.allow = allow
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


RETRY_AFTER: Final = 2.0
"""Seconds after which a caller of an unfinished create may ask again."""
RETRY_WHEN_FULL: Final = 10.0
"""Seconds after which a caller may ask again that was refused because too much stands already."""


def _facts(sandbox: Sandbox) -> ErrorDetails:
    facts = ErrorDetails(sandbox_id=sandbox.id, state=sandbox.state.value)
    if sandbox.reason is not None:
        facts["reason"] = sandbox.reason.value
    return facts


# -- creates ----------------------------------------------------------------------------------------------------------


def spec_conflict(sandbox: Sandbox) -> ApiError:
    """Refuse a create whose id is in use with another spec."""
    return ApiError(
        ErrorCode.SPEC_CONFLICT,
        f"sandbox {sandbox.id} exists with another spec; delete it first, or choose another id",
        sandbox_id=sandbox.id,
        state=sandbox.state.value,
    )


def policy_denied(subject: str, tenant: str, violations: Sequence[Violation]) -> ApiError:
    """Refuse what the operator's policy does not let a tenant's clients ask for; ``subject`` begins the sentence."""
    named = "; ".join(f"{found.field}: {found.problem}" for found in violations)
    return ApiError(
        ErrorCode.POLICY_DENIED,
        f"{subject} is refused by the policy for tenant {tenant}: {named}; change the request, or ask the operator",
        fields=[
            FieldError(field=found.field, problem=found.problem, allowed=found.allowed, where=found.where)
            for found in violations
        ],
    )


_DEFAULTS: Final = {
    "cpus": (limits.DEFAULT_CPUS, "--cpus"),
    "memory_mb": (limits.DEFAULT_MEMORY_MB, "--memory"),
    "disk_mb": (limits.DEFAULT_DISK_MB, "--disk"),
}
"""What a sandbox asks for that names nothing, and the option of the command line that names it."""


def quota_exceeded(tenant: str, excess: Excess) -> ApiError:
    """Refuse what a tenant's quota leaves no room for, until something that the tenant has ends, or never."""
    limit, used, asked = (f"{amount:.12g}" for amount in (excess.limit, excess.used, excess.asked))
    default, flag = _DEFAULTS.get(excess.key, (None, ""))
    hint, less = "", "ask for less"
    if excess.asked == default:
        # Whoever named no amount does not know that one was asked for.
        hint, less = f", the default where a sandbox names no {excess.key}", f"ask for less by {excess.key} ({flag})"
    if excess.alone:
        conflict = f"and this alone asks for {asked}{hint}; {less}"
    else:
        conflict = f"and has {used}, which leaves no room for {asked} more{hint};"
        conflict += f" {less}, or delete what is no longer needed" if hint else " delete what is no longer needed"
    return ApiError(
        ErrorCode.QUOTA_EXCEEDED,
        f"tenant {tenant} may have {excess.amount(excess.limit)} {conflict}, or ask the operator to raise"
        f" {excess.where}",
        fields=[
            FieldError(
                field=excess.key,
                problem=f"{used} of {limit} in use, {asked} more asked for",
                allowed=limit,
                where=excess.where,
            )
        ],
    )


def creates_too_fast(tenant: str, quota: Quota, wait_seconds: float | None) -> ApiError:
    """Refuse a create above the tenant's creates per second; ``None`` as the wait means that none is allowed."""
    limit, where = f"{quota.creates_per_second:.12g}", quota.where("creates_per_second")
    cure = "ask the operator to raise" if wait_seconds is None else "try again later, or ask the operator to raise"
    return ApiError(
        ErrorCode.QUOTA_EXCEEDED,
        f"tenant {tenant} may create {limit} {'sandbox' if limit == '1' else 'sandboxes'} a second; {cure} {where}",
        retryable=wait_seconds is not None,
        retry_after=wait_seconds,
        fields=[FieldError(field="creates_per_second", problem="more were sent", allowed=limit, where=where)],
    )


def never_fits(subject: str, requested: Shape, answer: NeverFits, sandbox_id: str | None = None) -> ApiError:
    """Refuse a shape that no node and no pool could hold; ``subject`` begins the sentence."""
    facts = ErrorDetails() if sandbox_id is None else ErrorDetails(sandbox_id=sandbox_id)
    facts["reasons"], facts["requested_resources"] = list(answer.reasons), requested
    facts["maximum_resources"] = answer.maximum
    return ApiError(
        ErrorCode.NEVER_FITS,
        f"{subject} fits no node and no pool: {'; '.join(answer.reasons)}; ask for what one of them has",
        **facts,
    )


def queue_full(sandbox: Sandbox, waiting: int) -> ApiError:
    """Refuse a create that would have to wait, when too many do."""
    return ApiError(
        ErrorCode.NO_ROOM,
        f"sandbox {sandbox.id} was not taken in: {waiting} others wait already; try again later",
        retry_after=RETRY_WHEN_FULL,
        sandbox_id=sandbox.id,
    )


def no_room(sandbox: Sandbox, waits: NoRoom | None, retry_after: float = RETRY_AFTER) -> ApiError:
    """Answer a create whose sandbox waits for room, and goes on waiting while somebody asks.

    Args:
        sandbox: which.
        waits: why it waits; ``None`` while that is not known.
        retry_after: seconds.
    """
    why = "it waits for room on a node" if waits is None else waits.sentence
    message = f"no node can take sandbox {sandbox.id} now, {why}; ask again with the same id and spec"
    facts = _facts(sandbox)
    facts["reasons"], facts["pending_resources"] = list(waits.reasons) if waits else [], sandbox.spec.shape
    return ApiError(ErrorCode.NO_ROOM, message, retry_after=retry_after, **facts)


def in_progress(sandbox: Sandbox) -> ApiError:
    """Answer a create whose node is still at it."""
    return ApiError(
        ErrorCode.CREATE_IN_PROGRESS,
        f"sandbox {sandbox.id} is still being created on node {sandbox.node_id};"
        " it goes on, ask again with the same id and spec",
        retry_after=RETRY_AFTER,
        **_facts(sandbox),
    )


def still_deleting(sandbox: Sandbox) -> ApiError:
    """Answer a create while an earlier sandbox of its id is not gone yet."""
    return ApiError(
        ErrorCode.CREATE_IN_PROGRESS,
        f"an earlier sandbox {sandbox.id} is still being deleted on node {sandbox.node_id}; ask again"
        " later, or use another id",
        retry_after=RETRY_AFTER,
        **_facts(sandbox),
    )


def deleted_meanwhile(sandbox: Sandbox) -> ApiError:
    """Answer a create whose sandbox was deleted while it was being brought up."""
    return ApiError(
        ErrorCode.SANDBOX_NOT_RUNNING,
        f"sandbox {sandbox.id} was deleted ({sandbox.reason}) while it was being brought up",
        **_facts(sandbox),
    )


def failed(sandbox: Sandbox) -> ApiError:
    """Answer a create whose sandbox could not be brought up."""
    code = sandbox.error or ErrorCode.START_ERROR
    return ApiError(code, sandbox.detail or f"sandbox {sandbox.id} could not be brought up", **_facts(sandbox))


# -- restarts ---------------------------------------------------------------------------------------------------------


def no_room_to_restart(sandbox: Sandbox, short: list[str]) -> ApiError:
    """Refuse a restart for which others took the room on its node; its workspace is nowhere else."""
    message = f"node {sandbox.node_id} has too little free to restart sandbox {sandbox.id}: {', '.join(short)}"
    return ApiError(ErrorCode.NO_ROOM, f"{message}; try again later", retry_after=RETRY_AFTER, **_facts(sandbox))


def workspace_gone(sandbox: Sandbox) -> ApiError:
    """Refuse a restart that has nothing to start from."""
    return ApiError(
        ErrorCode.SANDBOX_NOT_RUNNING,
        f"sandbox {sandbox.id} cannot be restarted: its node, and with it its workspace, is gone; delete it",
        **_facts(sandbox),
    )


# -- every call -------------------------------------------------------------------------------------------------------


def not_found(sandbox_id: str, tombstone: Sandbox | None) -> ApiError:
    """Refuse a call about a sandbox that is not there, or was deleted."""
    if tombstone is None:
        return ApiError(ErrorCode.SANDBOX_NOT_FOUND, f"there is no sandbox {sandbox_id}", sandbox_id=sandbox_id)
    message = f"sandbox {sandbox_id} was deleted ({tombstone.reason}) at {tombstone.updated_at.isoformat()}"
    return ApiError(ErrorCode.SANDBOX_NOT_FOUND, message, **_facts(tombstone))


def not_running(sandbox: Sandbox) -> ApiError:
    """Refuse a call that needs a running sandbox; retryable while it is on its way there."""
    why = (
        f" ({sandbox.reason}: {sandbox.detail})" if sandbox.detail else f" ({sandbox.reason})" if sandbox.reason else ""
    )
    message = f"sandbox {sandbox.id} is {sandbox.state}{why}"
    if sandbox.state in {SandboxState.PENDING, SandboxState.CREATING, SandboxState.RESTORING}:
        return ApiError(
            ErrorCode.SANDBOX_NOT_RUNNING,
            f"{message}; try again when it runs",
            retryable=True,
            retry_after=RETRY_AFTER,
            **_facts(sandbox),
        )
    return ApiError(ErrorCode.SANDBOX_NOT_RUNNING, message, **_facts(sandbox))


def other_generation(sandbox: Sandbox, generation: int) -> ApiError:
    """Refuse a call about an exec session of an earlier incarnation."""
    return ApiError(
        ErrorCode.EXEC_LOST,
        f"the session belongs to generation {generation} of sandbox {sandbox.id}, which is now at {sandbox.generation};"
        " how it ended is not known",
        **_facts(sandbox),
    )


def node_away(sandbox: Sandbox) -> ApiError:
    """Refuse a call whose node does not answer, or is gone."""
    return ApiError(
        ErrorCode.NODE_UNREACHABLE,
        f"node {sandbox.node_id} of sandbox {sandbox.id} cannot be reached; nothing was begun, try again",
        retry_after=RETRY_AFTER,
        **(_facts(sandbox) | ErrorDetails(begun=False)),
    )
