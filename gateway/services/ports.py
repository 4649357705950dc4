"""What the services need from outside: clocks, and orders to nodes."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from gateway.wire.nodes import CreateOrder, InventoryItem

NewId = Callable[[], str]
"""Makes a name that nobody else has."""


class Clock(Protocol):
    """Both clocks, and sleeping on the second of them."""

    def now(self) -> datetime:
        """UTC, for what is stored and shown."""

    def monotonic(self) -> float:
        """Seconds that no jump of the wall clock moves, for deadlines."""

    async def sleep(self, seconds: float) -> None:
        """Returns when that much monotonic time has passed."""


class SystemClock:
    """The machine's own clocks."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@dataclass(frozen=True)
class NodeAddress:
    """Where a node is reached, and the bearer that it expects."""

    node_id: str
    url: str
    control_token: str = field(repr=False)


@dataclass(frozen=True)
class Route:
    """Where one incarnation of a sandbox is served."""

    sandbox_id: str
    generation: int
    node: NodeAddress


class NodeGateway(Protocol):
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
