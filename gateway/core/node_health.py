"""Decide the state of a node: by the age of its last heartbeat, by the operator, by its agent."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime

from gateway.core.model import Node
from gateway.wire.nodes import BootStages, Heartbeat
from gateway.wire.states import NODE_TRANSITIONS, NodeState, next_state

N = NodeState


@dataclass(frozen=True)
class HeartbeatLimits:
    """Seconds without heartbeat after which a node is unreachable, and after which it is lost."""

    unreachable_after: float
    lost_after: float


def state_at_age(state: NodeState, age: float, limits: HeartbeatLimits) -> NodeState:
    """Return the state of a node in ``state`` whose last heartbeat is ``age`` seconds old; one step at a time.

    Args:
        state: the state so far.
        age: seconds on the receiver's monotonic clock.
        limits: when a node counts as unreachable and as lost.
    """
    if state in {N.READY, N.DRAINING} and age >= limits.unreachable_after:
        return next_state(NODE_TRANSITIONS, state, N.UNREACHABLE)
    if state is N.UNREACHABLE and age >= limits.lost_after:
        return next_state(NODE_TRANSITIONS, state, N.LOST)
    return state


def next_check(state: NodeState, limits: HeartbeatLimits) -> float | None:
    """Return the age of the last heartbeat at which `state_at_age` next gives another state; ``None`` for never."""
    if state in {N.READY, N.DRAINING}:
        return limits.unreachable_after
    return limits.lost_after if state is N.UNREACHABLE else None


def hears_nobody(silences: Collection[float], limits: HeartbeatLimits) -> bool:
    """Return whether it is the gateway that is cut off: several nodes, and none was heard for long.

    Args:
        silences: for how many seconds each node was silent that is not given up yet.
        limits: when a node counts as unreachable and as lost.
    """
    long = (limits.unreachable_after + limits.lost_after) / 2
    return len(silences) > 1 and min(silences) >= long


def is_news(node: Node, beat: Heartbeat) -> bool:
    """Return whether the heartbeat is younger than what is known; a repeated or overtaken one is not."""
    return node.boot_id != beat.boot_id or beat.sequence > node.sequence


def after_heartbeat(node: Node, beat: Heartbeat, now: datetime) -> Node:
    """Return the node after a heartbeat."""
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
            stages=_with_first_heartbeat(node, now),
        )
    )


def capacity_changed(before: Node, after: Node) -> bool:
    """Return whether a waiting sandbox might find room now that found none before."""
    first = before.heartbeat_at is None
    return first or (before.state, before.total, before.runtimes) != (after.state, after.total, after.runtimes)


def drained(node: Node, draining: bool) -> Node:
    """Close or open a node for the operator; a silent one remembers that for when it reports again."""
    after = replace(node, draining=draining)
    return opened(after) if node.state in {N.READY, N.DRAINING} else after


def in_state(node: Node, state: NodeState) -> Node:
    """Return the node in another state."""
    return replace(node, state=next_state(NODE_TRANSITIONS, node.state, state))


def registered_again(node: Node, fresh: Node) -> Node:
    """Return a known node whose instance registers again.

    What the agent reports is taken from ``fresh``, what the operator decided from ``node``.
    """
    stages = node.stages if node.operation_id == fresh.operation_id and node.stages is not None else fresh.stages
    return opened(
        replace(fresh, id=node.id, version=node.version, state=node.state, draining=node.draining, stages=stages)
    )


def opened(node: Node) -> Node:
    """Return the node in the state that its heartbeats and both drain flags give it."""
    state = node.open_state
    return node if node.state is state else replace(node, state=next_state(NODE_TRANSITIONS, node.state, state))


def _with_first_heartbeat(node: Node, now: datetime) -> BootStages | None:
    """Return the boot stages, with the first heartbeat among them once it is there."""
    stages = node.stages
    if stages is None or stages.registered is None or stages.heartbeat is not None:
        return stages
    since = max(0.0, (now - node.registered_at).total_seconds())
    return stages.model_copy(update={"heartbeat": stages.registered + since})
