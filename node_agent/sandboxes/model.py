"""One sandbox as the node knows it: a frozen value, and how it moves from state to state."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Self

from gateway.wire.errors import ErrorCode
from gateway.wire.nodes import InventoryItem
from gateway.wire.sandboxes import Isolation, RuntimeName
from gateway.wire.states import LIVE, SANDBOX_TRANSITIONS, DeathReason, SandboxState, next_state
from node_agent.errors import NodeError
from node_agent.runtime.base import Death, EngineState, Found, Order

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
