"""Several gateways on one PostgreSQL: what one does is felt in the others at once, and none leaves work behind."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from sqlalchemy import text

from gateway.errors import ApiError
from gateway.services.tasks import LOOP_RETRY
from gateway.services.unit_of_work import TAKEOVER_INTERVAL
from gateway.store.db import make_engine
from gateway.wire.errors import ErrorCode
from gateway.wire.states import SandboxState
from tests.scenario.gateway.test_crash import drop
from tests.scenario.gateway.world import Fleet, MovedClock, World, settings_for, spec, world

S = SandboxState


@pytest.fixture
async def pair(tmp_path: Path, postgres_url: str) -> AsyncIterator[tuple[World, World]]:
    fleet, clock = Fleet(), MovedClock()
    async with (
        world(settings_for(tmp_path / "1", postgres_url), fleet, clock) as one,
        world(settings_for(tmp_path / "2", postgres_url), fleet, clock) as two,
    ):
        await both_listen(postgres_url)
        yield one, two


LISTENERS = "FROM pg_stat_activity WHERE query = 'LISTEN sandbox_fleet' AND datname = current_database()"


async def both_listen(url: str, meanwhile: Callable[[], None] = lambda: None) -> None:
    engine = make_engine(url)
    query = text(f"SELECT count(*) {LISTENERS}")
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        while connection.execute(query).scalar_one() < 2:
            await asyncio.sleep(0.01)  # PostgreSQL tells nobody who listens
            meanwhile()
    engine.dispose()


def cut_off(url: str) -> None:
    """Ends the connections on which gateways listen, and returns once they are gone."""
    engine = make_engine(url)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        ended = connection.execute(text(f"SELECT pg_terminate_backend(pid, 10000) {LISTENERS}"))
        assert ended.scalars().all() == [True, True]
    engine.dispose()


async def test_a_gateway_that_was_cut_off_listens_again(pair: tuple[World, World], postgres_url: str) -> None:
    one, two = pair
    await asyncio.to_thread(cut_off, postgres_url)
    await both_listen(postgres_url, lambda: one.moved.advance(LOOP_RETRY))
    create = asyncio.create_task(one.services.sandboxes.create(spec()))
    await one.until("a", S.PENDING)
    await two.join()
    assert (await create).sandbox.state is S.RUNNING


async def test_a_wait_in_one_gateway_ends_with_what_another_does(pair: tuple[World, World]) -> None:
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
    await one.moved.someone_sleeps(0.1)
    await two.services.sandboxes.delete("a")
    with pytest.raises(ApiError) as caught:
        await create
    assert caught.value.code is ErrorCode.SANDBOX_NOT_RUNNING
    one.fleet.faults.clear()
    one.moved.advance(10)
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
        two.moved.advance(TAKEOVER_INTERVAL / 3)
        await two.beat(node)
    await running
    two.moved.advance(600)
    await two.until("a", S.DELETED)


async def test_a_lease_that_is_kept_in_one_gateway_is_not_ended_by_another(pair: tuple[World, World]) -> None:
    one, two = pair
    create = asyncio.create_task(one.services.sandboxes.create(spec()))
    await one.until("a", S.PENDING)
    two.services.internals.expiry.renew("a")  # as if it had started now
    create.cancel()
    await asyncio.gather(create, return_exceptions=True)
    one.moved.advance(200)
    again = asyncio.create_task(one.services.sandboxes.create(spec()))
    while again.done() or not one.services.internals.context.uow.is_watched("a"):
        await asyncio.sleep(0)
    await one.moved.someone_sleeps(one.settings.create_wait)
    await one.services.internals.activity.flush()
    one.moved.advance(100)
    for _ in range(20):
        assert await two.state("a") is S.PENDING
    again.cancel()


async def test_a_wait_of_a_dead_gateway_runs_out(pair: tuple[World, World]) -> None:
    one, two = pair
    create = asyncio.create_task(one.services.sandboxes.create(spec()))
    await one.until("a", S.PENDING)
    create.cancel()
    await asyncio.gather(create, return_exceptions=True)
    await drop(one.services)
    failed = asyncio.create_task(two.until("a", S.FAILED))
    for _ in range(20):
        await two.moved.someone_sleeps(TAKEOVER_INTERVAL)
        two.moved.advance(TAKEOVER_INTERVAL)
        await asyncio.wait({failed}, timeout=0.1)
    await failed
