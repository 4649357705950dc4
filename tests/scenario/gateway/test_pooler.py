"""Two gateways whose PostgreSQL is behind PgBouncer in transaction mode."""

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlmodel import Session

from gateway.errors import StoreError
from gateway.store.db import Database
from gateway.wire.states import SandboxState
from tests.engines.pgbouncer import url_past
from tests.engines.postgres import Server
from tests.scenario.gateway.world import Fleet, ManualClock, settings_for, spec, world

S = SandboxState


@pytest.fixture
def urls(postgres_server: Server, pooler: int) -> Iterator[tuple[str, str]]:
    """The URL past the pooler, and that of the server itself."""
    with postgres_server.database() as url:
        yield url_past(pooler, url), url


async def test_one_gateway_hears_what_the_other_changes(tmp_path: Path, urls: tuple[str, str]) -> None:
    past, direct = urls
    fleet, clock = Fleet(), ManualClock()
    both = [settings_for(tmp_path / n, past).model_copy(update={"database_direct_url": direct}) for n in "12"]
    async with world(both[0], fleet, clock) as one, world(both[1], fleet, clock) as two:
        await _both_listen(direct)
        create = asyncio.create_task(one.services.sandboxes.create(spec()))
        await one.until("a", S.PENDING)
        await two.join()
        assert (await create).sandbox.state is S.RUNNING


async def _both_listen(url: str) -> None:
    db = await asyncio.to_thread(Database.open, url)
    query = text("SELECT count(*) FROM pg_stat_activity WHERE query = 'LISTEN sandbox_fleet'")
    while await db.read(lambda session: session.execute(query).scalar_one()) < 2:
        await asyncio.sleep(0.01)  # PostgreSQL tells nobody who listens
    db.close()


async def test_many_transactions_at_once_are_as_good_as_without_a_pooler(urls: tuple[str, str]) -> None:
    databases = [await asyncio.to_thread(Database.open, urls[0]) for _ in range(3)]
    query = text("SELECT count(*) + :n FROM sandboxes")

    def fn(session: Session, n: int) -> int:
        return int(session.execute(query, {"n": n}).scalar_one())

    try:
        # More often than the driver waits before it prepares a statement.
        calls = [(db.read if n % 3 else db.write)(partial(fn, n=n)) for n in range(60) for db in databases]
        assert await asyncio.gather(*calls) == [n for n in range(60) for _ in databases]
        settings = await databases[0].read(
            lambda session: session.execute(text("SELECT current_setting('lock_timeout')")).scalar_one()
        )
        assert settings == "5s"
    finally:
        for db in databases:
            await asyncio.to_thread(db.close)


def test_a_pooler_without_a_way_past_it_is_refused(urls: tuple[str, str]) -> None:
    db = Database.open(urls[0])
    try:
        with pytest.raises(StoreError, match="database_direct_url"):
            db.hear_notices_on(None)
        with pytest.raises(StoreError, match="pooler"):
            db.hear_notices_on(urls[0])
        db.hear_notices_on(urls[1])
    finally:
        db.close()


def test_a_way_to_another_database_is_refused(urls: tuple[str, str], postgres_server: Server) -> None:
    db = Database.open(urls[0])
    try:
        with postgres_server.database() as other, pytest.raises(StoreError, match="another database"):
            db.hear_notices_on(other)
        with pytest.raises(StoreError, match="refused"):
            db.hear_notices_on("postgresql://tests@127.0.0.1:1/nothing")
    finally:
        db.close()
