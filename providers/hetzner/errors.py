"""What each of the API's error codes means for the caller.

The table follows the error codes in Hetzner's API reference.  Codes decide, never words, with two exceptions that share
a code with something else and are told apart by their message alone.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from providers.base import Applied, ErrorKind, ProviderError, Scope
from providers.http import Answer, NoAnswerError

K, A, S = ErrorKind, Applied, Scope


class Call(StrEnum):
    """What was asked."""

    READ = "read"
    CREATE = "create"  # of a server
    CHANGE = "change"  # anything else that may have an effect

    @property
    def mutates(self) -> bool:
        """Whether a lost answer leaves something unknown."""
        return self is not Call.READ


@dataclass(frozen=True)
class Rule:
    """Meaning of one code, in answer to a call that changes something."""

    kind: ErrorKind
    applied: Applied
    scope: Scope
    retry_after: float | None = None


_CONFIG: Final = Rule(K.CONFIG, A.NO, S.POOL)
_FULL: Final = Rule(K.BUSY, A.NO, S.POOL)
_AUTH: Final = Rule(K.AUTH, A.NO, S.PROVIDER)
_CAPACITY: Final = Rule(K.CAPACITY, A.NO, S.OFFER)
_BUSY: Final = Rule(K.BUSY, A.NO, S.INSTANCE)
_TRANSIENT: Final = Rule(K.TRANSIENT, A.MAYBE, S.PROVIDER)
_NEVER_SENT: Final = Rule(K.TRANSIENT, A.NO, S.PROVIDER)
_BUG: Final = Rule(K.BUG, A.NO, S.PROVIDER)
_UNREADABLE: Final = Rule(K.BUG, A.MAYBE, S.PROVIDER)

RULES: Final[Mapping[str, Rule]] = {
    "unauthorized": _AUTH,
    "token_readonly": _AUTH,
    "forbidden": _AUTH,
    "resource_limit_exceeded": Rule(K.QUOTA, A.NO, S.PROVIDER),
    "maintenance": Rule(K.BUSY, A.NO, S.PROVIDER),
    "not_found": Rule(K.NOT_FOUND, A.NO, S.INSTANCE),  # of a create see `CREATE_RULES`
    "method_not_allowed": _BUG,
    "json_error": _BUG,
    "uniqueness_error": Rule(K.EXISTS, A.MAYBE, S.INSTANCE),  # may be this operation's own earlier try
    "conflict": _BUSY,
    "deprecated_api_endpoint": Rule(K.DEPRECATED, A.NO, S.PROVIDER),
    "resource_unavailable": _CAPACITY,
    "primary_ip_version_mismatch": _CONFIG,
    "placement_error": _CAPACITY,
    "invalid_input": _CONFIG,
    "service_error": _CONFIG,
    "unsupported_error": _CONFIG,
    "primary_ip_datacenter_mismatch": _CONFIG,
    "networks_overlap": _CONFIG,
    "invalid_server_type": _CONFIG,
    "private_net_only_server": _CONFIG,
    "primary_ip_assigned": _FULL,
    "no_subnet_available": _FULL,
    "ip_not_available": _FULL,
    "locked": _BUSY,
    "protected": _BUSY,
    "rate_limit_exceeded": Rule(K.RATE_LIMIT, A.NO, S.PROVIDER),
    "server_error": _TRANSIENT,
    "bad_gateway": _TRANSIENT,
    "unavailable": _TRANSIENT,
    "timeout": _TRANSIENT,
}

CREATE_RULES: Final[Mapping[str, Rule]] = {
    "not_found": _CONFIG,  # the image, a network or a key is gone
}

# By status, for answers that are not the API's own (a proxy's page) and for codes that are new.
STATUS_RULES: Final[Mapping[int, Rule]] = {
    401: _AUTH,
    403: _AUTH,
    408: _TRANSIENT,
    409: _BUSY,
    423: _BUSY,
    429: RULES["rate_limit_exceeded"],
}

LOCATION_DISABLED: Final = "location disabled"
"""Words by which ``resource_unavailable`` says that a whole location is closed."""
WRONG_LOCATION: Final = "unsupported location for server type"
"""Words by which ``invalid_input`` says that the type is not sold there now, although the catalogue has it."""
LONG_SECONDS: Final = 6 * 3600.0
"""Such a refusal stays for hours."""


@dataclass(frozen=True)
class Refusal:
    """An answer that is no success."""

    status: int
    code: str = ""
    """The API's code; empty where the answer is not the API's own."""
    message: str = ""
    details: object = None
    correlation_id: str = ""

    @classmethod
    def of(cls, answer: Answer) -> "Refusal":
        """Return what an error answer says, whatever the shape of its body."""
        trace = answer.headers.get("X-Correlation-Id", "")
        error = _error_of(answer.body)
        code = error.get("code")
        if not isinstance(code, str):
            return cls(answer.status, correlation_id=trace)
        return cls(answer.status, code, str(error.get("message") or ""), error.get("details"), trace)


def refused(call: Call, refusal: Refusal) -> ProviderError:
    """Return the error that an error answer is."""
    rule = rule_for(call, refusal)
    details = _details(refusal.details)
    if refusal.code == "protected":
        details["protected"] = "true"  # no wait helps: a person protected it
    code = refusal.code or str(refusal.status)
    trace = f", correlation id {refusal.correlation_id}" if refusal.correlation_id else ""
    limits = f"; limits reached: {details['limits']}" if "limits" in details else ""
    return _error(call, f"{refusal.message or 'no message'} ({code}{trace}){limits}", rule, code, details)


def rule_for(call: Call, refusal: Refusal) -> Rule:
    """Return what an error answer means, for a call that changes something."""
    words = refusal.message.lower()
    if refusal.code == "resource_unavailable" and LOCATION_DISABLED in words:
        return Rule(K.CAPACITY, A.NO, S.LOCATION)
    if refusal.code == "invalid_input" and WRONG_LOCATION in words:
        return Rule(K.CAPACITY, A.NO, S.OFFER, LONG_SECONDS)
    known = CREATE_RULES.get(refusal.code) if call is Call.CREATE else None
    if (known := known or RULES.get(refusal.code)) is not None:
        return known
    return _TRANSIENT if refusal.status >= 500 else STATUS_RULES.get(refusal.status, _UNREADABLE)


def unanswered(call: Call, error: NoAnswerError) -> ProviderError:
    """Return the error of a call that got no answer."""
    return _error(call, f"no answer: {error}", _TRANSIENT if error.sent else _NEVER_SENT, "no answer")


def unreadable(call: Call, reason: str) -> ProviderError:
    """Return the error of a success whose content makes no sense."""
    return _error(call, f"the answer cannot be understood: {reason}", _UNREADABLE, "unreadable")


def not_sent(kind: ErrorKind, message: str, scope: Scope = Scope.POOL) -> ProviderError:
    """Return the error of what is refused here, before any call."""
    return ProviderError(f"hetzner: {message}", kind=kind, applied=Applied.NO, scope=scope, code="not sent")


def _error(call: Call, message: str, rule: Rule, code: str, details: Mapping[str, str] | None = None) -> ProviderError:
    return ProviderError(
        f"hetzner: {message}",
        kind=rule.kind,
        applied=rule.applied if call.mutates else Applied.NO,
        scope=rule.scope,
        retry_after=rule.retry_after,
        code=code,
        details=details,
    )


def _error_of(body: bytes) -> Mapping[str, Any]:
    try:
        error = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        return {}
    return error if isinstance(error, dict) else {}


def _details(details: object) -> dict[str, str]:
    """Return the answer's details as text; of limits, their names alone."""
    if not isinstance(details, Mapping):
        return {}
    found: dict[str, str] = {}
    for key, value in details.items():
        if key == "limits" and isinstance(value, list):
            names = [str(item.get("name")) for item in value if isinstance(item, Mapping)]
            found["limits"] = ", ".join(names)
        else:
            found[str(key)] = (value if isinstance(value, str) else json.dumps(value, default=str))[:500]
    return found
