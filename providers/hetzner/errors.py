"""What each of the API's error codes means for the caller.

The table follows the error codes in Hetzner's API reference.  Codes decide, never words, with two exceptions that share
a code with something else and are told apart by their message alone.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import requests
from hcloud import APIException

from providers.base import Applied, ErrorKind, ProviderError, Scope

K, A, S = ErrorKind, Applied, Scope


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
_BUG: Final = Rule(K.BUG, A.NO, S.PROVIDER)
NOT_UNDERSTOOD: Final = Rule(K.BUG, A.MAYBE, S.PROVIDER)

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
"""Words by which ``resource_unavailable`` tells that a whole location is closed."""
WRONG_LOCATION: Final = "unsupported location for server type"
"""Words by which ``invalid_input`` tells that the type is not sold there now, although the catalogue has it."""
LONG_SECONDS: Final = 6 * 3600.0
"""Such a refusal stays for hours."""


def rule_for(code: str | int, message: str, *, status: int | None = None, creating: bool = False) -> Rule:
    """What an answer means.

    Args:
        code: the API's code; a number where the answer was not the API's own.
        message: its words; looked at for the two documented exceptions only.
        status: HTTP status of the answer, for a code that is not in the table.
        creating: whether the call was a create.
    """
    words = message.lower()
    if code == "resource_unavailable" and LOCATION_DISABLED in words:
        return Rule(K.CAPACITY, A.NO, S.LOCATION)
    if code == "invalid_input" and WRONG_LOCATION in words:
        return Rule(K.CAPACITY, A.NO, S.OFFER, LONG_SECONDS)
    if isinstance(code, str):
        known = CREATE_RULES.get(code) if creating else None
        if (known := known or RULES.get(code)) is not None:
            return known
    number = code if isinstance(code, int) else status or 0
    if number >= 500:
        return _TRANSIENT
    return STATUS_RULES.get(number, NOT_UNDERSTOOD)


def from_api(error: APIException, *, status: int | None, mutating: bool, creating: bool = False) -> ProviderError:
    """The port's error for an error answer.

    Args:
        error: what hcloud made of the answer.
        status: its HTTP status.
        mutating: whether the call could change anything.
        creating: whether it was a create.
    """
    rule = rule_for(error.code, error.message or "", status=status, creating=creating)
    details = _details(error.details)
    if error.code == "protected":
        details["protected"] = "true"  # no wait helps: a person protected it
    trace = f", correlation id {error.correlation_id}" if error.correlation_id else ""
    told = f"{error.message or 'no message'} ({error.code}{trace})"
    if "limits" in details:
        told += f"; limits reached: {details['limits']}"
    return made(told, rule, mutating=mutating, code=str(error.code), details=details)


def from_transport(error: requests.RequestException, *, mutating: bool) -> ProviderError:
    """The port's error for a call that got no answer."""
    return made(f"no answer: {error}", _TRANSIENT, mutating=mutating, code=type(error).__name__)


def not_understood(what: str, *, mutating: bool) -> ProviderError:
    """The port's error for an answer that makes no sense."""
    return made(f"the answer is not understood: {what}", NOT_UNDERSTOOD, mutating=mutating)


def refusal(kind: ErrorKind, message: str, scope: Scope = Scope.POOL) -> ProviderError:
    """For what is refused here, before any call."""
    return ProviderError(f"hetzner: {message}", kind=kind, applied=Applied.NO, scope=scope)


def made(
    message: str, rule: Rule, *, mutating: bool, code: str = "", details: Mapping[str, str] | None = None
) -> ProviderError:
    """The port's error by a rule; what only reads never had an effect."""
    return ProviderError(
        f"hetzner: {message}",
        kind=rule.kind,
        applied=rule.applied if mutating else Applied.NO,
        scope=rule.scope,
        retry_after=rule.retry_after,
        code=code,
        details=details,
    )


def _details(details: object) -> dict[str, str]:
    """The answer's details as words; the names of limits stand alone."""
    if not isinstance(details, Mapping):
        return {}
    told: dict[str, str] = {}
    for key, value in details.items():
        if key == "limits" and isinstance(value, list):
            names = [str(item.get("name")) for item in value if isinstance(item, Mapping)]
            told["limits"] = ", ".join(names)
        else:
            told[str(key)] = (value if isinstance(value, str) else json.dumps(value, default=str))[:500]
    return told
