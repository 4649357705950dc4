"""Many clients, nodes that lose answers, and a gateway that is dropped again and again: nothing is lost or left."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.core.model import NodeAddress
from gateway.errors import ApiError
from gateway.services.assembly import build
from gateway.services.tasks import SystemClock
from gateway.wire.errors import ErrorCode
from gateway.wire.states import SandboxState
from tests.scenario.gateway.world import FakeNode, Fleet, World, drop, settings_for, spec

S = SandboxState
CLIENTS = 8
CYCLES = 6
LIVES = 4


class Storm(Fleet):
    """Every fourth order goes wrong in some way; a sandbox on two nodes in one generation is an error."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = random.Random(seed)
        self.calm = False

    @contextlib.asynccontextmanager
    async def _order(self, verb: str, node: NodeAddress, sandbox_id: str, generation: int) -> AsyncIterator[FakeNode]:
        if not self.calm and self._random.random() < 0.25:
            fault = self._random.choice(["lost", "cut", "refused"] if verb == "create" else ["lost", "cut"])
            self.fail(verb, ApiError(ErrorCode.NODE_REFUSED, "not now") if fault == "refused" else fault)
        async with super()._order(verb, node, sandbox_id, generation) as target:
            yield target
        holders = [each.have[sandbox_id].generation for each in self.nodes.values() if sandbox_id in each.have]
        assert len(holders) == len(set(holders)), f"{sandbox_id} is twice in one generation: {holders}"


class Gateway:
    """The gateway that lives now; clients that meet none, or one that dies, ask again."""

    def __init__(self) -> None:
        self.present: asyncio.Future[World] = asyncio.get_running_loop().create_future()
        self.died = asyncio.Event()

    async def call(self, what: str, *args: object) -> object:
        """One call of a client that never gives up."""
        while True:
            world, died = await self.present, self.died
            calling = asyncio.ensure_future(getattr(world.services.sandboxes, what)(*args))
            dying = asyncio.ensure_future(died.wait())
            await asyncio.wait({calling, dying}, return_when=asyncio.FIRST_COMPLETED)
            dying.cancel()
            if died.is_set():
                calling.cancel()
                await asyncio.gather(calling, return_exceptions=True)
                continue
            try:
                return calling.result()
            except ApiError as error:
                assert error.retryable, error.message
                await asyncio.sleep(0.01)


async def client(gateway: Gateway, number: int) -> None:
    for cycle in range(CYCLES):
        name = f"c{number}-{cycle}"
        await gateway.call("create", spec(name, cpus=0.5, memory_mb=64))
        record = await gateway.call("get", name)
        assert record.state is S.RUNNING  # type: ignore[attr-defined]
        await gateway.call("delete", name)


async def beating(world: World) -> None:
    while True:
        for node in list(world.fleet.nodes.values()):
            await world.beat(node)
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("seed", [1, 2])
async def test_no_sandbox_is_lost_and_nothing_is_left_on_nodes(tmp_path: Path, seed: int) -> None:
    settings, fleet, gateway = settings_for(tmp_path), Storm(seed), Gateway()
    clients = [asyncio.create_task(client(gateway, number)) for number in range(CLIENTS)]
    for life in range(LIVES):
        services = build(settings, fleet, SystemClock())
        await services.__aenter__()
        world = World(services, fleet, SystemClock(), settings)
        if not fleet.nodes:
            for instance in ("vm-1", "vm-2", "vm-3"):
                await world.join(instance)
        beats = asyncio.create_task(beating(world))
        gateway.died = asyncio.Event()
        gateway.present.set_result(world)
        last = life == LIVES - 1
        await asyncio.wait(clients, timeout=None if last else random.Random(seed + life).uniform(0.2, 0.8))
        if last:
            fleet.calm = True
            await asyncio.gather(*clients)
            left = (await world.services.sandboxes.page()).sandboxes
            await asyncio.gather(*(world.until(record.id, S.DELETED) for record in left))
        beats.cancel()
        await asyncio.gather(beats, return_exceptions=True)
        if last:
            for node in fleet.nodes.values():
                await world.beat(node)
            assert fleet.placed() == {}
            assert (await world.services.capacity.demand()).pending_count == 0
        gateway.present = asyncio.get_running_loop().create_future()
        gateway.died.set()
        await drop(services)
