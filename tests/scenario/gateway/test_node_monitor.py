"""Nodes whose heartbeats stop, and what becomes of their sandboxes."""

import asyncio
from pathlib import Path

import pytest

from gateway.errors import ApiError
from gateway.services.assembly import build
from gateway.services.tasks import DEADLINE_RETRY
from gateway.wire.errors import ErrorCode
from gateway.wire.states import DeathReason, NodeState, SandboxState
from tests.engines.postgres import own_server
from tests.scenario.gateway.world import (
    FailingDatabase,
    Fleet,
    ManualClock,
    World,
    grow_silent,
    node_state,
    refused,
    settings_for,
    spec,
    world,
)

S = SandboxState
N = NodeState


@pytest.mark.parametrize("reports", [True, False])
async def test_a_full_disk_of_the_gateway_is_not_taken_for_silence_of_the_nodes(tmp_path: Path, reports: bool) -> None:
    settings, fleet, clock = settings_for(tmp_path), Fleet(), ManualClock()
    async with build(settings, fleet, clock, open_database=FailingDatabase.open) as services:
        here, db = World(services, fleet, clock, settings), services.internals.db
        assert isinstance(db, FailingDatabase)
        node = await here.join()
        await here.services.sandboxes.create(spec())
        db.failures = 1_000_000
        for _ in range(int(2 * settings.lost_after / 10)):
            clock.advance(10)
            if reports:
                with refused(ErrorCode.DISK_FULL):
                    await here.beat(node)
            await asyncio.sleep(0)
        if not reports:
            await clock.someone_sleeps(DEADLINE_RETRY)  # the last attempt has failed
        db.failures = 0
        clock.advance(DEADLINE_RETRY)  # whatever was due and could not be written is tried again
        if reports:
            for _ in range(30):  # turns in which it would be judged
                assert await node_state(here) is N.READY
            await here.beat(node)
            assert await here.state("a") is S.RUNNING
        else:
            for _ in range(30):
                assert await here.state("a") is S.RUNNING  # it may have reported while nothing could be written
            await here.pass_time(settings.lost_after + DEADLINE_RETRY)
            await here.until("a", S.LOST)


async def test_a_database_that_was_away_is_not_taken_for_silence_of_the_nodes(tmp_path: Path) -> None:
    with own_server() as server, server.database() as url:
        async with world(settings_for(tmp_path, url, unreachable_after=10, lost_after=30)) as here:
            node = await here.join()
            await here.services.sandboxes.create(spec())
            server.stop("fast")
            await here.pass_time(60)  # heartbeats come and are refused, because nobody's credential can be checked
            server.start()
            await here.pass_time(DEADLINE_RETRY)  # whatever was due is tried again
            for _ in range(30):
                assert await here.state("a") is S.RUNNING
            await here.beat(node)
            assert (await here.state("a"), await node_state(here)) == (S.RUNNING, N.READY)


@pytest.mark.parametrize("before", [1, 250])
async def test_a_gateway_that_stood_still_judges_nobody_before_it_has_listened(here: World, before: int) -> None:
    node = await here.join()
    await here.services.sandboxes.create(spec(idle_seconds=200))
    await here.pass_time(before)
    here.manual_clock.advance(here.settings.lost_after)  # as SIGSTOP and SIGCONT do
    for _ in range(30):
        assert await here.state("a") is S.RUNNING
    await here.beat(node)
    assert (await here.state("a"), await node_state(here)) == (S.RUNNING, N.READY)
    await grow_silent(here, N.LOST)


async def test_a_gateway_that_no_node_reaches_gives_none_of_them_up(tmp_path: Path) -> None:
    async with world(settings_for(tmp_path)) as here:
        first, second = await here.join("vm-1"), await here.join("vm-2")
        await here.services.sandboxes.create(spec())
        await here.pass_time(3 * here.settings.lost_after)
        states = {record.state for record in (await here.services.nodes.all()).nodes}
        assert (states, await here.state("a")) == ({N.UNREACHABLE}, S.RUNNING)
        alive = second if "a" in first.have else first
        for _ in range(int(here.settings.lost_after / 10) + 1):
            await here.beat(alive)
            await here.pass_time(10)
        await here.until("a", S.LOST)


async def test_an_unreachable_node_gets_nothing_new_and_keeps_its_sandboxes(here: World) -> None:
    await here.join()
    await here.services.sandboxes.create(spec())
    await grow_silent(here, N.UNREACHABLE)
    assert await here.state("a") is S.RUNNING
    create = asyncio.create_task(here.services.sandboxes.create(spec("b")))
    await here.until("b", S.PENDING)
    create.cancel()


async def test_sandboxes_of_a_lost_node_are_lost_and_removed_when_it_returns(here: World) -> None:
    node = await here.join()
    await here.services.sandboxes.create(spec())
    await grow_silent(here, N.LOST)
    record = await here.services.sandboxes.get("a")
    assert (record.state, record.reason) == (S.LOST, DeathReason.NODE_LOST)
    with pytest.raises(ApiError) as caught:
        await here.services.sandboxes.route("a")
    assert (caught.value.code, caught.value.details["reason"]) == (ErrorCode.SANDBOX_NOT_RUNNING, "node_lost")
    answer = await here.beat(node)
    assert [removal.sandbox_id for removal in answer.remove] == ["a"]
    assert await node_state(here) is N.READY
    assert await here.state("a") is S.LOST


async def test_a_create_on_a_lost_node_moves_on_as_the_next_generation(here: World) -> None:
    first = await here.join("vm-1")
    first.dead = True
    create = asyncio.create_task(here.services.sandboxes.create(spec()))
    await here.manual_clock.someone_sleeps(0.1)
    await grow_silent(here, N.LOST)
    await here.until("a", S.PENDING)
    await asyncio.gather(create, return_exceptions=True)
    second = await here.join("vm-2")
    record = (await here.services.sandboxes.create(spec())).sandbox
    assert (record.node_id, record.generation) == (second.node_id, 2)


async def test_a_delete_on_a_lost_node_ends(here: World) -> None:
    node = await here.join()
    await here.services.sandboxes.create(spec())
    node.dead = True
    delete = asyncio.create_task(here.services.sandboxes.delete("a"))
    await here.until("a", S.DELETING)
    await grow_silent(here, N.LOST)
    await here.until("a", S.DELETED)
    await delete
    node.dead = False
    assert [removal.sandbox_id for removal in (await here.beat(node)).remove] == ["a"]


async def test_a_starting_gateway_gives_nodes_their_full_grace_period(tmp_path: Path) -> None:
    settings, fleet = settings_for(tmp_path), Fleet()
    async with world(settings, fleet) as first:
        await first.join()
        await first.services.sandboxes.create(spec())
        clock = first.manual_clock
    clock.advance(100_000)
    async with world(settings, fleet, clock) as second:
        assert (await second.services.nodes.all()).nodes[0].state == "ready"
        clock.advance(settings.unreachable_after - 1)
        assert await second.state("a") is S.RUNNING
        assert (await second.services.sandboxes.create(spec("b"))).sandbox.state is S.RUNNING
