"""Tokens: made, listed, revoked, checked."""

from dataclasses import dataclass

from gateway.wire.tokens import Scope, TokenCreated, TokenList, TokenRecord, TokenRequest


@dataclass(frozen=True)
class Principal:
    """Who a request comes from."""

    token_id: str
    name: str
    scope: Scope
    node_id: str | None = None
    """The node whose credential it is, for scope ``node``."""


class TokenService:
    """Needs no other service, so that ``sandboxes token`` can use it on the database alone."""

    async def make(self, request: TokenRequest) -> TokenCreated:
        """A new token; the only time that its secret is told.

        Raises:
            ApiError: ``INVALID_REQUEST`` for scope ``node``: those come from registration only.
        """
        raise AssertionError

    async def all(self) -> TokenList:
        """All tokens of people and programs, oldest first, revoked ones included."""
        raise AssertionError

    async def revoke(self, token_id: str) -> TokenRecord:
        """Ends it at once in this process, and within 2 s in others on the same database.  Idempotent.

        Raises:
            ApiError: ``NOT_FOUND``.
        """
        raise AssertionError

    async def verify(self, secret: str) -> Principal:
        """Whose secret it is.

        Raises:
            ApiError: ``UNAUTHORIZED`` (unknown, expired or revoked).
        """
        raise AssertionError
