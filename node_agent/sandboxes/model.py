"""One sandbox as the agent sees it: a frozen value, and how it moves."""

from dataclasses import dataclass, replace
from datetime import datetime

from gateway.wire.nodes import InventoryItem
from gateway.wire.sandboxes import Isolation, RuntimeName
from gateway.wire.states import LIVE, SANDBOX_TRANSITIONS, DeathReason, SandboxState, next_state
from node_agent.runtime.base import Death, EngineState, Found, Order

HOLDING = LIVE | {SandboxState.DELETING}
"""States in which a sandbox counts against the node's resources."""

ENGINE_STATES = {
    EngineState.CREATING: SandboxState.CREATING,
    EngineState.RUNNING: SandboxState.RUNNING,
    EngineState.PAUSED: SandboxState.PAUSED,
    EngineState.CHECKPOINTED: SandboxState.CHECKPOINTED,
}


@dataclass(frozen=True)
class Sandbox:
    """What is known of one incarnation."""

    order: Order
    runtime: RuntimeName
    state: SandboxState
    isolation: Isolation
    image_digest: str | None = None
    started_at: datetime | None = None
    death: Death | None = None


def ordered(order: Order, runtime: RuntimeName) -> Sandbox:
    """A sandbox at the moment in which its order is accepted."""
    return Sandbox(order, runtime, SandboxState.CREATING, order.spec.isolation)


def adopted(found: Found, runtime: RuntimeName) -> Sandbox:
    """A sandbox as an engine has it after a restart of the agent."""
    base = Sandbox(
        found.order, runtime, SandboxState.RUNNING, found.isolation, found.image_digest, found.started_at, found.death
    )
    if found.state is EngineState.DEAD:
        return replace(base, state=end_state(found.death))
    return replace(base, state=ENGINE_STATES[found.state])


def end_state(death: Death | None) -> SandboxState:
    """``exited`` when the first process ended by itself, ``failed`` otherwise."""
    by_itself = death is not None and death.reason is DeathReason.EXITED
    return SandboxState.EXITED if by_itself else SandboxState.FAILED


def moved(sandbox: Sandbox, state: SandboxState) -> Sandbox:
    """The sandbox in another state, as far as the table allows it."""
    return replace(sandbox, state=next_state(SANDBOX_TRANSITIONS, sandbox.state, state))


def started(sandbox: Sandbox, found: Found) -> Sandbox:
    """The sandbox once its create came back from the engine."""
    running = moved(sandbox, SandboxState.RUNNING)
    return replace(
        running, isolation=found.isolation, image_digest=found.image_digest, started_at=found.started_at, death=None
    )


def died(sandbox: Sandbox, death: Death) -> Sandbox:
    """The sandbox once its first process is gone."""
    return replace(moved(sandbox, end_state(death)), death=death)


def inventory_item(sandbox: Sandbox, live_execs: int) -> InventoryItem:
    """The sandbox as the heartbeat tells it."""
    order, death = sandbox.order, sandbox.death
    return InventoryItem(
        sandbox_id=order.sandbox_id,
        generation=order.generation,
        operation_id=order.operation_id,
        spec_hash=order.spec_hash,
        state=sandbox.state,
        reason=death.reason if death else None,
        detail=death.detail if death else None,
        exit_code=death.exit_code if death else None,
        runtime=sandbox.runtime,
        isolation=sandbox.isolation,
        image_digest=sandbox.image_digest,
        shape=order.spec.shape,
        live_execs=live_execs,
        started_at=sandbox.started_at,
        ended_at=death.ended_at if death else None,
    )
