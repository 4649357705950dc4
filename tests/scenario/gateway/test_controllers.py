"""A gateway is killed while a sandbox is in each state: who moves it on, and where to."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pytest
from sqlmodel import Session

from gateway.core.model import Sandbox
from gateway.errors import ApiError
from gateway.services.controllers import RESTART_PATIENCE
from gateway.store import nodes, sandboxes
from gateway.wire.errors import ErrorCode
from gateway.wire.resources import Shape
from gateway.wire.states import SANDBOX_TRANSITIONS, DeathReason, SandboxState
from tests.scenario.gateway.world import FakeNode, Fleet, ManualClock, World, settings_for, spec, world

S = SandboxState


@dataclass(frozen=True)
class Case:
    """A row as the dead gateway left it, what its node has, and what becomes of it without anybody asking."""

    state: SandboxState
    on_node: SandboxState | None
    """The state that the node reports; ``None`` when it does not have it."""
    end: SandboxState
    mover: str
    orders: int = 0
    """Orders that the new gateway gives for it."""


TABLE = [
    Case(S.PENDING, None, S.RUNNING, "the scheduler", 1),
    Case(S.CREATING, None, S.RUNNING, "its controller", 1),
    Case(S.CREATING, S.RUNNING, S.RUNNING, "its controller", 1),
    Case(S.RUNNING, S.RUNNING, S.RUNNING, "nobody has to"),
    Case(S.RUNNING, S.PAUSED, S.PAUSED, "the heartbeat"),
    Case(S.RUNNING, S.EXITED, S.EXITED, "the heartbeat"),
    Case(S.RUNNING, None, S.LOST, "the heartbeat"),
    Case(S.PAUSED, S.PAUSED, S.PAUSED, "nobody has to"),
    Case(S.PAUSED, S.RUNNING, S.RUNNING, "the heartbeat"),
    Case(S.PAUSED, None, S.LOST, "the heartbeat"),
    Case(S.CHECKPOINTED, S.CHECKPOINTED, S.CHECKPOINTED, "nobody has to"),
    Case(S.CHECKPOINTED, None, S.LOST, "the heartbeat"),
    Case(S.RESTORING, S.RESTORING, S.RESTORING, "the node, which is at it"),
    Case(S.RESTORING, S.RUNNING, S.RUNNING, "the heartbeat"),
    Case(S.RESTORING, S.CHECKPOINTED, S.CHECKPOINTED, "the heartbeat"),
    Case(S.RESTORING, None, S.LOST, "the heartbeat"),
    Case(S.EXITED, S.EXITED, S.EXITED, "nobody has to"),
    Case(S.FAILED, S.FAILED, S.FAILED, "nobody has to"),
    Case(S.LOST, None, S.LOST, "nobody has to"),
    Case(S.LOST, S.RUNNING, S.LOST, "the heartbeat, which removes it"),
    Case(S.DELETING, S.RUNNING, S.DELETED, "its controller", 1),
    Case(S.DELETING, None, S.DELETED, "its controller", 1),
    Case(S.DELETED, None, S.DELETED, "nobody has to"),
    Case(S.DELETED, S.RUNNING, S.DELETED, "the heartbeat, which removes it"),
]
OVER = frozenset({S.EXITED, S.FAILED, S.LOST, S.DELETING, S.DELETED})


def left_behind(sandbox: Sandbox, state: SandboxState) -> Sandbox:
    """Return the row of a sandbox that ran, as it is in ``state``."""
    reason = DeathReason.NODE_LOST if state is S.LOST else DeathReason.OOM if state in OVER else None
    placed = state is not S.PENDING
    return replace(
        sandbox,
        state=state,
        reason=reason,
        node_id=sandbox.node_id if placed else None,
        runtime=sandbox.runtime if placed else None,
        started_at=None if state in {S.PENDING, S.CREATING} else sandbox.started_at,
        ended_at=sandbox.updated_at if state in OVER - {S.DELETING} else None,
    )


async def write(world: World, state: SandboxState, ttl: float | None = None) -> Sandbox:
    def fn(session: Session) -> Sandbox:
        row = sandboxes.get(session, "a")
        assert row is not None
        expires_at = None if ttl is None else row.created_at + timedelta(seconds=ttl)
        return sandboxes.save(session, row, replace(left_behind(row, state), expires_at=expires_at))

    return await world.services.internals.db.write(fn)


@asynccontextmanager
async def next_life(
    tmp_path: Path, state: SandboxState, on_node: SandboxState | None, ttl: float | None = None
) -> AsyncIterator[tuple[World, FakeNode]]:
    """Yield a gateway that finds what another left."""
    settings, fleet, clock = settings_for(tmp_path), Fleet(), ManualClock()
    async with world(settings, fleet, clock) as first:
        node = await first.join()
        await first.services.sandboxes.create(spec())
        await write(first, state, ttl)
    if on_node is None:
        node.have.clear()
    else:
        node.have["a"] = node.have["a"].model_copy(update={"state": on_node})
    fleet.log.clear()
    async with world(settings, fleet, clock) as second:
        yield second, node


def test_the_table_has_every_state() -> None:
    assert {case.state for case in TABLE} == set(SANDBOX_TRANSITIONS)


@pytest.mark.parametrize("case", TABLE, ids=lambda case: f"{case.state}-{case.on_node}")
async def test_the_next_gateway_moves_the_sandbox_on(tmp_path: Path, case: Case) -> None:
    async with next_life(tmp_path, case.state, case.on_node) as (here, node):
        if case.orders:
            await here.until("a", case.end)
        for _ in range(3):
            await here.beat(node)
        assert await here.state("a") is case.end
        assert len(here.fleet.log) == case.orders, case.mover
        there = case.end in {S.RUNNING, S.PAUSED, S.CHECKPOINTED, S.RESTORING, S.EXITED, S.FAILED}
        assert ("a" in node.have) is there


@pytest.mark.parametrize("state", [state for state in S if state is not S.DELETED])
async def test_a_ttl_is_kept_in_every_state(tmp_path: Path, state: SandboxState) -> None:
    on_node = None if state in {S.PENDING, S.CREATING, S.LOST} else S.RUNNING if state in OVER else state
    async with next_life(tmp_path, state, on_node, ttl=600) as (here, node):
        here.manual_clock.advance(600)
        await here.until("a", S.DELETED)
        await here.beat(node)
        assert node.have == {}


@pytest.mark.parametrize("state", [state for state in S if state is not S.DELETED])
async def test_a_delete_is_accepted_in_every_state(tmp_path: Path, state: SandboxState) -> None:
    async with next_life(tmp_path, state, None if state is S.PENDING else S.RUNNING) as (here, node):
        record = await here.services.sandboxes.delete("a")
        assert record is None or record.state is S.DELETED
        await here.beat(node)
        assert node.have == {}
        assert await here.state("a") is S.DELETED


async def refuse_until_it_fails(here: World, since: float) -> None:
    here.fleet.fail("create", *[ApiError(ErrorCode.NODE_REFUSED, "the node is full")] * 100)
    for delay in (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0):
        await here.manual_clock.someone_sleeps(delay)
        here.manual_clock.advance(delay)
        if here.clock.monotonic() - since >= RESTART_PATIENCE:
            return


async def test_a_restart_refused_for_long_fails_and_keeps_the_workspace(here: World) -> None:
    node = await here.join()
    await here.services.sandboxes.create(spec())
    here.die(node, "a", DeathReason.EXITED, 0)
    await here.beat(node)
    started = here.clock.monotonic()
    restart = asyncio.create_task(here.services.sandboxes.restart("a"))
    await refuse_until_it_fails(here, started)
    with pytest.raises(ApiError) as caught:
        await restart
    assert (caught.value.code, caught.value.retryable) == (ErrorCode.NO_ROOM, True)
    record = await here.services.sandboxes.get("a")
    assert (record.state, record.reason) == (S.FAILED, DeathReason.EVICTED)
    await here.beat(node)
    assert "a" in node.have, "with its workspace"
    again = await here.services.sandboxes.create(spec())
    assert (again.recovered, again.sandbox.state) == (True, S.FAILED), "a create does not throw the workspace away"
    here.fleet.faults.clear()
    assert (await here.services.sandboxes.restart("a")).state is S.RUNNING


async def held(here: World) -> Shape:
    (room,) = await here.services.internals.db.read(nodes.rooms)
    return room.reserved


@pytest.mark.parametrize("end", ["exited", "away"])
async def test_what_still_runs_after_a_refused_restart_is_reserved_until_it_ends(here: World, end: str) -> None:
    node = await here.join()
    await here.services.sandboxes.create(spec())
    everything = await held(here)
    started = here.clock.monotonic()
    restart = asyncio.create_task(here.services.sandboxes.restart("a"))
    await refuse_until_it_fails(here, started)
    with pytest.raises(ApiError):
        await restart
    for _ in range(3):
        await here.beat(node)
    assert (await here.state("a"), node.have["a"].state) == (S.FAILED, S.RUNNING)
    assert await held(here) == everything
    if end == "exited":
        here.die(node, "a", DeathReason.EXITED, 0)
    else:
        del node.have["a"]
    await here.beat(node)
    assert await held(here) == Shape(disk_mb=everything.disk_mb)
    assert (await here.services.sandboxes.get("a")).ended_at is not None


async def test_a_refused_restart_goes_on_after_a_crash(tmp_path: Path) -> None:
    settings, fleet, clock = settings_for(tmp_path), Fleet(), ManualClock()
    async with world(settings, fleet, clock) as first:
        await first.join()
        await first.services.sandboxes.create(spec())
        fleet.fail("create", ApiError(ErrorCode.NODE_REFUSED, "the node is full"))
        restart = asyncio.create_task(first.services.sandboxes.restart("a"))
        await clock.someone_sleeps(0.1)
        restart.cancel()
        await asyncio.gather(restart, return_exceptions=True)
        assert await first.state("a") is S.CREATING
    async with world(settings, fleet, clock) as second:
        await second.until("a", S.RUNNING)
        assert (await second.services.sandboxes.get("a")).generation == 2
