"""This node's sandboxes: `NodeSandbox`, how one moves from state to state, and the table of all that are here.

The generation fence is here: every order and question names a generation, and `SandboxTable.fenced` refuses it where a
newer one is here.  Memory only; after a restart the manager rebuilds it from what the engines have.  Everything takes
`SandboxTable.lock`, and a decision that spans several calls is made under it by the caller.
"""

import threading
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, Self, TypeVar

from gateway.wire.errors import ErrorCode
from gateway.wire.nodes import InventoryItem
from gateway.wire.resources import Shape
from gateway.wire.sandboxes import Isolation, RuntimeName
from gateway.wire.states import LIVE, SANDBOX_TRANSITIONS, DeathReason, SandboxState, next_state
from node_agent.errors import NodeError
from node_agent.runtime.base import Death, EngineState, Found, Order
from node_agent.sandboxes.pause_gate import PauseGate

HOLDING: Final = LIVE | {SandboxState.DELETING}
"""States in which a sandbox counts against the node's resources."""

_OF_ENGINE: Final = {
    EngineState.CREATING: SandboxState.CREATING,
    EngineState.RUNNING: SandboxState.RUNNING,
    EngineState.PAUSED: SandboxState.PAUSED,
    EngineState.CHECKPOINTED: SandboxState.CHECKPOINTED,
}


@dataclass(frozen=True)
class NodeSandbox:
    """One incarnation of a sandbox."""

    order: Order
    runtime: RuntimeName
    state: SandboxState
    isolation: Isolation
    image_digest: str | None = None
    started_at: datetime | None = None
    death: Death | None = None

    @classmethod
    def ordered(cls, order: Order, runtime: RuntimeName) -> Self:
        """Return the sandbox at the moment in which its order is accepted."""
        return cls(order, runtime, SandboxState.CREATING, order.spec.isolation)

    @classmethod
    def adopted(cls, found: Found, runtime: RuntimeName) -> Self:
        """Return the sandbox as an engine has it after a restart of the agent."""
        state = _end_state(found.death) if found.state is EngineState.DEAD else _OF_ENGINE[found.state]
        return cls(found.order, runtime, state, found.isolation, found.image_digest, found.started_at, found.death)

    @property
    def id(self) -> str:
        return self.order.sandbox_id

    @property
    def generation(self) -> int:
        """Which incarnation of the id this is."""
        return self.order.generation

    def moved(self, state: SandboxState) -> Self:
        """Return the sandbox in another state, as far as the table of transitions allows it."""
        return replace(self, state=next_state(SANDBOX_TRANSITIONS, self.state, state))

    def started(self, found: Found) -> Self:
        """Return the sandbox once its create came back from the engine."""
        return replace(
            self.moved(SandboxState.RUNNING),
            isolation=found.isolation,
            image_digest=found.image_digest,
            started_at=found.started_at,
            death=None,
        )

    def died(self, death: Death) -> Self:
        """Return the sandbox once its first process is gone."""
        return replace(self.moved(_end_state(death)), death=death)

    def not_running(self) -> NodeError:
        """Return the refusal of work that needs running processes."""
        detail = f": {self.death.detail}" if self.death and self.death.detail else ""
        hint = "; resume it first" if self.state is SandboxState.PAUSED else ""
        return NodeError(
            ErrorCode.SANDBOX_NOT_RUNNING,
            f"sandbox {self.id} is {self.state}{detail}{hint}",
            state=self.state,
            reason=self.death.reason if self.death else None,
        )

    def inventory_item(self, live_execs: int) -> InventoryItem:
        """Return the sandbox as a heartbeat lists it."""
        order, death = self.order, self.death
        return InventoryItem(
            sandbox_id=order.sandbox_id,
            generation=order.generation,
            operation_id=order.operation_id,
            spec_hash=order.spec_hash,
            state=self.state,
            reason=death.reason if death else None,
            detail=death.detail if death else None,
            exit_code=death.exit_code if death else None,
            runtime=self.runtime,
            isolation=self.isolation,
            image_digest=self.image_digest,
            shape=order.spec.shape,
            live_execs=live_execs,
            started_at=self.started_at,
            ended_at=death.ended_at if death else None,
        )


def _end_state(death: Death | None) -> SandboxState:
    """Return ``exited`` when the first process ended by itself, else ``failed``."""
    by_itself = death is not None and death.reason is DeathReason.EXITED
    return SandboxState.EXITED if by_itself else SandboxState.FAILED


T = TypeVar("T")


@dataclass(eq=False)
class Entry:
    """The mutable place of one incarnation.  Guarded by the table's lock.

    Attributes:
        created: done when the create is over; fails with a `NodeError`.
        deleted: set by the first delete, and done when the engine has nothing of the sandbox any more.
        ended: set once no process of this incarnation runs.
        busy: held around engine calls on this id; a new generation takes it over.
        gate: keeps pauses and the calls that need its processes apart.
    """

    sandbox: NodeSandbox
    created: "Future[NodeSandbox]" = field(default_factory=Future)
    deleted: "Future[None] | None" = None
    ended: threading.Event = field(default_factory=threading.Event)
    busy: threading.Lock = field(default_factory=threading.Lock)
    gate: PauseGate = field(default_factory=PauseGate)

    @property
    def id(self) -> str:
        return self.sandbox.id

    @property
    def generation(self) -> int:
        return self.sandbox.generation

    @property
    def was_deleted(self) -> bool:
        """Whether its delete came to its end without a failure."""
        return self.deleted is not None and self.deleted.done() and self.deleted.exception() is None

    def attach(self, order: Order) -> "Future[NodeSandbox]":
        """Return what became, or will become, of an order for this generation.

        Raises:
            NodeError: ``CONFLICT`` where it is another order, or the sandbox is deleted.
        """
        if self.sandbox.order.spec_hash != order.spec_hash:
            raise NodeError(
                ErrorCode.CONFLICT, f"sandbox {self.id} is here in generation {self.generation} with another spec"
            )
        if self.deleted is not None:
            raise self.overtaken_error()
        if self.created.done() and self.created.exception() is None:
            return done(self.sandbox)  # as it stands now, not as it was when it was created
        return self.created

    def overtaken_error(self) -> NodeError:
        """Return the answer to a create that a delete or a newer generation broke."""
        return NodeError(
            ErrorCode.CONFLICT,
            f"sandbox {self.id}, generation {self.generation}, was deleted or replaced while it was being created",
        )


class SandboxTable:
    """One entry for each sandbox id: its newest incarnation."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._by_id: dict[str, Entry] = {}

    # -- reading ------------------------------------------------------------------------------------------------------

    def sandboxes(self) -> list[NodeSandbox]:
        """Return all, as they stand at this moment."""
        with self.lock:
            return [entry.sandbox for entry in self._by_id.values()]

    def held(self, *, without: Entry | None = None) -> Shape:
        """Return what the sandboxes that are here hold, all but one."""
        with self.lock:
            shapes = (
                entry.sandbox.order.spec.shape
                for entry in self._by_id.values()
                if entry is not without and entry.sandbox.state in HOLDING
            )
            return sum(shapes, start=Shape())

    def held_gpus(self, *, without: Entry | None = None) -> list[str]:
        """Return the names of the devices that the sandboxes hold that are here, all but one."""
        with self.lock:
            orders = [
                entry.sandbox.order
                for entry in self._by_id.values()
                if entry is not without and entry.sandbox.state in HOLDING
            ]
            return [name for order in orders for name in order.gpus]

    def coming_disk_mb(self) -> int:
        """Return the MiB of disk of the sandboxes that are being created, which may not be set aside yet."""
        with self.lock:
            sandboxes = (entry.sandbox for entry in self._by_id.values())
            return sum(one.order.spec.disk_mb for one in sandboxes if one.state is SandboxState.CREATING)

    def get(self, sandbox_id: str) -> Entry | None:
        """Return the entry, whatever its generation."""
        with self.lock:
            return self._by_id.get(sandbox_id)

    def is_newest(self, entry: Entry) -> bool:
        """Return whether this very incarnation is the one in the table."""
        return self.get(entry.id) is entry

    def fenced(self, sandbox_id: str, generation: int | None) -> Entry | None:
        """Return the entry in this or an older generation (``None``: in any).

        Raises:
            NodeError: ``CONFLICT`` where a newer generation is here.
        """
        entry = self.get(sandbox_id)
        if entry is not None and generation is not None and entry.generation > generation:
            raise NodeError(
                ErrorCode.CONFLICT,
                f"sandbox {entry.id} is here in generation {entry.generation}; generation {generation} is outdated",
                state=entry.sandbox.state,
            )
        return entry

    def find(self, sandbox_id: str, generation: int | None) -> Entry:
        """Return the entry in exactly that generation (``None``: in any).

        Raises:
            NodeError: ``SANDBOX_NOT_FOUND``, or ``CONFLICT`` where a newer generation is here.
        """
        entry = self.fenced(sandbox_id, generation)
        if entry is None or (generation is not None and entry.generation < generation):
            wanted = "" if generation is None else f" in generation {generation}"
            raise NodeError(ErrorCode.SANDBOX_NOT_FOUND, f"sandbox {sandbox_id} is not on this node{wanted}")
        return entry

    def settled(self, sandbox_id: str, generation: int | None) -> Entry:
        """Return the entry as `find` does, once its create is over.

        Raises:
            NodeError: as `find`; ``CREATE_IN_PROGRESS``.
        """
        entry = self.find(sandbox_id, generation)
        if entry.sandbox.state is SandboxState.CREATING:
            raise NodeError(ErrorCode.CREATE_IN_PROGRESS, f"sandbox {sandbox_id} is still being created")
        return entry

    # -- changing -----------------------------------------------------------------------------------------------------

    def put(self, entry: Entry) -> None:
        """Put the entry in the place of an older incarnation."""
        with self.lock:
            self._by_id[entry.id] = entry

    def remove(self, entry: Entry) -> None:
        """Remove the entry, unless a newer one has its place."""
        with self.lock:
            if self.is_newest(entry):
                del self._by_id[entry.id]


def done(result: T) -> "Future[T]":
    """Return a future that has this result already."""
    future: Future[T] = Future()
    future.set_result(result)
    return future
