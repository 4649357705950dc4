"""Builders: a gateway without HTTP over a real database, fake nodes with faults on demand, and a manual clock."""

import asyncio
import contextlib
import heapq
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from sqlalchemy import text

from gateway.core.model import NodeAddress, Sandbox
from gateway.errors import ApiError
from gateway.services.assembly import Services, build
from gateway.services.tasks import AsyncClock
from gateway.settings import GatewaySettings
from gateway.store import sandboxes
from gateway.store.db import Database, make_engine
from gateway.wire import limits
from gateway.wire.errors import ErrorCode
from gateway.wire.nodes import (
    CreateOrder,
    Heartbeat,
    HeartbeatAnswer,
    InventoryItem,
    JoinTokenRequest,
    RegisterRequest,
    RuntimeReport,
)
from gateway.wire.resources import Shape
from gateway.wire.sandboxes import SandboxSpec
from gateway.wire.states import DeathReason, NodeState, SandboxState

S = SandboxState
N = NodeState
T = TypeVar("T")
TURNS = 20
"""Of the event loop, in which everybody gets to do what is due."""
ROOM = Shape(cpus=4, memory_mb=8192, disk_mb=40960, slots=32)
RUNSC = RuntimeReport(name="runsc", version="1", isolations=["gvisor"], pause=True)


def spec(sandbox_id: str = "a", **fields: object) -> SandboxSpec:
    """Return the spec of a small sandbox."""
    return SandboxSpec.model_validate({"id": sandbox_id, "image": "busybox", **fields})


class ManualClock:
    """A clock that stands still until the test moves it."""

    def __init__(self) -> None:
        self._mono = 1000.0
        self._wall = datetime(2026, 1, 1, tzinfo=UTC)
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()
        self._slept = asyncio.Event()

    def now(self) -> datetime:
        return self._wall

    def monotonic(self) -> float:
        return self._mono

    def sleep(self, seconds: float) -> Awaitable[None]:
        """Begin to sleep at the call, not when a task first runs: the clock may be moved in between."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if seconds <= 0:
            future.set_result(None)
        else:
            heapq.heappush(self._sleepers, (self._mono + seconds, next(self._order), future))
            self._slept.set()
        return future

    async def someone_sleeps(self, seconds: float) -> None:
        """Return once somebody has this long to sleep."""
        while not any(abs(at - self._mono - seconds) < 1e-6 and not f.done() for at, _, f in self._sleepers):
            self._slept.clear()
            await self._slept.wait()

    def jump(self, **delta: float) -> None:
        """Move the wall clock alone."""
        self._wall += timedelta(**delta)

    def advance(self, seconds: float) -> None:
        """Move both clocks, and wake everybody whose sleep is over by then.

        A leap over several heartbeats is to a gateway as if its process had stood still.
        """
        self._mono += seconds
        self._wall += timedelta(seconds=seconds)
        while self._sleepers and self._sleepers[0][0] <= self._mono:
            _, _, future = heapq.heappop(self._sleepers)
            if not future.done():
                future.set_result(None)


@dataclass
class FakeNode:
    """One node, and what it really has."""

    instance: str
    node_id: str = ""
    total: Shape = ROOM
    runtimes: list[RuntimeReport] = field(default_factory=lambda: [RUNSC])
    have: dict[str, InventoryItem] = field(default_factory=dict)
    sequence: int = 0
    boot_id: str = "boot-1"
    draining: bool = False
    dead: bool = False
    """No order reaches it."""


class Fleet:
    """All nodes, as the gateway orders them (`NodeOrders`). Each order takes the next fault of its verb."""

    def __init__(self) -> None:
        self.nodes: dict[str, FakeNode] = {}
        self.log: list[tuple[str, str, str, int]] = []
        """Every order that reached a node: verb, node, sandbox, generation."""
        self.faults: dict[str, list[Callable[[], None] | str | ApiError]] = {}
        self.gates: dict[str, asyncio.Event] = {}
        """Orders of this verb wait here before they are carried out."""
        self.arrived: dict[str, asyncio.Event] = {}

    def fail(self, verb: str, *faults: str | ApiError) -> None:
        """Make the next orders of ``verb`` fail: ``lost`` (done, answer lost), ``cut`` (not done), or with an error."""
        self.faults.setdefault(verb, []).extend(faults)

    def hold(self, verb: str) -> asyncio.Event:
        """Make orders of ``verb`` wait until the returned event is set."""
        self.arrived[verb] = asyncio.Event()
        return self.gates.setdefault(verb, asyncio.Event())

    def count(self, verb: str) -> int:
        """Return how often an order of ``verb`` reached a node."""
        return sum(1 for entry in self.log if entry[0] == verb)

    def placed(self) -> dict[str, list[str]]:
        """Return by sandbox the nodes that have it."""
        where: dict[str, list[str]] = {}
        for node in self.nodes.values():
            for sandbox_id in node.have:
                where.setdefault(sandbox_id, []).append(node.node_id)
        return where

    async def create(self, node: NodeAddress, sandbox_id: str, order: CreateOrder) -> InventoryItem:
        async with self._order("create", node, sandbox_id, order.generation) as target:
            present = target.have.get(sandbox_id)
            if present is not None and present.generation > order.generation:
                raise ApiError(ErrorCode.CONFLICT, "a newer generation is here")
            if present is None or present.generation < order.generation:
                target.have[sandbox_id] = InventoryItem(
                    sandbox_id=sandbox_id,
                    generation=order.generation,
                    operation_id=order.operation_id,
                    spec_hash=order.spec.sha256(),
                    state=S.RUNNING,
                    runtime=order.runtime,
                    isolation="gvisor",
                    shape=order.spec.shape,
                    started_at=datetime.now(UTC),
                )
            return target.have[sandbox_id]

    async def delete(self, node: NodeAddress, sandbox_id: str, generation: int) -> None:
        async with self._order("delete", node, sandbox_id, generation) as target:
            present = target.have.get(sandbox_id)
            if present is not None and present.generation > generation:
                raise ApiError(ErrorCode.CONFLICT, "a newer generation is here")
            target.have.pop(sandbox_id, None)

    async def pause(self, node: NodeAddress, sandbox_id: str, generation: int) -> InventoryItem:
        return await self._turn("pause", node, sandbox_id, generation, S.PAUSED)

    async def resume(self, node: NodeAddress, sandbox_id: str, generation: int) -> InventoryItem:
        return await self._turn("resume", node, sandbox_id, generation, S.RUNNING)

    async def _turn(
        self, verb: str, node: NodeAddress, sandbox_id: str, generation: int, state: SandboxState
    ) -> InventoryItem:
        async with self._order(verb, node, sandbox_id, generation) as target:
            item = target.have[sandbox_id].model_copy(update={"state": state})
            target.have[sandbox_id] = item
            return item

    @contextlib.asynccontextmanager
    async def _order(self, verb: str, node: NodeAddress, sandbox_id: str, generation: int) -> AsyncIterator[FakeNode]:
        if verb in self.gates:
            self.arrived[verb].set()
            await self.gates[verb].wait()
        target = self.nodes[node.node_id]
        faults = self.faults.get(verb, [])
        fault = faults.pop(0) if faults else None
        if target.dead or fault == "cut":
            raise ApiError(ErrorCode.NODE_UNREACHABLE, f"node {node.node_id} does not answer")
        if isinstance(fault, ApiError):
            raise fault
        self.log.append((verb, node.node_id, sandbox_id, generation))
        yield target
        if fault == "lost":
            raise ApiError(ErrorCode.NODE_UNREACHABLE, "the connection broke before the answer")


async def pass_time(seconds: float, *worlds: "World") -> None:
    """Let time pass on the clock of these gateways, in steps that are short enough for each to keep up."""
    while seconds > 0:
        step = min(seconds, limits.HEARTBEAT_INTERVAL)
        worlds[0].manual_clock.advance(step)
        seconds -= step
        for _ in range(TURNS):
            await asyncio.sleep(0)
        while any(world.services.internals.hearing.trying for world in worlds):
            await asyncio.sleep(0.001)


@dataclass
class World:
    """One gateway and its fleet."""

    services: Services
    fleet: Fleet
    clock: AsyncClock
    settings: GatewaySettings

    @property
    def manual_clock(self) -> ManualClock:
        """The clock, where the test moves it."""
        assert isinstance(self.clock, ManualClock)
        return self.clock

    async def pass_time(self, seconds: float) -> None:
        """Let time pass for this gateway."""
        await pass_time(seconds, self)

    async def join(self, instance: str = "vm-1", total: Shape = ROOM, **fields: object) -> FakeNode:
        """Let a node register and report once."""
        token = await self.services.nodes.make_join_token(JoinTokenRequest(instance=instance, pool="cpu"))
        node = FakeNode(instance=instance, total=total, **fields)  # type: ignore[arg-type]
        answer = await self.services.nodes.register(token.token, registration(node))
        node.node_id = answer.node_id
        self.fleet.nodes[node.node_id] = node
        await self.beat(node)
        return node

    async def beat(self, node: FakeNode, **live_execs: int) -> HeartbeatAnswer:
        """Let a node report, and remove what the answer names."""
        node.sequence += 1
        answer = await self.services.nodes.heartbeat(node.node_id, heartbeat(node, live_execs))
        for removal in answer.remove:
            present = node.have.get(removal.sandbox_id)
            if present is not None and present.generation <= removal.generation:
                del node.have[removal.sandbox_id]
        return answer

    def die(self, node: FakeNode, sandbox_id: str, reason: DeathReason, exit_code: int | None = None) -> None:
        """End a sandbox on its node."""
        state = S.EXITED if reason is DeathReason.EXITED else S.FAILED
        node.have[sandbox_id] = node.have[sandbox_id].model_copy(
            update={"state": state, "reason": reason, "exit_code": exit_code}
        )

    async def until(self, sandbox_id: str, *states: SandboxState) -> None:
        """Return once the sandbox is in one of these states."""
        uow = self.services.internals.context.uow
        changed = asyncio.Event()
        latest: list[Sandbox] = []

        def listen(sandbox: Sandbox) -> None:
            if sandbox.id == sandbox_id:
                latest.append(sandbox)
                changed.set()

        uow.subscribe(listen)
        row = await uow.db.read(lambda session: sandboxes.get(session, sandbox_id))
        while row is None or row.state not in states:
            await changed.wait()
            changed.clear()
            row = latest[-1]

    async def state(self, sandbox_id: str) -> SandboxState:
        """Return the sandbox's state."""
        return (await self.services.sandboxes.get(sandbox_id)).state


def registration(node: FakeNode) -> RegisterRequest:
    """Return the node's registration."""
    return RegisterRequest(
        node_url="http://127.0.0.1:9999",
        instance=node.instance,
        agent_version="1",
        total=node.total,
        runtimes=node.runtimes,
    )


def heartbeat(node: FakeNode, live_execs: dict[str, int] | None = None) -> Heartbeat:
    """Return the node's complete report."""
    execs = live_execs or {}
    items = [item.model_copy(update={"live_execs": execs.get(item.sandbox_id, 0)}) for item in node.have.values()]
    return Heartbeat(
        sequence=node.sequence,
        boot_id=node.boot_id,
        node_url="http://127.0.0.1:9999",
        agent_version="1",
        total=node.total,
        reserved=sum((item.shape for item in items), start=Shape()),
        used_memory_mb=0,
        used_disk_mb=0,
        runtimes=node.runtimes,
        inventory=items,
        draining=node.draining,
    )


def settings_for(state_dir: Path, url: str | None = None, **fields: object) -> GatewaySettings:
    """Return the settings of a gateway under test."""
    return GatewaySettings.model_validate({"state_dir": state_dir, "database_url": url, "reserve_mb": 1, **fields})


@contextlib.asynccontextmanager
async def world(
    settings: GatewaySettings, fleet: Fleet | None = None, clock: AsyncClock | None = None
) -> AsyncIterator[World]:
    """Yield a running gateway."""
    fleet = fleet or Fleet()
    clock = clock or ManualClock()
    async with build(settings, fleet, clock) as services:
        yield World(services, fleet, clock, settings)


@contextlib.contextmanager
def refused(code: ErrorCode) -> Iterator[None]:
    """Expect that the block is refused with ``code``."""
    with pytest.raises(ApiError) as caught:
        yield
    assert caught.value.code is code


def older(node: FakeNode) -> FakeNode:
    """Return a copy of the node as it is now, to report later."""
    return replace(node, have=dict(node.have))


async def drop(services: Services) -> None:
    """Drop a gateway as SIGKILL does: a commit that was under way may still come through, and nothing else happens."""
    await services.internals.context.background.stop()
    services.close()


class FailingDatabase(Database):
    """A real database whose next writes fail as often as asked."""

    failures = 0

    async def write(self, fn: Callable[[Any], T], *, reserved: bool = False) -> T:
        if self.failures:
            self.failures -= 1
            raise ApiError(ErrorCode.DISK_FULL, "the gateway's database cannot grow: its disk is full")
        return await super().write(fn, reserved=reserved)


async def node_state(world: World) -> NodeState:
    """Return the state of the only node."""
    return (await world.services.nodes.all()).nodes[0].state


async def grow_silent(world: World, state: NodeState) -> None:
    """Move the clock until the only node is in ``state``."""
    unreachable, lost = world.settings.unreachable_after, world.settings.lost_after
    await world.pass_time(unreachable)
    while await node_state(world) is not N.UNREACHABLE:
        await asyncio.sleep(0)
    if state is N.LOST:
        await world.pass_time(lost - unreachable)
        while await node_state(world) is not N.LOST:
            await asyncio.sleep(0)


LISTENERS = "FROM pg_stat_activity WHERE query = 'LISTEN sandbox_fleet' AND datname = current_database()"


async def both_listen(url: str, meanwhile: Callable[[], None] = lambda: None) -> None:
    """Return once two gateways hear of each other's changes."""
    engine = make_engine(url)
    query = text(f"SELECT count(*) {LISTENERS}")
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        while connection.execute(query).scalar_one() < 2:
            await asyncio.sleep(0.01)  # PostgreSQL tells nobody who listens
            meanwhile()
    engine.dispose()
