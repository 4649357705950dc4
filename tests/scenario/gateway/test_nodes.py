"""What the heartbeats of nodes mean for their sandboxes; drain and removal of nodes."""

import asyncio

import pytest

from gateway.errors import ApiError
from gateway.wire.errors import ErrorCode
from gateway.wire.resources import Shape
from gateway.wire.states import DeathReason, NodeState, SandboxState
from tests.scenario.gateway.world import (
    FakeNode,
    World,
    grow_silent,
    heartbeat,
    node_state,
    older,
    spec,
)

S = SandboxState
N = NodeState


async def test_a_death_is_reported_with_its_reason(here: World) -> None:
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


async def test_a_drained_node_takes_nothing_new_until_it_is_opened(here: World) -> None:
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


async def test_a_node_whose_agent_drains_takes_nothing_new(here: World) -> None:
    node = await here.join()
    node.draining = True
    await here.beat(node)
    assert await node_state(here) is N.DRAINING
    node.draining = False
    await here.beat(node)
    assert await node_state(here) is N.READY


async def test_a_node_with_live_sandboxes_is_not_removed(here: World) -> None:
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


async def test_an_unreachable_node_whose_machine_is_gone_is_removed(here: World) -> None:
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


async def test_idle_since_is_when_the_last_sandbox_left(here: World) -> None:
    node = await here.join()
    assert (await here.services.nodes.all()).nodes[0].idle_since is not None
    await here.services.sandboxes.create(spec())
    assert (await here.services.nodes.all()).nodes[0].idle_since is None
    here.manual_clock.advance(3)
    await here.services.sandboxes.delete("a")
    left = here.manual_clock.now()
    here.manual_clock.advance(3)
    await here.beat(node)
    assert (await here.services.nodes.all()).nodes[0].idle_since == left
