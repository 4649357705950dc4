"""Tokens: hashed, scoped, revoked at once."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from gateway.errors import ApiError
from gateway.services.tasks import random_id
from gateway.services.tokens import TokenService
from gateway.store.db import Database
from gateway.wire import limits
from gateway.wire.errors import ErrorCode
from gateway.wire.tokens import TokenRequest, TokenScope
from tests.scenario.gateway.world import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def service(tmp_path: Path, clock: ManualClock) -> AsyncIterator[TokenService]:
    db = Database.open(f"sqlite:///{tmp_path / 'g.db'}")
    yield TokenService(db, clock, random_id)
    db.close()


async def refused(service: TokenService, secret: str) -> bool:
    with pytest.raises(ApiError) as caught:
        await service.verify(secret)
    return caught.value.code is ErrorCode.UNAUTHORIZED


async def test_a_secret_is_shown_once_and_has_its_scope(service: TokenService) -> None:
    made = await service.make(TokenRequest(name="laptop", scope=TokenScope.OPERATOR))
    principal = await service.verify(made.token)
    assert (principal.token_id, principal.name, principal.scope) == (made.record.id, "laptop", TokenScope.OPERATOR)
    assert made.token not in (await service.all()).model_dump_json()


async def test_the_secret_is_nowhere_in_the_database(service: TokenService, tmp_path: Path) -> None:
    made = await service.make(TokenRequest(name="laptop", scope=TokenScope.CLIENT))
    for path in tmp_path.iterdir():
        assert made.token.encode() not in path.read_bytes()


@pytest.mark.parametrize("secret", ["", "wrong", "x" * 100_000, "\udcff", "sbxc_"])
async def test_what_is_not_a_token_is_refused(service: TokenService, secret: str) -> None:
    assert await refused(service, secret)


async def test_a_revoked_token_ends_at_once(service: TokenService) -> None:
    made = await service.make(TokenRequest(name="laptop", scope=TokenScope.CLIENT))
    await service.verify(made.token)
    first = await service.revoke(made.record.id)
    assert first.revoked_at is not None
    assert await refused(service, made.token)
    assert await service.revoke(made.record.id) == first


async def test_a_token_expires(service: TokenService, clock: ManualClock) -> None:
    made = await service.make(TokenRequest(name="laptop", scope=TokenScope.CLIENT, expires_seconds=60))
    await service.verify(made.token)
    clock.advance(60)
    assert await refused(service, made.token)


async def test_node_tokens_come_from_registration_only() -> None:
    with pytest.raises(ValidationError):
        TokenRequest.model_validate({"name": "node", "scope": "node"})


async def test_a_token_expires_at_the_latest_when_a_date_can_still_say_so(service: TokenService) -> None:
    made = await service.make(TokenRequest(name="x", scope="client", expires_seconds=limits.MAX_TOKEN_TTL))
    assert made.record.expires_at is not None


async def test_an_unknown_token_cannot_be_revoked(service: TokenService) -> None:
    with pytest.raises(ApiError) as caught:
        await service.revoke("nope")
    assert caught.value.code is ErrorCode.NOT_FOUND


async def test_a_revocation_by_another_process_is_seen_after_the_cache(
    service: TokenService, clock: ManualClock, tmp_path: Path
) -> None:
    made = await service.make(TokenRequest(name="laptop", scope=TokenScope.CLIENT))
    await service.verify(made.token)
    other = Database.open(f"sqlite:///{tmp_path / 'g.db'}")
    await TokenService(other, clock, random_id).revoke(made.record.id)
    other.close()
    clock.advance(2)
    assert await refused(service, made.token)
