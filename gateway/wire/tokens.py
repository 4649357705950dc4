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
    scope: Scope = Field(strict=False)
    expires_seconds: int | None = Field(default=None, ge=1)


class TokenRecord(Answer):
    """A token as stored: everything but the secret."""

    id: str
    name: str
    scope: Scope
    created_at: Timestamp
    expires_at: Timestamp | None = None
    revoked_at: Timestamp | None = None


class TokenCreated(Answer):
    """The only answer that ever carries the secret."""

    token: str
    record: TokenRecord


class TokenList(Answer):
    """All tokens, oldest first."""

    tokens: list[TokenRecord]
