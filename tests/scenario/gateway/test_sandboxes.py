"""Pause, resume, restart, list, and the routes to sandboxes."""

import asyncio

import pytest

from gateway.errors import ApiError
from gateway.wire.errors import ErrorCode
from gateway.wire.resources import Shape
from gateway.wire.states import DeathReason, SandboxState
from tests.scenario.gateway.world import World, spec

S = SandboxState
TABLES = ("sandboxes", "sandbox_labels", "nodes", "tokens", "join_tokens")


async def test_a_paused_sandbox_is_resumed_by_the_next_call(here: World) -> None:
    node = await here.join()
    await here.services.sandboxes.create(spec())
    assert (await here.services.sandboxes.pause("a")).state is S.PAUSED
    assert (await here.services.sandboxes.pause("a")).state is S.PAUSED
    assert here.fleet.count("pause") == 2, "a call may have resumed it on its node meanwhile"
    routes = await asyncio.gather(*(here.services.sandboxes.route("a") for _ in range(8)))
    assert {route.node.node_id for route in routes} == {node.node_id}
    assert here.fleet.count("resume") == 1
    assert await here.state("a") is S.RUNNING


async def test_logs_of_a_paused_sandbox_do_not_wake_it(here: World) -> None:
    await here.join()
    await here.services.sandboxes.create(spec())
    await here.services.sandboxes.pause("a")
    await here.services.sandboxes.route("a", running=False)
    assert await here.state("a") is S.PAUSED


async def test_a_pause_that_does_not_reach_the_node_is_unreachable(here: World) -> None:
    node = await here.join()
    await here.services.sandboxes.create(spec())
    node.dead = True
    with pytest.raises(ApiError) as caught:
        await here.services.sandboxes.pause("a")
    assert (caught.value.code, caught.value.retryable) == (ErrorCode.NODE_UNREACHABLE, True)


async def test_restart_is_the_next_generation_on_the_same_node(here: World) -> None:
    node = await here.join()
    await here.join("vm-2")
    first = (await here.services.sandboxes.create(spec())).sandbox
    second = await here.services.sandboxes.restart("a")
    assert (second.state, second.generation, second.node_id) == (S.RUNNING, 2, first.node_id)
    assert second.operation_id != first.operation_id
    with pytest.raises(ApiError) as caught:
        await here.services.sandboxes.route("a", generation=1)
    assert caught.value.code is ErrorCode.EXEC_LOST
    assert (await here.services.sandboxes.route("a", generation=2)).node.node_id in {node.node_id, first.node_id}


async def test_a_restart_whose_node_still_reports_the_old_generation_keeps_the_workspace(here: World) -> None:
    node = await here.join()
    await here.services.sandboxes.create(spec())
    await here.beat(node)
    gate = here.fleet.hold("create")
    restart = asyncio.create_task(here.services.sandboxes.restart("a"))
    await here.fleet.arrived["create"].wait()
    assert (await here.beat(node)).remove == []
    gate.set()
    assert (await restart).generation == 2


async def test_an_ended_sandbox_restarts_where_its_workspace_is(here: World) -> None:
    node = await here.join()
    await here.services.sandboxes.create(spec())
    here.die(node, "a", DeathReason.EXITED, 3)
    await here.beat(node)
    record = await here.services.sandboxes.restart("a")
    assert (record.state, record.reason, record.exit_code, record.generation) == (S.RUNNING, None, None, 2)


async def test_a_restart_needs_room_on_its_node(here: World) -> None:
    node = await here.join(total=Shape(cpus=1, memory_mb=1024, disk_mb=8192, slots=8))
    await here.services.sandboxes.create(spec())
    here.die(node, "a", DeathReason.EXITED, 0)
    await here.beat(node)
    await here.services.sandboxes.create(spec("b"))
    with pytest.raises(ApiError) as caught:
        await here.services.sandboxes.restart("a")
    assert (caught.value.code, caught.value.retryable) == (ErrorCode.NO_ROOM, True)
    assert await here.state("a") is S.EXITED


@pytest.mark.parametrize("state", ["never", "deleted", "failed"])
async def test_a_route_names_why_there_is_none(here: World, state: str) -> None:
    node = await here.join()
    if state != "never":
        await here.services.sandboxes.create(spec())
    if state == "deleted":
        await here.services.sandboxes.delete("a")
    if state == "failed":
        here.die(node, "a", DeathReason.OOM, 137)
        await here.beat(node)
    with pytest.raises(ApiError) as caught:
        await here.services.sandboxes.route("a")
    expected = ErrorCode.SANDBOX_NOT_RUNNING if state == "failed" else ErrorCode.SANDBOX_NOT_FOUND
    assert caught.value.code is expected
    if state == "failed":
        assert caught.value.details["reason"] == "oom"
        assert (await here.services.sandboxes.route("a", running=False)).node.node_id == node.node_id


async def test_lists_are_filtered_and_paged_oldest_first(here: World) -> None:
    await here.join()
    for index in range(5):
        here.manual_clock.advance(0.001)
        await here.services.sandboxes.create(spec(f"s{index}", labels={"odd": str(index % 2)}, cpus=0.1))
    first = await here.services.sandboxes.page(labels={"odd": "0"}, limit=2)
    assert [record.id for record in first.sandboxes] == ["s0", "s2"]
    rest = await here.services.sandboxes.page(labels={"odd": "0"}, limit=2, cursor=first.next_cursor)
    assert ([record.id for record in rest.sandboxes], rest.next_cursor) == (["s4"], None)


@pytest.mark.parametrize("cursor", ["", "x", "W10=", "WyJhIiwgImIiXQ==", "é"])
async def test_a_foreign_cursor_is_refused(here: World, cursor: str) -> None:
    with pytest.raises(ApiError) as caught:
        await here.services.sandboxes.page(cursor=cursor)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
