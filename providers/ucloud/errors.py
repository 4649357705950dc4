"""What each of UCloud's refusals means for the caller.

Its statuses lie: internal faults are 400, maintenance is 404, an expired token is 403 and so is an unknown job, and
two kinds of 402 need opposite reactions.  So a refusal is judged by call, status, words and code, by the first rule
that fits; what no rule knows is taken as uncertain.  The rules come from the source of UCloud's Core and integration
module (docs/providers/ucloud.md).
"""

import re
from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel, Field, ValidationError

from providers.base import Applied, ErrorKind, ProviderError, Scope
from providers.http import Answer, Call, NoAnswerError

SETTLE_SECONDS: Final = 120.0
"""How long a submission whose answer was lost may still turn up: Core asks its provider up to six times, 5 s each."""
MAINTENANCE_SECONDS: Final = 60.0
RATE_SECONDS: Final = 60.0
_PREVIEW: Final = 200
_BODY_PREVIEW: Final = 500


class _ErrorBody(BaseModel):
    why: str
    error_code: str | None = Field(default=None, alias="errorCode")


@dataclass(frozen=True)
class Refusal:
    """An answer that is no success."""

    status: int
    why: str = ""
    code: str = ""
    is_json: bool = False
    """UCloud itself answered, and no gateway in front of it."""
    retry_after: float | None = None

    @classmethod
    def of(cls, answer: Answer) -> "Refusal":
        """Return what an error answer says, whatever the shape of its body."""
        try:
            body = _ErrorBody.model_validate_json(answer.body)
        except ValidationError:
            words = answer.body[:_BODY_PREVIEW].decode(errors="replace")
            return cls(answer.status, words, retry_after=answer.retry_after)
        return cls(answer.status, body.why, body.error_code or "", is_json=True, retry_after=answer.retry_after)

    @property
    def is_expired_token(self) -> bool:
        """Whether the credential was not taken.  It is checked before anything is done."""
        return self.status == 403 and self.is_json and self.why.strip().lower() == "forbidden"


@dataclass(frozen=True)
class Rule:
    """The meaning of some refusals."""

    kind: ErrorKind
    scope: Scope
    status: int | range
    words: str = ""
    """Looked for in `Refusal.why`, in any case."""
    calls: frozenset[Call] = frozenset(Call)
    from_gateway: bool | None = None
    """Only when it is, or is not, UCloud's own answer."""
    applied: Applied = Applied.NO
    wait: float | None = None

    def fits(self, call: Call, refusal: Refusal) -> bool:
        """Return whether it applies to this refusal."""
        statuses = self.status if isinstance(self.status, range) else (self.status,)
        return (
            refusal.status in statuses
            and call in self.calls
            and self.from_gateway in (None, not refusal.is_json)
            and re.search(self.words, refusal.why, re.IGNORECASE) is not None
        )


K, S = ErrorKind, Scope
_CREATE: Final = frozenset({Call.CREATE})
_CHANGE: Final = frozenset({Call.CHANGE})
_4XX: Final = range(400, 500)
_MAYBE: Final = Applied.MAYBE

RULES: Final = (
    Rule(K.AUTH, S.PROVIDER, 401),
    Rule(K.CONFIG, S.PROVIDER, 402, r"valid allocations"),
    Rule(K.QUOTA, S.PROVIDER, 402),
    Rule(K.TRANSIENT, S.PROVIDER, 403, from_gateway=True),
    Rule(K.AUTH, S.PROVIDER, 403, r"^forbidden$|(bad|invalid) token supplied"),
    Rule(K.CONFIG, S.PROVIDER, 403, r"not allowed to consume"),
    Rule(K.CONFIG, S.POOL, 403, calls=_CREATE),
    Rule(K.AUTH, S.PROVIDER, 403),
    Rule(K.BUSY, S.PROVIDER, 404, r"undergoing maintenance", wait=MAINTENANCE_SECONDS),
    Rule(K.NOT_FOUND, S.INSTANCE, 404, r"job not found", calls=_CHANGE),
    Rule(K.CONFIG, S.PROVIDER, 404, r"404 page not found", from_gateway=True),
    Rule(K.TRANSIENT, S.INSTANCE, 404, calls=_CHANGE, applied=_MAYBE),
    Rule(K.TRANSIENT, S.PROVIDER, 404),
    Rule(K.TRANSIENT, S.PROVIDER, 408, applied=_MAYBE),
    Rule(K.TRANSIENT, S.PROVIDER, 425, applied=_MAYBE),
    Rule(K.RATE_LIMIT, S.PROVIDER, 429, applied=_MAYBE, wait=RATE_SECONDS),
    Rule(K.TRANSIENT, S.PROVIDER, 400, from_gateway=True, calls=_CREATE),
    Rule(K.CONFIG, S.OFFER, 400, r"machine type", calls=_CREATE),
    Rule(K.TRANSIENT, S.PROVIDER, 400, r"^(failed|internal|could not|unable|unexpected)", calls=_CREATE),
    Rule(K.TRANSIENT, S.INSTANCE, 400, calls=_CHANGE, applied=_MAYBE),
    Rule(K.BUSY, S.PROVIDER, 409),
    Rule(K.CONFIG, S.POOL, _4XX, calls=_CREATE),
    Rule(K.BUG, S.PROVIDER, _4XX),
    Rule(K.TRANSIENT, S.PROVIDER, range(500, 600), applied=_MAYBE),
    Rule(K.BUG, S.PROVIDER, range(1000), applied=_MAYBE),
)


def refused(call: Call, refusal: Refusal) -> ProviderError:
    """Return the error that an error answer is."""
    rule = next(rule for rule in RULES if rule.fits(call, refusal))
    applied = rule.applied if call.mutates else Applied.NO
    wait = refusal.retry_after if refusal.retry_after is not None else rule.wait
    said = " ".join(refusal.why.split())[:_PREVIEW] or "nothing"
    code = f" ({refusal.code})" if refusal.code else ""
    return ProviderError(
        f"ucloud: {call} was answered with {refusal.status}{code}: {said}{_hint(rule.kind)}",
        kind=rule.kind,
        applied=applied,
        scope=rule.scope,
        retry_after=_settled(call, applied, wait),
        code=refusal.code or str(refusal.status),
    )


def unanswered(call: Call, error: NoAnswerError) -> ProviderError:
    """Return the error of a call that got no answer."""
    applied = Applied.MAYBE if call.mutates and error.sent else Applied.NO
    return ProviderError(
        f"ucloud: {call} got no answer: {error}",
        kind=ErrorKind.TRANSIENT,
        applied=applied,
        scope=Scope.PROVIDER,
        retry_after=_settled(call, applied, None),
        code="no answer",
    )


def unreadable(call: Call, reason: str) -> ProviderError:
    """Return the error of a success whose content makes no sense."""
    applied = Applied.MAYBE if call.mutates else Applied.NO
    return ProviderError(
        f"ucloud: {call} succeeded, but its answer cannot be understood: {reason}",
        kind=ErrorKind.BUG,
        applied=applied,
        scope=Scope.PROVIDER,
        retry_after=_settled(call, applied, None),
        code="unreadable",
    )


def not_sent(kind: ErrorKind, message: str, scope: Scope = Scope.POOL) -> ProviderError:
    """Return the error of what is refused here, before any call."""
    return ProviderError(f"ucloud: {message}", kind=kind, applied=Applied.NO, scope=scope, code="not sent")


def _settled(call: Call, applied: Applied, wait: float | None) -> float | None:
    """Return when to try again: nothing is known of a lost submission before it can have come through."""
    if call is Call.CREATE and applied is Applied.MAYBE:
        return max(wait or 0.0, SETTLE_SECONDS)
    return wait


def _hint(kind: ErrorKind) -> str:
    if kind is ErrorKind.AUTH:
        return "; check the token, its end, and that its user is still a member of the project"
    return ""
