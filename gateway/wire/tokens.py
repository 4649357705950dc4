"""Tokens and what they may do."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from gateway.wire import limits
from gateway.wire.base import Timestamp, WireAnswer, WireRequest
from gateway.wire.tenants import DEFAULT_TENANT, TenantName

TOKEN_HEADER = "X-UCloud-Sandbox-Token"  # noqa: S105 - the header's name


class TokenScope(StrEnum):
    """``client`` works with sandboxes; ``operator`` may do everything; ``node`` is one node agent's own credential."""

    CLIENT = "client"
    OPERATOR = "operator"
    NODE = "node"


RequestedScope = Literal["client", "operator"]
"""What a token for people or programs may do."""


class TokenRequest(WireRequest):
    """Creates a token for people or programs.  Node credentials come from registration only."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=128)]
    """For people: what the token is for."""
    scope: RequestedScope
    """What it may do."""
    tenant: TenantName = DEFAULT_TENANT
    """Whose it is: what its holder makes is seen by this tenant's tokens, and by operators, whose own tokens belong to
    the default one."""
    expires_seconds: int | None = Field(default=None, ge=1, le=limits.MAX_TOKEN_TTL)
    """Seconds until it expires; ``null``: never."""


class TokenRecord(WireAnswer):
    """A token as stored: everything but the secret."""

    id: str
    """Id by which it is revoked; not a secret."""
    name: str
    """As requested."""
    scope: TokenScope
    """What it may do."""
    tenant: str = DEFAULT_TENANT
    """Whose it is."""
    created_at: Timestamp
    """When it was created."""
    expires_at: Timestamp | None = None
    """When it expires; null: never."""
    revoked_at: Timestamp | None = None
    """When it was revoked; null: it is valid."""


class TokenCreated(WireAnswer):
    """The only answer that ever carries the secret."""

    token: str
    """The secret."""
    record: TokenRecord
    """Everything but the secret."""


class TokenList(WireAnswer):
    """All tokens, oldest first."""

    tokens: list[TokenRecord]
    """Including revoked ones."""
