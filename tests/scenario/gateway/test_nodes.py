"""Nodes: how they join, what their inventories mean, and what happens when they fall silent."""

import asyncio
from pathlib import Path

import pytest

from gateway.core.node_health import HeartbeatLimits
from gateway.errors import ApiError
from gateway.services.assembly import build
from gateway.services.tasks import DEADLINE_RETRY
from gateway.store import sandboxes
from gateway.wire.capacity import Ceilings, PoolCeiling
from gateway.wire.errors import ErrorCode
from gateway.wire.nodes import JoinTokenRequest
from gateway.wire.resources import Shape
from gateway.wire.states import DeathReason, NodeState, SandboxState
from gateway.wire.tokens import TokenScope
from tests.scenario.gateway.test_crash import FailingDatabase
from tests.scenario.gateway.world import (
    FakeNode,
    Fleet,
    MovedClock,
    World,
    heartbeat,
    older,
    registration,
    settings_for,
    spec,
)

S = SandboxState
N = NodeState


async def node_state(world: World) -> NodeState:
    return (await world.services.nodes.all()).nodes[0].state


async def grow_silent(world: World, state: NodeState) -> None:
    """Moves the clock until the only node is in ``state``."""
    patience = HeartbeatLimits(world.settings.unreachable_after, world.settings.lost_after)
    world.moved.advance(patience.unreachable_after)
    while await node_state(world) is not N.UNREACHABLE:
        await asyncio.sleep(0)
    if state is N.LOST:
        world.moved.advance(patience.lost_after - patience.unreachable_after)
        while await node_state(world) is not N.LOST:
            await asyncio.sleep(0)


async def test_a_join_token_opens_once(here: World) -> None:
    token = await here.services.nodes.make_join_token(JoinTokenRequest(instance="vm-1", pool="cpu"))
    node = FakeNode("vm-1")
    answer = await here.services.nodes.register(token.token, registration(node))
    principal = await here.services.tokens.verify(answer.credential)
    assert (principal.scope, principal.node_id) == (TokenScope.NODE, answer.node_id)
    assert answer.control_token == (await here.services.nodes.address(answer.node_id)).control_token
    node.node_id = answer.node_id
    here.fleet.nodes[node.node_id] = node
    await here.beat(node)
    with pytest.raises(ApiError) as caught:
        await here.services.nodes.register(token.token, registration(node))
    assert caught.value.code is ErrorCode.TOKEN_USED


async def test_an_instance_that_lost_the_answer_may_register_again_and_ends_the_lost_credential(here: World) -> None:
    token = await here.services.nodes.make_join_token(JoinTokenRequest(instance="vm-1", pool="cpu"))
    lost = await here.services.nodes.register(token.token, registration(FakeNode("vm-1")))
    again = await here.services.nodes.register(token.token, registration(FakeNode("vm-1")))
    assert again.node_id == lost.node_id
    with pytest.raises(ApiError):
        await here.services.tokens.verify(lost.credential)
    assert (await here.services.tokens.verify(again.credential)).node_id == again.node_id


@pytest.mark.parametrize("seconds", [3600, 5000])
async def test_a_join_token_expires(here: World, seconds: float) -> None:
    token = await here.services.nodes.make_join_token(JoinTokenRequest(instance="vm-1", pool="cpu"))
    here.moved.advance(seconds)
    with pytest.raises(ApiError) as caught:
        await here.services.nodes.register(token.token, registration(FakeNode("vm-1")))
    assert caught.value.code is ErrorCode.UNAUTHORIZED


async def test_a_join_token_is_for_its_instance(here: World) -> None:
    token = await here.services.nodes.make_join_token(JoinTokenRequest(instance="vm-1", pool="cpu"))
    with pytest.raises(ApiError) as caught:
        await here.services.nodes.register(token.token, registration(FakeNode("vm-2")))
    assert caught.value.code is ErrorCode.FORBIDDEN


@pytest.mark.parametrize("url", ["10.0.0.1:80", "ftp://x", "http://", "http://x/path", "http://u@x", "http://x:99999"])
async def test_a_node_tells_an_absolute_origin(here: World, url: str) -> None:
    token = await here.services.nodes.make_join_token(JoinTokenRequest(instance="vm-1", pool="cpu"))
    request = registration(FakeNode("vm-1")).model_copy(update={"node_url": url})
    with pytest.raises(ApiError, match="node_url"):
        await here.services.nodes.register(token.token, request)


async def test_a_death_is_told_with_its_reason(here: World) -> None:
    node = await here.join()
    await here.services.sandboxes.create(spec())
    here.die(node, "a", DeathReason.OOM, 137)
    await here.beat(node)
    record = await here.services.sandboxes.get("a")
    assert (record.state, record.reason, record.exit_code) == (S.FAILED, DeathReason.OOM, 137)
    load = (await here.services.nodes.all()).nodes[0]
    assert load.reserved == Shape(disk_mb=spec().disk_mb), "an ended sandbox keeps its workspace alone"
    assert load.sandboxes == 1


async def test_a_sandbox_that_its_node_no_longer_has_is_lost_at_the_second_heartbeat(here: World) -> None:
    node = await here.join()
    await here.services.sandboxes.create(spec())
    node.have.clear()
    await here.beat(node)
    assert await here.state("a") is S.RUNNING, "it may have begun after this inventory was taken"
    await here.beat(node)
    record = await here.services.sandboxes.get("a")
    assert (record.state, record.reason) == (S.LOST, DeathReason.NODE_LOST)


async def test_a_repeated_heartbeat_changes_nothing(here: World) -> None:
    node = await here.join()
    await here.services.sandboxes.create(spec())
    await here.beat(node)
    empty_beat = heartbeat(FakeNode("vm-1", node_id=node.node_id, sequence=node.sequence))
    await here.services.nodes.heartbeat(node.node_id, empty_beat)
    await here.services.nodes.heartbeat(node.node_id, empty_beat)
    assert await here.state("a") is S.RUNNING


async def test_an_inventory_taken_before_a_pause_does_not_undo_it(here: World) -> None:
    node = await here.join()
    await here.services.sandboxes.create(spec())
    await here.beat(node)
    stale = older(node)
    await here.services.sandboxes.pause("a")
    stale.sequence = node.sequence
    await here.beat(stale)
    assert await here.state("a") is S.PAUSED
    node.sequence = stale.sequence
    node.have["a"] = node.have["a"].model_copy(update={"state": S.RUNNING})  # somebody resumed it on the node
    await here.beat(node)
    assert await here.state("a") is S.RUNNING


@pytest.mark.parametrize("speaks", [True, False])
async def test_a_store_that_takes_nothing_is_not_taken_for_the_silence_of_the_nodes(
    tmp_path: Path, speaks: bool
) -> None:
    settings, fleet, clock = settings_for(tmp_path), Fleet(), MovedClock()
    async with build(settings, fleet, clock, open_database=FailingDatabase.open) as services:
        here, db = World(services, fleet, clock, settings), services.internals.db
        assert isinstance(db, FailingDatabase)
        node = await here.join()
        await here.services.sandboxes.create(spec())
        db.failures = 1_000_000
        for _ in range(int(2 * settings.lost_after / 10)):
            clock.advance(10)
            if speaks:
                with pytest.raises(ApiError, match="disk is full"):
                    await here.beat(node)
            await asyncio.sleep(0)
        db.failures = 0
        clock.advance(DEADLINE_RETRY)  # whatever was due and could not be written is tried again
        if speaks:
            for _ in range(30):  # turns in which it would be judged
                assert await node_state(here) is N.READY
            await here.beat(node)
            assert await here.state("a") is S.RUNNING
        else:
            await here.until("a", S.LOST)


async def test_uses_that_a_full_store_did_not_take_are_written_later(tmp_path: Path) -> None:
    settings, fleet, clock = settings_for(tmp_path), Fleet(), MovedClock()
    async with build(settings, fleet, clock, open_database=FailingDatabase.open) as services:
        here, db, activity = World(services, fleet, clock, settings), services.internals.db, services.internals.activity
        assert isinstance(db, FailingDatabase)
        await here.join()
        await here.services.sandboxes.create(spec())
        clock.advance(10)
        here.services.sandboxes.touch("a")
        used = clock.now()
        db.failures = 1
        with pytest.raises(ApiError, match="disk is full"):
            await activity.flush()
        clock.advance(5)
        await activity.flush()
        row = await db.read(lambda session: sandboxes.get(session, "a"))
        assert row is not None
        assert row.active_at == used


async def test_a_silent_node_gets_nothing_new_and_keeps_what_it_has(here: World) -> None:
    await here.join()
    await here.services.sandboxes.create(spec())
    await grow_silent(here, N.UNREACHABLE)
    assert await here.state("a") is S.RUNNING
    create = asyncio.create_task(here.services.sandboxes.create(spec("b")))
    await here.until("b", S.PENDING)
    create.cancel()


async def test_a_node_that_is_lost_takes_its_sandboxes_with_it_and_removes_them_when_it_returns(here: World) -> None:
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


async def test_a_create_on_a_node_that_is_lost_moves_on_as_the_next_generation(here: World) -> None:
    first = await here.join("vm-1")
    first.dead = True
    create = asyncio.create_task(here.services.sandboxes.create(spec()))
    await here.moved.someone_sleeps(0.1)
    await grow_silent(here, N.LOST)
    await here.until("a", S.PENDING)
    await asyncio.gather(create, return_exceptions=True)
    second = await here.join("vm-2")
    record = (await here.services.sandboxes.create(spec())).sandbox
    assert (record.node_id, record.generation) == (second.node_id, 2)


async def test_a_delete_on_a_node_that_is_lost_ends(here: World) -> None:
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


async def test_a_draining_node_takes_nothing_new_until_it_is_opened(here: World) -> None:
    node = await here.join()
    await here.services.sandboxes.create(spec())
    envelope = await here.services.nodes.drain(node.node_id, True)
    assert envelope.node.state is N.DRAINING
    assert (await here.beat(node)).draining
    create = asyncio.create_task(here.services.sandboxes.create(spec("b")))
    await here.until("b", S.PENDING)
    assert await here.state("a") is S.RUNNING
    await here.services.nodes.drain(node.node_id, False)
    assert (await create).sandbox.state is S.RUNNING


async def test_an_agent_that_closes_itself_is_draining(here: World) -> None:
    node = await here.join()
    node.draining = True
    await here.beat(node)
    assert await node_state(here) is N.DRAINING
    node.draining = False
    await here.beat(node)
    assert await node_state(here) is N.READY


async def test_a_node_is_removed_only_when_nothing_lives_there(here: World) -> None:
    node = await here.join()
    await here.services.sandboxes.create(spec())
    with pytest.raises(ApiError) as caught:
        await here.services.nodes.remove(node.node_id)
    assert caught.value.code is ErrorCode.CONFLICT
    await here.services.sandboxes.delete("a")
    assert (await here.services.nodes.remove(node.node_id)).node.state is N.GONE
    assert (await here.services.nodes.all()).nodes == []
    with pytest.raises(ApiError) as caught:
        await here.beat(node)
    assert caught.value.code is ErrorCode.NODE_NOT_FOUND


async def test_a_silent_node_whose_machine_is_gone_is_removed_with_what_it_held(here: World) -> None:
    node = await here.join()
    await here.services.sandboxes.create(spec())
    with pytest.raises(ApiError) as caught:
        await here.services.nodes.remove(node.node_id, machine_gone=True)
    assert caught.value.code is ErrorCode.CONFLICT
    await grow_silent(here, N.UNREACHABLE)
    with pytest.raises(ApiError):
        await here.services.nodes.remove(node.node_id)
    await here.services.nodes.remove(node.node_id, machine_gone=True)
    assert await here.state("a") is S.LOST


async def test_idle_since_is_the_moment_at_which_the_last_sandbox_left(here: World) -> None:
    node = await here.join()
    assert (await here.services.nodes.all()).nodes[0].idle_since is not None
    await here.services.sandboxes.create(spec())
    assert (await here.services.nodes.all()).nodes[0].idle_since is None
    here.moved.advance(3)
    await here.services.sandboxes.delete("a")
    left = here.moved.now()
    here.moved.advance(3)
    await here.beat(node)
    assert (await here.services.nodes.all()).nodes[0].idle_since == left


async def test_ceilings_decide_what_never_fits(here: World) -> None:
    big = PoolCeiling(
        pool="cpu", shape=Shape(cpus=32, memory_mb=65536, disk_mb=1 << 20, slots=100), runtimes=["runsc"],
        isolations=["gvisor"], max_nodes=3,
    )  # fmt: skip
    await here.join()
    await here.services.capacity.set_ceilings(Ceilings(pools=[big]))
    create = asyncio.create_task(here.services.sandboxes.create(spec(memory_mb=60_000)))
    await here.until("a", S.PENDING)
    await here.services.capacity.set_ceilings(Ceilings(pools=[]))
    with pytest.raises(ApiError) as caught:
        await create
    assert caught.value.code is ErrorCode.NEVER_FITS
