"""Thousands of sandboxes wait: what a scan of them costs, and that each still gets its turn."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import event, text
from sqlmodel import Session

from gateway.core import placement, transitions
from gateway.core.model import Sandbox
from gateway.errors import ApiError
from gateway.services import sandboxes as service
from gateway.services import scheduler
from gateway.store import sandboxes
from gateway.wire.capacity import Ceilings, PoolCeiling
from gateway.wire.errors import ErrorCode
from gateway.wire.resources import Shape
from gateway.wire.shares import FairPool
from gateway.wire.states import SandboxState, WaitReason
from tests.scenario.gateway.world import FakeNode, World, settings_for, spec, world

S = SandboxState
SHAPES = ({"cpus": 1.0, "memory_mb": 512}, {"cpus": 2.0, "memory_mb": 512}, {"cpus": 1.0, "memory_mb": 1024})
LARGE = Shape(cpus=1000, memory_mb=1 << 20, disk_mb=1 << 20, slots=1000)
FULL = Shape(cpus=8, memory_mb=8192, disk_mb=1 << 20, slots=0)


@pytest.fixture
async def here(tmp_path: Path, database_url: str | None) -> AsyncIterator[World]:
    async with world(settings_for(tmp_path, database_url)) as running:
        # A pool that may grow, so that what finds no room waits.
        pool = PoolCeiling(pool="cpu", shape=LARGE, runtimes=["runsc"], isolations=["gvisor"], max_nodes=3)
        await running.services.capacity.set_ceilings(Ceilings(pools=[pool]))
        yield running


async def crowd(world: World, count: int) -> list[str]:
    """Write so many waiting sandboxes, of three shapes in turn, without waking the scheduler."""
    now = world.clock.now()

    def fn(session: Session) -> list[str]:
        names = []
        for number in range(count):
            wanted = spec(f"s{number:05}", disk_mb=64, **SHAPES[number % len(SHAPES)])
            row = transitions.accepted(wanted, wanted.sha256(), f"op{number}", now + timedelta(microseconds=number))
            names.append(sandboxes.add(session, row).id)
        return names

    return await world.services.internals.db.write(fn)


class Counted:
    """What a scan did."""

    def __init__(self) -> None:
        self.rows = 0
        self.fits = 0


@contextmanager
def counting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counted]:
    counted = Counted()
    parse, fit = sandboxes.sandbox_of, placement.fit

    def rows(row: object) -> Sandbox:
        counted.rows += 1
        return parse(row)  # type: ignore[arg-type]

    def fits(*given: object) -> object:
        counted.fits += 1
        return fit(*given)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        for module in (sandboxes,):
            patch.setattr(module, "sandbox_of", rows)
        patch.setattr(placement, "fit", fits)
        yield counted


async def test_what_waits_shows_why_until_it_can_never_be(here: World) -> None:
    context, capacity = here.services.internals.context, here.services.capacity
    await crowd(here, 1)
    await scan_once(here)
    record = await here.services.sandboxes.get("s00000")
    assert (record.state, record.waiting, record.reason) == (S.PENDING, WaitReason.NO_NODE, None)
    assert record.detail
    (listed,) = (await here.services.sandboxes.page()).sandboxes
    assert (listed.waiting, listed.detail) == (record.waiting, record.detail)
    smaller = PoolCeiling(pool="cpu", shape=LARGE, runtimes=["docker"], isolations=["runc"], max_nodes=3)
    await capacity.set_ceilings(Ceilings(pools=[smaller]))
    with context.uow.watch("s00000"):
        await scan_once(here)
    ended = await here.services.sandboxes.get("s00000")
    assert (ended.state, ended.waiting) == (S.FAILED, None)
    assert ended.detail


async def scan_once(world: World) -> None:
    """Scan the queue once."""
    await world.services.internals.context.scheduler.place_waiting()


def reasons_of(world: World, row: Sandbox) -> tuple[str, ...]:
    """Return why a sandbox waits, one sentence a node."""
    found = world.services.internals.context.scheduler.waits(row)
    assert found is not None
    return found.reasons


async def grown(world: World, node: FakeNode, slots: int) -> None:
    """Give the node so many slots from now on."""
    node.total = FULL.model_copy(update={"cpus": 1000, "memory_mb": 1 << 20, "slots": slots})
    await world.beat(node)


@pytest.mark.parametrize("count", [300, 1200])
async def test_a_scan_that_finds_no_room_reads_one_row_a_kind(
    here: World, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    await here.join(total=FULL)
    await crowd(here, count)
    with counting(monkeypatch) as counted:
        await scan_once(here)
    assert (counted.rows, counted.fits) == (len(SHAPES), len(SHAPES))
    waits = await here.services.internals.db.read(lambda session: sandboxes.get(session, f"s{count - 1:05}"))
    assert waits is not None
    assert len(reasons_of(here, waits)) == 1


@pytest.mark.parametrize("count", [300, 1200])
async def test_a_scan_costs_what_can_be_placed(here: World, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    node = await here.join(total=FULL)
    names = await crowd(here, count)
    with counting(monkeypatch) as counted:
        await grown(here, node, 5)
        await here.until(names[4], S.RUNNING)
    assert await here.state(names[5]) is S.PENDING, "the oldest come first, whatever their shape"
    assert counted.rows < 100
    assert counted.fits < 100


async def test_all_get_their_turn_in_batches(here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "MAX_BATCH", 7)
    node = await here.join(total=FULL)
    names = await crowd(here, 30)
    await grown(here, node, 1000)
    await asyncio.gather(*(here.until(name, S.RUNNING) for name in names))
    assert sorted(entry[2] for entry in here.fleet.log) == names


async def test_refused_sandboxes_hold_up_nobody_behind_them(here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "MAX_BATCH", 2)
    node = await here.join(total=FULL)
    names = await crowd(here, 12)
    here.fleet.fail("create", *[ApiError(ErrorCode.NODE_REFUSED, "not this one")] * 6)
    await grown(here, node, 1000)
    await asyncio.gather(*(here.until(name, S.RUNNING) for name in names[6:]))
    refused = [name for name in names if await here.state(name) is S.PENDING]
    assert len(refused) == 6
    row = await here.services.internals.db.read(lambda session: sandboxes.get(session, refused[0]))
    assert row is not None
    assert len(reasons_of(here, row)) == 1
    await here.beat(node)
    await asyncio.gather(*(here.until(name, S.RUNNING) for name in refused))


async def test_what_waited_before_an_update_is_placed_like_the_others(here: World) -> None:
    node = await here.join(total=FULL)
    names = await crowd(here, 6)
    await here.services.internals.db.write(
        lambda session: session.execute(text("UPDATE sandboxes SET want = 'alone/' || id"))
    )
    await grown(here, node, 4)
    await here.until(names[3], S.RUNNING)
    assert await here.state(names[4]) is S.PENDING


async def test_creates_beyond_the_seats_are_admitted_and_retry_later(
    here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(here.services.sandboxes, "_seats", FairPool(6))  # two for one tenant
    monkeypatch.setattr(service, "RETRIES_PER_SECOND", 1)
    node = await here.join(total=FULL)
    seated = [asyncio.create_task(here.services.sandboxes.create(spec(name))) for name in ("a", "b")]
    await asyncio.gather(here.until("a", S.PENDING), here.until("b", S.PENDING))
    for name, waiting_then in (("c", 3), ("d", 4), ("c", 4)):
        with pytest.raises(ApiError) as caught:
            await here.services.sandboxes.create(spec(name))
        assert (caught.value.code, caught.value.retry_after) == (ErrorCode.NO_ROOM, waiting_then)
    await here.pass_time(here.settings.pending_lease - 1)
    await asyncio.wait(seated)  # their seats are free again
    seated.append(asyncio.create_task(here.services.sandboxes.create(spec("c"))))
    await here.manual_clock.someone_sleeps(here.settings.create_wait)
    here.manual_clock.advance(1)
    await here.until("d", S.FAILED)
    assert await here.state("c") is S.PENDING, "each retry keeps its place"
    seated[-1].cancel()
    await asyncio.gather(*seated, return_exceptions=True)
    await grown(here, node, 10)
    assert (await here.services.sandboxes.create(spec("c"))).sandbox.state is S.RUNNING


async def test_the_queue_is_read_from_an_index_alone(tmp_path: Path) -> None:
    async with world(settings_for(tmp_path)) as here:
        asked: list[str] = []
        engine = here.services.internals.db._engine
        event.listen(engine, "before_cursor_execute", lambda *given: asked.append(given[2]))
        await here.services.internals.db.read(lambda session: list(sandboxes.turns(session, "x", 5)))
        await here.services.internals.db.read(sandboxes.waiting_kinds)
        queries = [query for query in asked if query.startswith("SELECT")]
        assert len(queries) == 2

        def explain(session: Session) -> list[str]:
            run = session.connection().exec_driver_sql
            return [str(run(f"EXPLAIN QUERY PLAN {query}", ("x",) * query.count("?")).all()) for query in queries]

        for plan in await here.services.internals.db.read(explain):
            assert "COVERING INDEX ix_sandboxes_state" in plan
            assert "TEMP B-TREE" not in plan
