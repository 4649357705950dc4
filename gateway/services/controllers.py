"""One task for each sandbox that is being brought up or taken away on a node.

A task knows nothing that the row does not: it carries out the row's present operation, and what it changes is written
only while that operation is still the row's.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from gateway.core import transitions
from gateway.core.model import NodeAddress, Sandbox
from gateway.core.transitions import OrderOutcome
from gateway.errors import ApiError
from gateway.services.node_credentials import NodeDirectory
from gateway.services.route_cache import RouteCache
from gateway.services.scheduler import Scheduler
from gateway.services.tasks import AsyncClock, Background, NewId
from gateway.services.unit_of_work import UnitOfWork
from gateway.wire.errors import ErrorCode
from gateway.wire.nodes import CreateOrder, InventoryItem
from gateway.wire.states import SandboxState

log = logging.getLogger(__name__)

FIRST_BACKOFF: Final = 0.1
LAST_BACKOFF: Final = 5.0
RESTART_PATIENCE: Final = 20.0
"""Seconds for which a node may refuse a restart before it fails; less than a caller waits for it."""


class NodeOrders(Protocol):
    """Orders to nodes.  Every order is idempotent by id and generation and bounded in time.

    Every method raises `gateway.errors.ApiError`: ``NODE_UNREACHABLE`` or ``TIMEOUT`` when the outcome is unknown
    (refused connection, broken connection, no answer in time, an answer that is not the protocol's), ``NODE_REFUSED``
    when the node takes nothing now, ``CONFLICT`` when it has a newer generation, and the node's own code otherwise.
    """

    async def create(self, node: NodeAddress, order: CreateOrder) -> InventoryItem:
        """Answers when the sandbox runs (or already ended)."""

    async def delete(self, node: NodeAddress, sandbox_id: str, generation: int) -> None:
        """Answers when nothing of that generation or an older one is there."""

    async def pause(self, node: NodeAddress, sandbox_id: str, generation: int) -> InventoryItem:
        """Answers when all processes are frozen."""

    async def resume(self, node: NodeAddress, sandbox_id: str, generation: int) -> InventoryItem:
        """Answers when they go on."""


@dataclass(frozen=True)
class ServiceContext:
    """What the controllers work with."""

    uow: UnitOfWork
    orders: NodeOrders
    directory: NodeDirectory
    routes: RouteCache
    scheduler: Scheduler
    background: Background
    clock: AsyncClock
    new_id: NewId


@dataclass(frozen=True)
class _Operation:
    version: int
    operation: tuple[str, SandboxState]
    task: asyncio.Task[None]


class Controllers:
    """Starts, replaces and ends the tasks as sandboxes change."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._running: dict[str, _Operation] = {}

    def on_change(self, sandbox: Sandbox) -> None:
        """Reacts to a change of a sandbox."""
        running = self._running.get(sandbox.id)
        operation = (sandbox.operation_id, sandbox.state)
        if running is not None:
            if running.operation == operation:
                return
            running.task.cancel()
            del self._running[sandbox.id]
        if sandbox.state is SandboxState.CREATING:
            work = self._bring_up(sandbox)
        elif sandbox.state is SandboxState.DELETING:
            work = self._take_away(sandbox)
        else:
            return
        task = self._context.background.start(work, f"driver-{sandbox.id}-{sandbox.state}")
        self._running[sandbox.id] = entry = _Operation(sandbox.version, operation, task)
        task.add_done_callback(lambda _: self._forget(sandbox.id, entry))

    def on_others_change(self, sandbox: Sandbox) -> None:
        """Ends what another gateway has made pointless; it drives on itself what it began."""
        running = self._running.get(sandbox.id)
        if running is None or sandbox.version <= running.version:
            return
        if running.operation != (sandbox.operation_id, sandbox.state):
            running.task.cancel()
            del self._running[sandbox.id]

    def _forget(self, sandbox_id: str, entry: _Operation) -> None:
        if self._running.get(sandbox_id) is entry:
            del self._running[sandbox_id]

    async def _bring_up(self, sandbox: Sandbox) -> None:
        await self._until_done(sandbox, partial(self._create, since=self._context.clock.monotonic()))

    async def _take_away(self, sandbox: Sandbox) -> None:
        await self._until_done(sandbox, self._delete)

    async def _until_done(self, sandbox: Sandbox, step: Callable[[Sandbox], Awaitable[bool]]) -> None:
        """Takes the step again and again until it says that the operation is settled."""
        for delay in _backoff():
            try:
                if await step(sandbox):
                    return
            except Exception:
                # Whatever broke here says nothing about the sandbox, and a task that died would leave it as it is.
                log.exception("%s of sandbox %s broke; it is tried again in %s s", sandbox.state, sandbox.id, delay)
            await self._context.clock.sleep(delay)

    async def _create(self, sandbox: Sandbox, since: float) -> bool:
        """Gives the create order once; whether that settled the operation."""
        address = await self._address(sandbox)
        if address is None:
            return False  # the transaction that removed the node has moved the sandbox, too
        try:
            item = await self._context.orders.create(address, order_of(sandbox))
        except ApiError as error:
            return await self._refused(sandbox, address, error, since)
        return await self._told(sandbox, item)

    async def _told(self, sandbox: Sandbox, item: InventoryItem) -> bool:
        if (item.generation, item.operation_id) != (sandbox.generation, sandbox.operation_id):
            log.warning(
                "node %s answered for generation %s of %s, not %s",
                sandbox.node_id, item.generation, sandbox.id, sandbox.generation,
            )  # fmt: skip
            return False
        now = self._context.clock.now()
        if transitions.settled(sandbox, item, now) is None:
            return False
        await self._change(sandbox, lambda row: transitions.settled(row, item, now))
        return True

    async def _refused(self, sandbox: Sandbox, address: NodeAddress, error: ApiError, since: float) -> bool:
        now = self._context.clock.now()
        outcome = transitions.outcome_of(error.code)
        log.info("node %s on create of %s: %s (%s)", address.node_id, sandbox.id, error.message, outcome.value)
        if outcome is OrderOutcome.UNKNOWN:
            return False
        if outcome is OrderOutcome.REFUSED and sandbox.ever_ran:
            # It can go nowhere else, since the workspace is here.
            if self._context.clock.monotonic() - since < RESTART_PATIENCE:
                return False
            await self._change(sandbox, lambda row: transitions.restart_refused(row, error.message, now))
        elif outcome is OrderOutcome.FINAL or sandbox.ever_ran:
            await self._change(sandbox, lambda row: transitions.failed(row, error.code, error.message, now))
        else:
            self._context.scheduler.avoid(sandbox.id, address.node_id)
            operation_id = self._context.new_id()
            await self._change(sandbox, lambda row: transitions.requeued(row, operation_id, now))
        return True

    async def _delete(self, sandbox: Sandbox) -> bool:
        """Gives the delete order once; whether that settled the operation."""
        address = await self._address(sandbox)
        if address is not None:
            try:
                await self._context.orders.delete(address, sandbox.id, sandbox.generation)
            except ApiError as error:
                # A conflict means a newer generation, and no older one can be beside it.
                if error.code not in {ErrorCode.CONFLICT, ErrorCode.SANDBOX_NOT_FOUND}:
                    log.info("node %s on delete of %s: %s", address.node_id, sandbox.id, error.message)
                    return False
        now = self._context.clock.now()
        await self._change(sandbox, lambda row: transitions.deleted(row, now))
        return True

    async def _address(self, sandbox: Sandbox) -> NodeAddress | None:
        """Where the sandbox's node is reached; ``None`` once that node is gone."""
        return None if sandbox.node_id is None else await self._context.directory.address(sandbox.node_id)

    async def _change(self, sandbox: Sandbox, decide: transitions.Decide) -> None:
        def fenced(row: Sandbox) -> Sandbox | None:
            current = (row.operation_id, row.state) == (sandbox.operation_id, sandbox.state)
            return decide(row) if current else None

        await self._context.uow.change(sandbox.id, fenced)


def order_of(sandbox: Sandbox) -> CreateOrder:
    """The order that carries out the sandbox's present operation."""
    return CreateOrder(
        generation=sandbox.generation,
        operation_id=sandbox.operation_id,
        spec=sandbox.spec,
        runtime=sandbox.runtime or "runsc",
    )


def _backoff() -> Iterator[float]:
    delay = FIRST_BACKOFF
    while True:
        yield delay
        delay = min(LAST_BACKOFF, delay * 2)
