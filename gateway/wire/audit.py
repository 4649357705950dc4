"""The audit log: who did what, and what came of it.

A line never holds a body, a query string, a header, a command, an environment, output or a path inside a sandbox.
"""

import json
from datetime import datetime
from enum import StrEnum
from typing import Final

from pydantic import AwareDatetime

from gateway.wire.base import Timestamp, WireAnswer, WireModel
from gateway.wire.tenants import TenantName, tenant_of

MAX_TEXT: Final = 256
"""Characters of a text that a caller chose; the rest is left out."""


TENANTS_OWN: Final = frozenset({"sandbox_id", "session_id", "prepare_id"})
"""Targets that belong to a tenant: their ids are the qualified ones, in every line."""


class AuditActor(StrEnum):
    """Who did it: the scope of a token, or one of those who have none."""

    CLIENT = "client"
    OPERATOR = "operator"
    NODE = "node"
    JOIN = "join"  # a machine with an unused join token
    NOBODY = "nobody"  # no token, or one that is not valid
    SERVICE = "service"  # the service itself, by a deadline or a rule
    LOCAL = "local"  # a command on the gateway's machine that used the database directly


class AuditOutcome(StrEnum):
    """What is known of how a call ended, where its status does not say it."""

    PENDING = "pending"  # in the files only: written before the call takes effect
    UNKNOWN = "unknown"  # the gateway was killed before it wrote how the call ended, which may have taken effect


class AuditEntry(WireAnswer):
    """One line of the audit log."""

    time: Timestamp
    """When the outcome was known, and before the answer is sent; with an `outcome`, when the call began."""
    call: str | None = None
    """Of a call that changes something: the same in the line before its effect and in the one with its outcome."""
    outcome: AuditOutcome | None = None
    """``unknown``: how the call ended was not written, as the gateway was killed; null: status and code say it."""
    actor: AuditActor
    """The scope of the token; or ``join``, ``nobody``, ``service``, ``local``."""
    tenant: str | None = None
    """Whose token it was; for what the service does, whose sandbox it was."""
    token_id: str | None = None
    """Id of the token."""
    token_name: str | None = None
    """Its name."""
    address: str | None = None
    """Where the connection came from: behind a proxy, the proxy's."""
    forwarded_for: str | None = None
    """``X-Forwarded-For`` as it was sent; true only as far as whoever sent it is trusted."""
    request_id: str | None = None
    """As in ``X-Request-Id`` and in the gateway's log."""
    method: str | None = None
    """HTTP method; null for what was not asked for over HTTP."""
    route: str | None = None
    """The route's template, never the path that was sent; null where there is no such route."""
    event: str | None = None
    """What was done without an HTTP call, such as ``ttl``, ``node_lost`` or ``token_created``."""
    target: dict[str, str] = {}
    """Ids of what it was about: of sandboxes, sessions and prepared capacity those that operators see."""
    status: int | None = None
    """HTTP status; null if no answer could be sent."""
    code: str | None = None
    """The error's code, if it was refused; ``sandbox_not_found`` also of a delete that found nothing, which is none."""
    fields: list[str] | None = None
    """Of ``policy_denied`` and ``quota_exceeded``: the keys that were refused, without their values."""
    image: str | None = None
    """Of a create."""
    spec_sha256: str | None = None
    """Of a create: digest of the spec with defaults filled in."""
    count: int | None = None
    """How many further refusals of the same caller this line stands for."""

    def line(self) -> bytes:
        """Return it as one line of printable ASCII."""
        # ASCII, because line separators beyond it end a line for some readers.
        return json.dumps(self.model_dump(mode="json", exclude_none=True)).encode("ascii") + b"\n"

    def concerns(self, tenant: str) -> bool:
        """Return whether the tenant did it, or it was done to something of the tenant's."""
        # Every line about a session names its sandbox as well.
        owners = {tenant_of(self.target[name]) for name in ("sandbox_id", "prepare_id") if name in self.target}
        return self.tenant == tenant or tenant in owners


class AuditQuery(WireModel):
    """Which lines, and where to begin."""

    since: AwareDatetime | None = None
    until: AwareDatetime | None = None
    tenant: TenantName | None = None
    limit: int
    cursor: str | None = None

    def matches(self, entry: AuditEntry) -> bool:
        """Return whether the line is asked for."""
        return (
            _not_before(entry.time, self.since)
            and (self.until is None or entry.time < self.until)
            and (self.tenant is None or entry.concerns(self.tenant))
        )


def _not_before(time: datetime, since: datetime | None) -> bool:
    return since is None or time >= since


class AuditPage(WireAnswer):
    """One page of the audit log, oldest first."""

    entries: list[AuditEntry]
    """The lines; there may be none although there are more."""
    next_cursor: str
    """Where to continue, also after the last line written so far."""
    more: bool
    """Whether there is more to read now."""
