"""Tokens: made, listed, revoked, verified."""

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cachetools import TTLCache
from sqlmodel import Session

from gateway.core.model import Token
from gateway.errors import ApiError
from gateway.services.registration import valid_grant
from gateway.services.tasks import AsyncClock, NewId
from gateway.services.to_wire import token_record
from gateway.store import tokens
from gateway.store.db import Database
from gateway.wire.errors import ErrorCode
from gateway.wire.tenants import DEFAULT_TENANT
from gateway.wire.tokens import TokenCreated, TokenList, TokenRecord, TokenRequest, TokenScope

CACHE_TTL: Final = 2.0
"""Seconds for which a token that was good is taken to be good."""
CACHE_SIZE: Final = 1024
MAX_SECRET: Final = 512
"""Longest secret that is looked up, in characters."""


@dataclass(frozen=True)
class Principal:
    """Who a request comes from."""

    token_id: str
    name: str
    scope: TokenScope
    tenant: str = DEFAULT_TENANT
    """Whose what it makes is."""
    node_id: str | None = None
    """The node whose credential it is, for scope ``node``."""


def new_secret(kind: str) -> str:
    """Return a secret of 256 random bits; ``kind`` shows people what it opens."""
    return f"sbx{kind}_{secrets.token_urlsafe(32)}"


def sha256_of(secret: str) -> str:
    """Return what is stored of a secret. It has 256 random bits, so a slow hash would add nothing."""
    return hashlib.sha256(secret.encode(errors="surrogateescape")).hexdigest()


class TokenService:
    """Makes and verifies tokens. Needs no other service: ``sandboxes token`` uses it on the database alone.

    A secret is found by its hash, so no comparison leaks how much of it was right.
    """

    def __init__(self, db: Database, clock: AsyncClock, new_id: NewId) -> None:
        self._db = db
        self._clock = clock
        self._new_id = new_id
        self._cache: TTLCache[str, Token] = TTLCache(CACHE_SIZE, CACHE_TTL, timer=clock.monotonic)
        self._changes = 0

    async def make(self, request: TokenRequest) -> TokenCreated:
        """Make a token. This is the only time that its secret is shown.

        Raises:
            ApiError: ``INVALID_REQUEST`` for an operator's of another tenant than the default one: operators see all
                tenants, and by a plain id they mean the default one's.
        """
        if TokenScope(request.scope) is TokenScope.OPERATOR and request.tenant != DEFAULT_TENANT:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"tenant: operators see all tenants, so their tokens belong to {DEFAULT_TENANT!r};"
                " make a client's token for a single tenant",
            )
        now = self._clock.now()
        lifetime = request.expires_seconds
        token = Token(
            id=self._new_id(),
            name=request.name,
            scope=request.scope,
            created_at=now,
            tenant=request.tenant,
            expires_at=None if lifetime is None else now + timedelta(seconds=lifetime),
        )
        secret = new_secret(request.scope[0])
        await self._db.write(lambda session: tokens.add(session, token, sha256_of(secret)))
        return TokenCreated(token=secret, record=token_record(token))

    async def all(self) -> TokenList:
        """Return all tokens of people and programs, oldest first, revoked ones included."""
        found = await self._db.read(tokens.of_people)
        return TokenList(tokens=[token_record(token) for token in found])

    async def revoke(self, token_id: str) -> TokenRecord:
        """Revoke a token, at once in this process and within `CACHE_TTL` in others on the same database. Idempotent.

        Raises:
            ApiError: ``NOT_FOUND``.
        """
        now = self._clock.now()

        def fn(session: Session) -> Token | None:
            tokens.revoke(session, token_id, now)
            return tokens.get(session, token_id)

        token = await self._db.write(fn, reserved=True)
        self.forget()
        if token is None:
            raise ApiError(ErrorCode.NOT_FOUND, f"there is no token {token_id}; list them to see the ids")
        return token_record(token)

    async def verify(self, secret: str) -> Principal:
        """Return whose secret it is.

        Raises:
            ApiError: ``UNAUTHORIZED`` (unknown, expired or revoked).
        """
        token = await self._find(secret)
        if token is None:
            raise ApiError(ErrorCode.UNAUTHORIZED, "the token is not known here; check it, or make a new one")
        if token.revoked_at is not None:
            raise ApiError(ErrorCode.UNAUTHORIZED, f"token {token.name!r} was revoked; make a new one")
        if _expired(token, self._clock.now()):
            raise ApiError(ErrorCode.UNAUTHORIZED, f"token {token.name!r} has expired; make a new one")
        return Principal(token.id, token.name, TokenScope(token.scope), token.tenant, token.node_id)

    async def verify_join_token(self, secret: str) -> None:
        """Verify a join token with which an instance may still register; it stays unused.

        Raises:
            ApiError: as registration would.
        """
        digest, now = sha256_of(secret), self._clock.now()
        await self._db.read(lambda session: valid_grant(session, digest, now))

    def forget(self) -> None:
        """Empty the cache after tokens changed."""
        self._changes += 1
        self._cache.clear()

    async def _find(self, secret: str) -> Token | None:
        if not secret or len(secret) > MAX_SECRET:
            return None
        digest = sha256_of(secret)
        known = self._cache.get(digest)
        if known is not None:
            return known
        changes = self._changes
        token = await self._db.read(lambda session: tokens.of_secret(session, digest))
        # What was read before a change must not outlive it in the cache.
        if token is not None and changes == self._changes:
            self._cache[digest] = token
        return token


def _expired(token: Token, now: datetime) -> bool:
    return token.expires_at is not None and token.expires_at <= now
