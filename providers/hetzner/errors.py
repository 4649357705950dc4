"""What each of the API's error codes means for the caller.

The table follows the error codes in Hetzner's API reference.  Codes decide, never words, with two exceptions that share
a code with something else and can be distinguished by their message only.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from providers.base import Applied, ErrorKind, ProviderError, Scope
from providers.http import Answer, Call, NoAnswerError

K, A, S = ErrorKind, Applied, Scope


@dataclass(frozen=True)
class Meaning:
    """Meaning of one code, in answer to a call that changes something."""

    kind: ErrorKind
    applied: Applied
    scope: Scope
    retry_after: float | None = None


_CONFIG: Final = Meaning(K.CONFIG, A.NO, S.POOL)
_FULL: Final = Meaning(K.BUSY, A.NO, S.POOL)
_AUTH: Final = Meaning(K.AUTH, A.NO, S.PROVIDER)
_CAPACITY: Final = Meaning(K.CAPACITY, A.NO, S.OFFER)
_BUSY: Final = Meaning(K.BUSY, A.NO, S.INSTANCE)
_TRANSIENT: Final = Meaning(K.TRANSIENT, A.MAYBE, S.PROVIDER)
_NEVER_SENT: Final = Meaning(K.TRANSIENT, A.NO, S.PROVIDER)
_BUG: Final = Meaning(K.BUG, A.NO, S.PROVIDER)
_UNREADABLE: Final = Meaning(K.BUG, A.MAYBE, S.PROVIDER)

MEANINGS: Final[Mapping[str, Meaning]] = {
    "unauthorized": _AUTH,
    "token_readonly": _AUTH,
    "forbidden": _AUTH,
    "resource_limit_exceeded": Meaning(K.QUOTA, A.NO, S.PROVIDER),
    "maintenance": Meaning(K.BUSY, A.NO, S.PROVIDER),
    "not_found": Meaning(K.NOT_FOUND, A.NO, S.INSTANCE),  # of a create see `CREATE_MEANINGS`
    "method_not_allowed": _BUG,
    "json_error": _BUG,
    "uniqueness_error": Meaning(K.EXISTS, A.MAYBE, S.INSTANCE),  # may be this operation's own earlier try
    "conflict": _BUSY,
    "deprecated_api_endpoint": Meaning(K.DEPRECATED, A.NO, S.PROVIDER),
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
    "rate_limit_exceeded": Meaning(K.RATE_LIMIT, A.NO, S.PROVIDER),
    "server_error": _TRANSIENT,
    "bad_gateway": _TRANSIENT,
    "unavailable": _TRANSIENT,
    "timeout": _TRANSIENT,
}

CREATE_MEANINGS: Final[Mapping[str, Meaning]] = {
    "not_found": _CONFIG,  # the image, a network or a key is gone
}

# By status, for answers that are not the API's own (a proxy's page) and for codes that are new.
STATUS_MEANINGS: Final[Mapping[int, Meaning]] = {
    401: _AUTH,
    403: _AUTH,
    408: _TRANSIENT,
    409: _BUSY,
    423: _BUSY,
    429: MEANINGS["rate_limit_exceeded"],
}

LOCATION_DISABLED: Final = "location disabled"
"""Words by which ``resource_unavailable`` says that a whole location is closed."""
WRONG_LOCATION: Final = "unsupported location for server type"
"""Words by which ``invalid_input`` says that the type is not sold there now, although the catalogue has it."""
LONG_SECONDS: Final = 6 * 3600.0
"""Such a refusal stays for hours."""


@dataclass(frozen=True)
class ErrorAnswer:
    """An answer that is no success."""

    status: int
    code: str = ""
    """The API's code; empty where the answer is not the API's own."""
    message: str = ""
    details: object = None
    correlation_id: str = ""

    @classmethod
    def of(cls, answer: Answer) -> "ErrorAnswer":
        """Return what an error answer says, whatever the shape of its body."""
        trace = answer.headers.get("X-Correlation-Id", "")
        error = _error_of(answer.body)
        code = error.get("code")
        if not isinstance(code, str):
            return cls(answer.status, correlation_id=trace)
        return cls(answer.status, code, str(error.get("message") or ""), error.get("details"), trace)


def refused(call: Call, answer: ErrorAnswer) -> ProviderError:
    """Return the error that an error answer is."""
    meaning = meaning_of(call, answer)
    details = _details(answer.details)
    if answer.code == "protected":
        details["protected"] = "true"  # no wait helps: a person protected it
    code = answer.code or str(answer.status)
    trace = f", correlation id {answer.correlation_id}" if answer.correlation_id else ""
    limits = f"; limits reached: {details['limits']}" if "limits" in details else ""
    return _error(call, f"{answer.message or 'no message'} ({code}{trace}){limits}", meaning, code, details)


def meaning_of(call: Call, answer: ErrorAnswer) -> Meaning:
    """Return what an error answer means, for a call that changes something."""
    words = answer.message.lower()
    if answer.code == "resource_unavailable" and LOCATION_DISABLED in words:
        return Meaning(K.CAPACITY, A.NO, S.LOCATION)
    if answer.code == "invalid_input" and WRONG_LOCATION in words:
        return Meaning(K.CAPACITY, A.NO, S.OFFER, LONG_SECONDS)
    known = CREATE_MEANINGS.get(answer.code) if call is Call.CREATE else None
    if (known := known or MEANINGS.get(answer.code)) is not None:
        return known
    return _TRANSIENT if answer.status >= 500 else STATUS_MEANINGS.get(answer.status, _UNREADABLE)


def unanswered(call: Call, error: NoAnswerError) -> ProviderError:
    """Return the error of a call that got no answer."""
    return _error(call, f"no answer: {error}", _TRANSIENT if error.sent else _NEVER_SENT, "no answer")


def unreadable(call: Call, reason: str) -> ProviderError:
    """Return the error of a success whose content makes no sense."""
    return _error(call, f"the answer cannot be understood: {reason}", _UNREADABLE, "unreadable")


def not_sent(kind: ErrorKind, message: str, scope: Scope = Scope.POOL) -> ProviderError:
    """Return the error of what is refused here, before any call."""
    return ProviderError(f"hetzner: {message}", kind=kind, applied=Applied.NO, scope=scope, code="not sent")


def _error(
    call: Call, message: str, meaning: Meaning, code: str, details: Mapping[str, str] | None = None
) -> ProviderError:
    return ProviderError(
        f"hetzner: {message}",
        kind=meaning.kind,
        applied=meaning.applied if call.mutates else Applied.NO,
        scope=meaning.scope,
        retry_after=meaning.retry_after,
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
