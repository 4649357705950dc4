"""The gateway's answers as values of the policy."""

from autoscaler.core.model import Node, Waiting
from gateway.wire.capacity import Demand
from gateway.wire.nodes import NodeRecord


def node_of(record: NodeRecord, pressed_for: float = 0.0, pressed_at: float | None = None) -> Node:
    """A node of the gateway, with what its pressure was lately."""
    return Node(
        id=record.id,
        instance=record.instance,
        pool=record.pool,
        state=record.state,
        total=record.total,
        reserved=record.reserved,
        sandboxes=record.sandboxes,
        runtimes=frozenset(runtime.name for runtime in record.runtimes),
        isolations=frozenset(isolation for runtime in record.runtimes for isolation in runtime.isolations),
        heartbeat_at=record.heartbeat_at.timestamp() if record.heartbeat_at is not None else None,
        idle_since=record.idle_since.timestamp() if record.idle_since is not None else None,
        pressed_for=pressed_for,
        pressed_at=pressed_at,
        operation_id=record.operation_id,
    )


def wanted(demand: Demand) -> tuple[tuple[Waiting, ...], int]:
    """What wants room, and how many builder nodes are asked for.  Units that a create has claimed are in neither."""
    waiting = [
        Waiting(item.shape, item.runtime, item.isolation, since=item.since.timestamp()) for item in demand.waiting
    ]
    ahead = [
        Waiting(unit.resources, unit.runtime, unit.isolation, count=unit.count)
        for unit in demand.prepared
        if unit.count > 0
    ]
    return (*waiting, *ahead), demand.prepared_builder_count
