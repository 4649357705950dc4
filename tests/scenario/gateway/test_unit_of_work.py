"""Several gateways on one PostgreSQL: each learns of the others' changes at once, and takes over what one left."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from sqlalchemy import text
from sqlmodel import Session

from gateway.errors import ApiError
from gateway.services.assembly import build
from gateway.services.tasks import LOOP_RETRY
from gateway.services.unit_of_work import TAKEOVER_INTERVAL
from gateway.store import failures
from gateway.store.db import Database, make_engine
from gateway.wire.errors import ErrorCode
from gateway.wire.states import SandboxState
from tests.scenario.gateway.world import (
    LISTENERS,
    Fleet,
    ManualClock,
    World,
    both_listen,
    drop,
    refused,
    settings_for,
    spec,
)

S = SandboxState
T = TypeVar("T")


class LosingDatabase(Database):
    """A database that commits, and loses the answer where it was asked to."""

    lose_next = False

    async def write(self, fn: Callable[[Session], T], *, reserved: bool = False) -> T:
        answer = await super().write(fn, reserved=reserved)
        if self.lose_next:
            self.lose_next = False
            raise failures.away()
        return answer


async def test_a_commit_whose_answer_was_lost_is_carried_on_at_once(tmp_path: Path, database_url: str | None) -> None:
    settings, fleet, clock = settings_for(tmp_path, database_url), Fleet(), ManualClock()
    async with build(settings, fleet, clock, open_database=LosingDatabase.open) as services:
        here, db = World(services, fleet, clock, settings), services.internals.db
        assert isinstance(db, LosingDatabase)
        await here.join()
        db.lose_next = True
        with refused(ErrorCode.BUSY):
            await services.sandboxes.create(spec())
        await here.until("a", S.RUNNING)
        db.lose_next = True
        with refused(ErrorCode.BUSY):
            await services.sandboxes.delete("a")
        await here.until("a", S.DELETED)


def cut_off(url: str) -> None:
    """End the connections on which gateways listen, and return once they are gone."""
    engine = make_engine(url)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        ended = connection.execute(text(f"SELECT pg_terminate_backend(pid, 10000) {LISTENERS}"))
        assert ended.scalars().all() == [True, True]
    engine.dispose()


async def test_a_lost_change_feed_is_opened_again(pair: tuple[World, World], postgres_url: str) -> None:
    one, two = pair
    await asyncio.to_thread(cut_off, postgres_url)
    await both_listen(postgres_url, lambda: one.manual_clock.advance(LOOP_RETRY))
    create = asyncio.create_task(one.services.sandboxes.create(spec()))
    await one.until("a", S.PENDING)
    await two.join()
    assert (await create).sandbox.state is S.RUNNING


async def test_a_wait_in_one_gateway_ends_by_a_change_in_another(pair: tuple[World, World]) -> None:
    one, two = pair
    create = asyncio.create_task(one.services.sandboxes.create(spec()))
    await one.until("a", S.PENDING)
    await two.join()
    assert (await create).sandbox.state is S.RUNNING
    assert one.fleet.count("create") == 1, "only one of them drives it"


async def test_a_delete_in_one_gateway_ends_a_create_in_another(pair: tuple[World, World]) -> None:
    one, two = pair
    node = await one.join()
    one.fleet.fail("create", *["cut"] * 100)
    create = asyncio.create_task(one.services.sandboxes.create(spec()))
    await one.manual_clock.someone_sleeps(0.1)
    await two.services.sandboxes.delete("a")
    with pytest.raises(ApiError) as caught:
        await create
    assert caught.value.code is ErrorCode.SANDBOX_NOT_RUNNING
    one.fleet.faults.clear()
    one.manual_clock.advance(10)
    for _ in range(20):
        await two.state("a")
    assert (node.have, one.fleet.count("create")) == ({}, 0), "nobody goes on creating it"


async def test_work_of_a_dead_gateway_is_taken_over(pair: tuple[World, World]) -> None:
    one, two = pair
    node = await one.join()
    gate = one.fleet.hold("create")
    create = asyncio.create_task(one.services.sandboxes.create(spec(ttl_seconds=600)))
    await one.fleet.arrived["create"].wait()
    create.cancel()
    await asyncio.gather(create, return_exceptions=True)
    await drop(one.services)
    del one.fleet.gates["create"]
    gate.set()
    assert await two.state("a") is S.CREATING
    running = asyncio.create_task(two.until("a", S.RUNNING))
    assert node.have == {}, "so that no heartbeat moves it on"
    while not running.done():
        two.manual_clock.advance(TAKEOVER_INTERVAL / 3)
        await two.beat(node)
    await running
    two.manual_clock.advance(600)
    await two.until("a", S.DELETED)


async def test_a_lease_renewed_in_one_gateway_is_not_ended_by_another(pair: tuple[World, World]) -> None:
    one, two = pair
    create = asyncio.create_task(one.services.sandboxes.create(spec()))
    await one.until("a", S.PENDING)
    two.services.internals.reaper.renew("a")  # as if it had started now
    create.cancel()
    await asyncio.gather(create, return_exceptions=True)
    one.manual_clock.advance(200)
    again = asyncio.create_task(one.services.sandboxes.create(spec()))
    while again.done() or not one.services.internals.context.uow.is_watched("a"):
        await asyncio.sleep(0)
    await one.manual_clock.someone_sleeps(one.settings.create_wait)
    await one.services.internals.activity.flush()
    one.manual_clock.advance(100)
    for _ in range(20):
        assert await two.state("a") is S.PENDING
    again.cancel()


async def test_a_lease_of_a_dead_gateway_expires(pair: tuple[World, World]) -> None:
    one, two = pair
    create = asyncio.create_task(one.services.sandboxes.create(spec()))
    await one.until("a", S.PENDING)
    create.cancel()
    await asyncio.gather(create, return_exceptions=True)
    await drop(one.services)
    failed = asyncio.create_task(two.until("a", S.FAILED))
    for _ in range(20):
        await two.manual_clock.someone_sleeps(TAKEOVER_INTERVAL)
        await two.pass_time(TAKEOVER_INTERVAL)
        await asyncio.wait({failed}, timeout=0.1)
    await failed
