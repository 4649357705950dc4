"""A gateway that dies at any moment is replaced by one that finishes its work.

The same story (create, pause, resume, restart, delete) runs once for each point at which the gateway waits for its
database or for a node. There the gateway is dropped, as by SIGKILL: nothing is cancelled in order, nothing is flushed.
A second gateway on the same database, with the same nodes, must come to the same end.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from gateway.core.model import NodeAddress
from gateway.errors import ApiError
from gateway.services.assembly import Services, build
from gateway.services.expiry import FLUSH_INTERVAL
from gateway.services.tasks import SystemClock
from gateway.settings import GatewaySettings
from gateway.store.calls import BoundedCalls
from gateway.store.db import Database
from gateway.wire.errors import ErrorCode
from gateway.wire.nodes import CreateOrder, InventoryItem
from gateway.wire.states import DeathReason, SandboxState
from tests.scenario.gateway.world import FailingDatabase, FakeNode, Fleet, World, drop, settings_for, spec, world

T = TypeVar("T")
S = SandboxState


class Fuse:
    """Counts the points at which the gateway waits, and stops the world at one of them."""

    def __init__(self, at: int | None) -> None:
        self.at = at
        self.count = 0
        self.blown = asyncio.Event()

    async def point(self) -> None:
        """Count one more point; never return from the chosen one."""
        self.count += 1
        if self.blown.is_set() or self.count - 1 == self.at:
            self.blown.set()
            await asyncio.Event().wait()


class FusedDatabase(Database):
    """A real database with a point before and after each transaction."""

    fuse: Fuse

    async def _run(self, threads: BoundedCalls, fn: Callable[[Any], T], reserved: bool = False) -> T:
        await self.fuse.point()
        answer = await super()._run(threads, fn, reserved)
        await self.fuse.point()
        return answer


class FusedFleet(Fleet):
    """The fleet with a point before and after each order."""

    def __init__(self, fleet: Fleet, fuse: Fuse) -> None:
        super().__init__()
        self.nodes, self.log = fleet.nodes, fleet.log
        self._fuse = fuse

    async def create(self, node: NodeAddress, sandbox_id: str, order: CreateOrder) -> InventoryItem:
        return await self._fused(super().create(node, sandbox_id, order))

    async def delete(self, node: NodeAddress, sandbox_id: str, generation: int) -> None:
        await self._fused(super().delete(node, sandbox_id, generation))

    async def pause(self, node: NodeAddress, sandbox_id: str, generation: int) -> InventoryItem:
        return await self._fused(super().pause(node, sandbox_id, generation))

    async def resume(self, node: NodeAddress, sandbox_id: str, generation: int) -> InventoryItem:
        return await self._fused(super().resume(node, sandbox_id, generation))

    async def _fused(self, order: Awaitable[T]) -> T:
        try:
            await self._fuse.point()
        except asyncio.CancelledError:
            asyncio.ensure_future(order).cancel()
            raise
        answer = await order
        await self._fuse.point()
        return answer


def fused(settings: GatewaySettings, fleet: Fleet, fuse: Fuse) -> Services:
    """Return a gateway that stops at the fuse's point."""

    def open_fused(url: str) -> Database:
        db = FusedDatabase.open(url)
        assert isinstance(db, FusedDatabase)
        db.fuse = fuse
        return db

    return build(settings, FusedFleet(fleet, fuse), SystemClock(), open_database=open_fused)


async def story(services: Services) -> None:
    """Make every kind of change that a client can ask for."""
    await services.sandboxes.create(spec())
    await services.sandboxes.pause("a")
    await services.sandboxes.resume("a")
    await services.sandboxes.restart("a")
    await services.sandboxes.delete("a")


async def first_life(settings: GatewaySettings, fleet: Fleet, node: FakeNode, fuse: Fuse) -> None:
    """Let a node join a healthy gateway, then replace that by one that dies at the fuse's point."""
    async with world(settings, fleet, SystemClock()) as healthy:
        joined = await healthy.join()
        node.node_id, node.sequence = joined.node_id, joined.sequence
        fleet.nodes[node.node_id] = node
    services = fused(settings, fleet, fuse)
    starting = asyncio.ensure_future(services.__aenter__())
    telling = asyncio.ensure_future(_after(starting, lambda: story(services)))
    blown = asyncio.ensure_future(fuse.blown.wait())
    await asyncio.wait({telling, blown}, return_when=asyncio.FIRST_COMPLETED)
    for task in (telling, blown, starting):
        task.cancel()
    await asyncio.gather(telling, blown, starting, return_exceptions=True)
    await drop(services)


async def _after(first: Awaitable[object], then: Callable[[], Awaitable[None]]) -> None:
    await first
    await then()


async def settle(here: World, node: FakeNode) -> None:
    """Wait until whatever was left undone has ended, without anybody asking."""
    with contextlib.suppress(Exception):
        record = await here.services.sandboxes.get("a")
        if record.state in {S.PENDING, S.CREATING, S.DELETING}:
            await here.until("a", S.RUNNING, S.DELETED)
    for _ in range(3):
        await here.beat(node)


async def how_many_points(tmp_path: Path, database_url: str | None) -> int:
    fuse = Fuse(None)
    await first_life(settings_for(tmp_path / "count", database_url), Fleet(), FakeNode("vm-1"), fuse)
    return fuse.count


async def second_life(settings: GatewaySettings, fleet: Fleet, node: FakeNode, point: int) -> None:
    async with world(settings, fleet, SystemClock()) as here:
        await settle(here, node)
        found = (await here.services.sandboxes.page()).sandboxes
        if found:
            (record,) = found
            assert record.state in {S.RUNNING, S.PAUSED}, point
            assert fleet.placed() == {"a": [node.node_id]}, point
            assert node.have["a"].generation == record.generation, point
            assert node.have["a"].state == record.state, point
        else:
            assert fleet.placed() == {}, point
        again = (await here.services.sandboxes.create(spec())).sandbox
        assert again.state in {S.RUNNING, S.PAUSED}, point
        assert fleet.placed() == {"a": [node.node_id]}, point
        await here.services.sandboxes.delete("a")
        await here.beat(node)
        assert fleet.placed() == {}, point
        assert (await here.services.nodes.all()).nodes[0].reserved.slots == 0, point


@pytest.mark.timeout(300)
async def test_a_gateway_killed_at_any_point_is_finished_by_the_next(tmp_path: Path) -> None:
    points = await how_many_points(tmp_path, None)
    assert points > 30
    for point in range(points):
        settings, fleet, node = settings_for(tmp_path / str(point)), Fleet(), FakeNode("vm-1")
        await first_life(settings, fleet, node, Fuse(point))
        await second_life(settings, fleet, node, point)


async def test_a_full_disk_of_the_gateway_fails_no_sandbox(tmp_path: Path) -> None:
    settings, fleet = settings_for(tmp_path), Fleet()
    async with build(settings, fleet, SystemClock(), open_database=FailingDatabase.open) as services:
        here, db = World(services, fleet, SystemClock(), settings), services.internals.db
        assert isinstance(db, FailingDatabase)
        node = await here.join()
        gate = fleet.hold("create")
        create = asyncio.create_task(services.sandboxes.create(spec()))
        await fleet.arrived["create"].wait()
        db.failures = 2
        gate.set()
        assert (await create).sandbox.state is S.RUNNING
        gate = fleet.hold("delete")
        delete = asyncio.create_task(services.sandboxes.delete("a"))
        await fleet.arrived["delete"].wait()
        db.failures = 2
        gate.set()
        deleted = await delete
        assert deleted is not None
        assert deleted.state is S.DELETED
        assert node.have == {}
        db.failures = 1
        with pytest.raises(ApiError) as caught:
            await services.sandboxes.create(spec("b"))
        assert caught.value.code is ErrorCode.DISK_FULL
        assert (await services.sandboxes.page()).sandboxes == []


async def test_idle_time_survives_a_restart_of_the_gateway(tmp_path: Path) -> None:
    settings, fleet = settings_for(tmp_path), Fleet()
    async with world(settings, fleet) as first:
        node = await first.join()
        await first.services.sandboxes.create(spec(idle_seconds=600))
        clock = first.manual_clock
        clock.advance(200)  # less than makes the silent node a lost one
        await first.services.sandboxes.route("a")
    clock.advance(500)
    async with world(settings, fleet, clock) as second:
        await second.beat(node)
        assert await second.state("a") is S.RUNNING
        clock.jump(days=30)
        await second.beat(node)
        assert await second.state("a") is S.RUNNING
        await second.pass_time(100 + FLUSH_INTERVAL)
        await second.beat(node)
        await second.until("a", S.DELETED)
        assert (await second.services.sandboxes.get("a")).reason is DeathReason.IDLE
