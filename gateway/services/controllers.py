"""One task for each sandbox that is being brought up or taken away on a node.

A controller knows nothing that the row does not: it carries out the row's present operation, and writes its result only
while that operation is still the row's.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
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
MAX_BACKOFF: Final = 5.0
RESTART_PATIENCE: Final = 20.0
"""Seconds for which a node may refuse a restart before it fails; less than a caller waits for it."""

Step = Callable[[Sandbox], Awaitable[bool]]
"""Gives the order of a sandbox's operation once; returns whether that settled the operation."""


class NodeOrders(Protocol):
    """Orders to nodes. Every order is idempotent by id and generation and bounded in time.

    Every method raises `gateway.errors.ApiError`: ``NODE_UNREACHABLE`` or ``TIMEOUT`` when the outcome is unknown
    (refused connection, broken connection, no answer in time, an answer that is not the protocol's), ``NODE_REFUSED``
    when the node takes nothing now, ``CONFLICT`` when it has a newer generation, and the node's own code otherwise.
    """

    async def create(self, node: NodeAddress, sandbox_id: str, order: CreateOrder) -> InventoryItem:
        """Return when the sandbox runs (or already ended)."""

    async def delete(self, node: NodeAddress, sandbox_id: str, generation: int) -> None:
        """Return when nothing of that generation or an older one is there."""

    async def pause(self, node: NodeAddress, sandbox_id: str, generation: int) -> InventoryItem:
        """Return when all processes are frozen."""

    async def resume(self, node: NodeAddress, sandbox_id: str, generation: int) -> InventoryItem:
        """Return when they run again."""


@dataclass(frozen=True)
class ServiceContext:
    """What the services share."""

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
    """A task, and the operation of the row that it carries out."""

    sandbox: Sandbox
    task: asyncio.Task[None]


class Controllers:
    """Starts, replaces and ends the tasks as sandboxes change."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._clock = context.clock
        self._running: dict[str, _Operation] = {}

    def on_change(self, sandbox: Sandbox) -> None:
        """React to a change of a sandbox: end what it made pointless, and start what it asks for."""
        running = self._running.get(sandbox.id)
        if running is not None:
            if running.sandbox.same_operation(sandbox):
                return
            self._cancel(running)
        if sandbox.state is SandboxState.CREATING:
            step: Step = partial(self._create, since=self._clock.monotonic())
        elif sandbox.state is SandboxState.DELETING:
            step = self._delete
        else:
            return
        task = self._context.background.start(self._run(sandbox, step), f"controller-{sandbox.id}-{sandbox.state}")
        self._running[sandbox.id] = operation = _Operation(sandbox, task)
        task.add_done_callback(lambda _: self._forget(operation))

    def on_peer_change(self, sandbox: Sandbox) -> None:
        """React to a change by another gateway, which drives on itself what it began."""
        running = self._running.get(sandbox.id)
        if running is None or sandbox.version <= running.sandbox.version:
            return
        if not running.sandbox.same_operation(sandbox):
            self._cancel(running)

    def _cancel(self, operation: _Operation) -> None:
        operation.task.cancel()
        self._forget(operation)

    def _forget(self, operation: _Operation) -> None:
        if self._running.get(operation.sandbox.id) is operation:
            del self._running[operation.sandbox.id]

    async def _run(self, sandbox: Sandbox, step: Step) -> None:
        """Take the step again and again until it returns that the operation is settled."""
        delay = FIRST_BACKOFF
        while True:
            try:
                if await step(sandbox):
                    return
            except ApiError as error:
                log.warning("%s of sandbox %s: %s; retrying in %s s", sandbox.state, sandbox.id, error.message, delay)
            except Exception:
                # Whatever broke here says nothing about the sandbox, and a task that died would leave it as it is.
                log.exception("%s of sandbox %s failed; retrying in %s s", sandbox.state, sandbox.id, delay)
            await self._clock.sleep(delay)
            delay = min(MAX_BACKOFF, delay * 2)

    # -- bringing up --------------------------------------------------------------------------------------------------

    async def _create(self, sandbox: Sandbox, since: float) -> bool:
        """Give the create order once; return whether that settled the operation.

        Args:
            sandbox: as it was when its operation began.
            since: monotonic time of that moment.
        """
        address = await self._address(sandbox)
        if address is None:
            return False  # the transaction that removed the node has moved the sandbox, too
        order = CreateOrder(
            generation=sandbox.generation,
            operation_id=sandbox.operation_id,
            spec=sandbox.spec,
            runtime=sandbox.runtime or "runsc",
        )
        try:
            item = await self._context.orders.create(address, sandbox.id, order)
        except ApiError as error:
            return await self._refused(sandbox, address, error, since)
        return await self._answered(sandbox, item)

    async def _answered(self, sandbox: Sandbox, item: InventoryItem) -> bool:
        if (item.generation, item.operation_id) != (sandbox.generation, sandbox.operation_id):
            log.warning(
                "node %s answered for generation %s of %s, not %s",
                sandbox.node_id, item.generation, sandbox.id, sandbox.generation,
            )  # fmt: skip
            return False
        now = self._clock.now()
        if transitions.settled(sandbox, item, now) is None:
            return False
        await self._change(sandbox, lambda row: transitions.settled(row, item, now))
        return True

    async def _refused(self, sandbox: Sandbox, address: NodeAddress, error: ApiError, since: float) -> bool:
        now = self._clock.now()
        outcome = transitions.outcome_of(error.code)
        log.info("node %s on create of %s: %s (%s)", address.node_id, sandbox.id, error.message, outcome.value)
        if outcome is OrderOutcome.UNKNOWN:
            return False
        if outcome is OrderOutcome.REFUSED and sandbox.ever_ran:
            # It can go nowhere else, since the workspace is here.
            if self._clock.monotonic() - since < RESTART_PATIENCE:
                return False
            await self._change(sandbox, lambda row: transitions.restart_refused(row, error.message, now))
        elif outcome is OrderOutcome.FINAL or sandbox.ever_ran:
            await self._change(sandbox, lambda row: transitions.failed(row, error.code, error.message, now))
        else:
            self._context.scheduler.avoid(sandbox.id, address.node_id)
            operation_id = self._context.new_id()
            await self._change(sandbox, lambda row: transitions.requeued(row, operation_id, now))
        return True

    # -- taking away --------------------------------------------------------------------------------------------------

    async def _delete(self, sandbox: Sandbox) -> bool:
        """Give the delete order once; return whether that settled the operation."""
        address = await self._address(sandbox)
        if address is not None:
            try:
                await self._context.orders.delete(address, sandbox.id, sandbox.generation)
            except ApiError as error:
                # A conflict means a newer generation, and no older one can be beside it.
                if error.code not in {ErrorCode.CONFLICT, ErrorCode.SANDBOX_NOT_FOUND}:
                    log.info("node %s on delete of %s: %s", address.node_id, sandbox.id, error.message)
                    return False
        now = self._clock.now()
        await self._change(sandbox, lambda row: transitions.deleted(row, now))
        return True

    # -- shared -------------------------------------------------------------------------------------------------------

    async def _address(self, sandbox: Sandbox) -> NodeAddress | None:
        """Return where the sandbox's node is reached; ``None`` once that node is gone."""
        return None if sandbox.node_id is None else await self._context.directory.address(sandbox.node_id)

    async def _change(self, sandbox: Sandbox, decide: transitions.Decide) -> None:
        """Write the result of the sandbox's operation, unless it was overtaken meanwhile."""
        await self._context.uow.change(
            sandbox.id, lambda row: decide(row) if row.same_operation(sandbox) else None, reserved=True
        )
