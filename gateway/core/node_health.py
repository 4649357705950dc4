"""Node states: by the age of the last heartbeat, by the operator, by the agent."""

from dataclasses import dataclass, replace
from datetime import datetime

from gateway.core.model import Node
from gateway.wire.nodes import BootStages, Heartbeat
from gateway.wire.states import NODE_TRANSITIONS, NodeState, next_state

N = NodeState


@dataclass(frozen=True)
class Patience:
    """Seconds of silence after which a node is unreachable, and after which it is lost."""

    unreachable_after: float
    lost_after: float


def silent(state: NodeState, age: float, patience: Patience) -> NodeState:
    """The state after ``age`` seconds without heartbeat, on the receiver's monotonic clock; one step at a time."""
    if state in {N.READY, N.DRAINING} and age >= patience.unreachable_after:
        return next_state(NODE_TRANSITIONS, state, N.UNREACHABLE)
    if state is N.UNREACHABLE and age >= patience.lost_after:
        return next_state(NODE_TRANSITIONS, state, N.LOST)
    return state


def next_judgement(state: NodeState, patience: Patience) -> float | None:
    """Age of the last heartbeat at which `silent` next gives another state; ``None`` when it never does."""
    if state in {N.READY, N.DRAINING}:
        return patience.unreachable_after
    return patience.lost_after if state is N.UNREACHABLE else None


def opened(node: Node) -> Node:
    """The node in the state that its heartbeats and both drain flags give it."""
    state = node.open_state
    return node if node.state is state else replace(node, state=next_state(NODE_TRANSITIONS, node.state, state))


def drained(node: Node, draining: bool) -> Node:
    """The operator closed or opened it; a silent node remembers that for when it speaks again."""
    after = replace(node, draining=draining)
    return opened(after) if node.state in {N.READY, N.DRAINING} else after


def is_news(node: Node, beat: Heartbeat) -> bool:
    """Whether the heartbeat is younger than what is known; a repeated or overtaken one is not."""
    return node.boot_id != beat.boot_id or beat.sequence > node.sequence


def heard(node: Node, beat: Heartbeat, now: datetime) -> Node:
    """The node after a heartbeat."""
    return opened(
        replace(
            node,
            node_url=beat.node_url,
            agent_version=beat.agent_version,
            total=beat.total,
            runtimes=tuple(beat.runtimes),
            pressure=beat.pressure,
            agent_draining=beat.draining,
            heartbeat_at=now,
            beats=node.beats + 1,
            boot_id=beat.boot_id,
            sequence=beat.sequence,
            stages=_came_up(node, now),
        )
    )


def _came_up(node: Node, now: datetime) -> BootStages | None:
    """The stages, the first heartbeat among them once it is there."""
    stages = node.stages
    if stages is None or stages.registered is None or stages.heartbeat is not None:
        return stages
    since = max(0.0, (now - node.registered_at).total_seconds())
    return stages.model_copy(update={"heartbeat": stages.registered + since})


def capacity_changed(before: Node, after: Node) -> bool:
    """Whether a waiting sandbox might find room now that found none before."""
    first = before.heartbeat_at is None
    return first or (before.state, before.total, before.runtimes) != (after.state, after.total, after.runtimes)


def in_state(node: Node, state: NodeState) -> Node:
    """The node in another state."""
    return replace(node, state=next_state(NODE_TRANSITIONS, node.state, state))


def rejoined(node: Node, fresh: Node) -> Node:
    """A known node whose instance registers again: what the agent says anew, what the operator decided before."""
    stages = node.stages if node.operation_id == fresh.operation_id and node.stages is not None else fresh.stages
    return opened(
        replace(fresh, id=node.id, version=node.version, state=node.state, draining=node.draining, stages=stages)
    )
