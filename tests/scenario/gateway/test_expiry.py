"""Ends by time: ttl, disuse, leases, tombstones."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlmodel import Session

from gateway.core.model import Sandbox
from gateway.errors import ApiError
from gateway.services.assembly import build
from gateway.services.expiry import GATHERING
from gateway.store import sandboxes
from gateway.wire.errors import ErrorCode
from gateway.wire.states import DeathReason, NodeState, SandboxState
from tests.scenario.gateway.world import (
    FailingDatabase,
    FakeNode,
    Fleet,
    ManualClock,
    World,
    grow_silent,
    pass_time,
    refused,
    settings_for,
    spec,
    world,
)

S = SandboxState
TABLES = ("sandboxes", "sandbox_labels", "nodes", "tokens", "join_tokens")


async def test_a_ttl_ends_the_sandbox(here: World) -> None:
    node = await here.join()
    record = (await here.services.sandboxes.create(spec(ttl_seconds=600))).sandbox
    assert record.expires_at == record.created_at + timedelta(seconds=600)
    here.manual_clock.advance(599)
    await here.beat(node)
    assert await here.state("a") is S.RUNNING
    here.manual_clock.advance(1)
    await here.until("a", S.DELETED)
    assert (await here.services.sandboxes.get("a")).reason is DeathReason.TTL
    assert node.have == {}


async def test_a_jump_of_the_wall_clock_deletes_nothing(here: World) -> None:
    node = await here.join()
    await here.services.sandboxes.create(spec(ttl_seconds=600, idle_seconds=600))
    here.manual_clock.jump(days=400)
    here.manual_clock.advance(1)
    await here.beat(node)
    await here.beat(node)
    assert await here.state("a") is S.RUNNING
    assert (await here.services.nodes.all()).nodes[0].state == "ready"


async def test_a_ttl_also_ends_a_wait(here: World) -> None:
    create = asyncio.create_task(here.services.sandboxes.create(spec(ttl_seconds=5)))
    await here.until("a", S.PENDING)
    await here.manual_clock.someone_sleeps(5)
    here.manual_clock.advance(5)
    with pytest.raises(ApiError) as caught:
        await create
    assert (caught.value.code, caught.value.details["reason"]) == (ErrorCode.SANDBOX_NOT_RUNNING, DeathReason.TTL)


async def test_an_idle_sandbox_is_deleted_once_its_node_reports_no_exec(here: World) -> None:
    node = await here.join()
    await here.services.sandboxes.create(spec(idle_seconds=60))
    await here.pass_time(59)
    await here.services.sandboxes.route("a")
    await here.pass_time(59)
    await here.beat(node)
    assert await here.state("a") is S.RUNNING
    await here.pass_time(1)
    await here.beat(node, a=1)  # an exec runs
    await here.pass_time(59)
    await here.beat(node)
    assert await here.state("a") is S.RUNNING
    await here.pass_time(1 + (15 if here.services.internals.db.shared else 0))
    await here.beat(node)
    await here.until("a", S.DELETED)
    assert (await here.services.sandboxes.get("a")).reason is DeathReason.IDLE


async def test_uses_through_one_gateway_count_in_every_other(pair: tuple[World, World]) -> None:
    one, two = pair
    node = await one.join()
    await one.services.sandboxes.create(spec(idle_seconds=20))
    await two.beat(node)
    for _ in range(14):
        await pass_time(3, one, two)
        await one.services.sandboxes.route("a")
        await uses_are_written(one)
        await two.beat(node)
        assert await two.state("a") is S.RUNNING
    await pass_time(5, one, two)  # the row may be behind by so much
    await uses_are_written(one)
    await two.beat(node)
    await pass_time(25, one, two)
    await two.beat(node)
    await two.until("a", S.DELETED)
    assert (await two.services.sandboxes.get("a")).reason is DeathReason.IDLE


async def uses_are_written(here: World) -> None:
    """Return once the gateway has written what is due; it waits for nobody's call."""
    activity = here.services.internals.activity
    while activity._due <= here.clock.monotonic():
        here.manual_clock.advance(GATHERING)
        await asyncio.sleep(0.001)


async def test_a_use_between_the_look_and_the_judgement_saves_the_sandbox(pair: tuple[World, World]) -> None:
    one, two = pair
    node = await one.join()
    await one.services.sandboxes.create(spec(idle_seconds=20))
    await two.beat(node)
    looked = await row_of(two)
    one.manual_clock.advance(60)
    await one.services.sandboxes.route("a")
    await one.services.internals.activity.flush()
    await two.services.internals.reaper.end_idle([looked], node.have.values())
    assert await two.state("a") is S.RUNNING


async def test_a_change_of_a_sandbox_takes_no_use_back(pair: tuple[World, World]) -> None:
    one, two = pair
    await one.join()
    await one.services.sandboxes.create(spec(idle_seconds=20))
    looked, db = await row_of(two), two.services.internals.db
    one.manual_clock.advance(10)
    await one.services.sandboxes.route("a")
    await one.services.internals.activity.flush()
    await db.write(lambda session: sandboxes.save(session, looked, replace(looked, detail="another")))
    assert (await row_of(two)).active_at > looked.active_at


async def row_of(here: World) -> Sandbox:
    """Return the row of the sandbox ``a``."""
    row = await here.services.internals.db.read(lambda session: sandboxes.get(session, "a"))
    assert row is not None
    return row


@pytest.mark.parametrize("reason", [DeathReason.EXITED, DeathReason.OOM, DeathReason.NODE_LOST])
async def test_an_ended_sandbox_without_a_ttl_is_kept_for_a_while_and_then_deleted(
    tmp_path: Path, reason: DeathReason
) -> None:
    async with world(settings_for(tmp_path, ended_seconds=20)) as here:
        node = await here.join()
        await here.services.sandboxes.create(spec())
        await end(here, node, reason)
        here.manual_clock.advance(19)
        assert await here.state("a") in {S.EXITED, S.FAILED, S.LOST}
        here.manual_clock.advance(1)
        await here.until("a", S.DELETED)
        assert (await here.services.sandboxes.get("a")).reason is reason
        assert node.have == {} or reason is DeathReason.NODE_LOST


async def test_what_runs_without_a_ttl_outlives_every_retention(tmp_path: Path) -> None:
    async with world(settings_for(tmp_path, ended_seconds=1)) as here:
        node = await here.join()
        for name in ("a", "b", "c"):
            await here.services.sandboxes.create(spec(name))
        await here.services.sandboxes.pause("b")
        here.die(node, "c", DeathReason.OOM)
        await here.beat(node)
        await here.services.sandboxes.restart("c")
        await here.services.sandboxes.create(spec("z", ttl_seconds=20))
        here.manual_clock.advance(20)
        await here.until("z", S.DELETED)  # deadlines are served in order: all earlier ones were
        assert [await here.state(name) for name in ("a", "b", "c")] == [S.RUNNING, S.PAUSED, S.RUNNING]


async def test_a_deadline_that_came_due_before_a_restart_deletes_nothing_after_it(tmp_path: Path) -> None:
    async with world(settings_for(tmp_path, ended_seconds=600)) as here:
        node = await here.join()
        await here.services.sandboxes.create(spec())
        await end(here, node, DeathReason.OOM)
        await here.services.sandboxes.restart("a")
        await here.services.internals.reaper._expire("a")
        assert await here.state("a") is S.RUNNING
        await end(here, node, DeathReason.OOM)
        await here.services.internals.reaper._expire("a")
        assert await here.state("a") is S.FAILED


async def test_the_next_gateway_deletes_what_ended_before_it_started(tmp_path: Path) -> None:
    settings, fleet, clock = settings_for(tmp_path, ended_seconds=600), Fleet(), ManualClock()
    async with world(settings, fleet, clock) as first:
        node = await first.join()
        await first.services.sandboxes.create(spec())
        await end(first, node, DeathReason.OOM)
    clock.advance(600)
    async with world(settings, fleet, clock) as second:
        await second.until("a", S.DELETED)


async def test_a_ttl_alone_decides_where_there_is_one(tmp_path: Path) -> None:
    async with world(settings_for(tmp_path, ended_seconds=600)) as here:
        node = await here.join()
        await here.services.sandboxes.create(spec(ttl_seconds=6000))
        await end(here, node, DeathReason.OOM)
        await here.services.sandboxes.create(spec("z", ttl_seconds=601))
        here.manual_clock.advance(601)
        await here.until("z", S.DELETED)
        assert await here.state("a") is S.FAILED


async def end(here: World, node: FakeNode, reason: DeathReason) -> None:
    """Let the sandbox ``a`` end."""
    if reason is DeathReason.NODE_LOST:
        await grow_silent(here, NodeState.LOST)
    else:
        here.die(node, "a", reason)
        await here.beat(node)


async def test_tombstones_are_purged_after_a_day(here: World) -> None:
    node = await here.join()
    await here.services.sandboxes.create(spec())
    await here.services.sandboxes.delete("a")
    await here.services.nodes.remove(node.node_id)
    reaper, db = here.services.internals.reaper, here.services.internals.db
    here.manual_clock.advance(here.settings.tombstone_seconds - 1)
    await reaper.purge()
    assert await here.state("a") is S.DELETED
    here.manual_clock.advance(3602)  # the join token ran for an hour
    await reaper.purge()

    def count(session: Session) -> dict[str, int]:
        return {name: session.execute(text(f"SELECT count(*) FROM {name}")).scalar_one() for name in TABLES}

    left = await db.read(count)
    assert left == dict.fromkeys(TABLES, 0)


async def test_a_wait_that_nobody_renews_fails_and_a_later_create_starts_afresh(here: World) -> None:
    create = asyncio.create_task(here.services.sandboxes.create(spec()))
    await here.until("a", S.PENDING)
    create.cancel()
    await asyncio.gather(create, return_exceptions=True)
    await here.pass_time(here.settings.pending_lease)
    await here.until("a", S.FAILED)
    record = await here.services.sandboxes.get("a")
    assert record.reason is DeathReason.EVICTED
    assert (await here.services.capacity.demand()).waiting == []
    await here.join()
    again = (await here.services.sandboxes.create(spec())).sandbox
    assert (again.state, again.generation, again.reason) == (S.RUNNING, 2, None)


async def test_ttls_survive_a_restart_of_the_gateway(tmp_path: Path) -> None:
    settings, fleet = settings_for(tmp_path), Fleet()
    async with world(settings, fleet) as first:
        await first.join()
        await first.services.sandboxes.create(spec(ttl_seconds=600))
        clock = first.manual_clock
        clock.advance(300)
    clock.advance(200)
    async with world(settings, fleet, clock) as second:
        assert await second.state("a") is S.RUNNING
        clock.advance(100)
        await second.until("a", S.DELETED)
    assert fleet.placed() == {"a": []} or fleet.placed() == {}


async def test_activity_that_a_full_disk_refused_is_written_later(tmp_path: Path) -> None:
    settings, fleet, clock = settings_for(tmp_path), Fleet(), ManualClock()
    async with build(settings, fleet, clock, open_database=FailingDatabase.open) as services:
        here, db, activity = World(services, fleet, clock, settings), services.internals.db, services.internals.activity
        assert isinstance(db, FailingDatabase)
        await here.join()
        await here.services.sandboxes.create(spec())
        clock.advance(10)
        here.services.sandboxes.touch("a")
        used = clock.now()
        db.failures = 1
        with refused(ErrorCode.DISK_FULL):
            await activity.flush()
        clock.advance(5)
        await activity.flush()
        row = await db.read(lambda session: sandboxes.get(session, "a"))
        assert row is not None
        assert row.active_at == used
