"""Tokens and what they may do."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from gateway.wire.base import Answer, Request, Timestamp

TOKEN_HEADER = "X-UCloud-Sandbox-Token"  # noqa: S105 - the header's name


class Scope(StrEnum):
    """``client`` works with sandboxes; ``operator`` may do everything; ``node`` is one node agent's own credential."""

    CLIENT = "client"
    OPERATOR = "operator"
    NODE = "node"


class TokenRequest(Request):
    """Makes a token for people or programs.  Node credentials come from registration only."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=128)]
    """For people: whose it is."""
    scope: Scope = Field(strict=False)
    """``client`` or ``operator``."""
    expires_seconds: int | None = Field(default=None, ge=1)
    """``null``: it does not expire."""


class TokenRecord(Answer):
    """A token as stored: everything but the secret."""

    id: str
    """Revokes it; no secret."""
    name: str
    """As asked for."""
    scope: Scope
    """What it may do."""
    created_at: Timestamp
    """When it was made."""
    expires_at: Timestamp | None = None
    """Null: never."""
    revoked_at: Timestamp | None = None
    """Null: it is good."""


class TokenCreated(Answer):
    """The only answer that ever carries the secret."""

    token: str
    """The secret."""
    record: TokenRecord
    """The rest."""


class TokenList(Answer):
    """All tokens, oldest first."""

    tokens: list[TokenRecord]
    """Revoked ones included."""
