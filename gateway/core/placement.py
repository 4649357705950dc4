"""Where a sandbox goes: a pure function over all nodes.

Best fit: of the nodes with room, the one that would have the smallest share of its resources left; that keeps large
holes open for large sandboxes, and GPU nodes for GPU work.  Ties go to the smaller node id, so the answer depends on
the arguments alone.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gateway.core.model import Node, Sandbox
from gateway.wire.capacity import PoolCeiling
from gateway.wire.resources import Shape
from gateway.wire.sandboxes import Isolation, RuntimeName
from gateway.wire.states import NodeState

RESOURCES = ("cpus", "memory_mb", "disk_mb", "gpus", "slots")
LIVE_NODES = frozenset({NodeState.READY, NodeState.DRAINING, NodeState.UNREACHABLE})
PREFERENCE: tuple[RuntimeName, ...] = ("runsc", "docker")
"""Runtimes from the most to the least preferred, where the spec leaves the choice."""


@dataclass(frozen=True)
class Wanted:
    """What one sandbox needs of a node."""

    shape: Shape
    runtime: RuntimeName | None = None
    isolation: Isolation = "gvisor"
    all_gpus: bool = False
    """Needs every GPU of its node, and at least one."""
    avoid: frozenset[str] = frozenset()
    """Nodes that refused it since they were last heard of."""

    @classmethod
    def of(cls, sandbox: Sandbox, avoid: frozenset[str] = frozenset()) -> "Wanted":
        """What this sandbox needs."""
        spec = sandbox.spec
        return cls(spec.shape, spec.chosen_runtime, spec.isolation, spec.gpus == "all", avoid)


@dataclass(frozen=True)
class NodeRoom:
    """A node and what is taken of it."""

    node: Node
    reserved: Shape

    @property
    def free(self) -> Shape:
        """What is left."""
        return self.node.total.minus(self.reserved)


@dataclass(frozen=True)
class Placed:
    """It goes to this node, under this runtime, and takes this many of its GPUs."""

    node_id: str
    runtime: RuntimeName
    gpus: int


@dataclass(frozen=True)
class NoRoom:
    """It has to wait.  One sentence a node; empty when there is no node."""

    reasons: tuple[str, ...]


@dataclass(frozen=True)
class NeverFits:
    """No live node and no pool could ever hold it.  ``maximum`` is the total of the one that comes closest."""

    reasons: tuple[str, ...]
    maximum: Shape


Placement = Placed | NoRoom | NeverFits


def place(wanted: Wanted, nodes: Iterable[NodeRoom], ceilings: Sequence[PoolCeiling] = ()) -> Placement:
    """The node for ``wanted``, or why there is none.

    A shape never fits when it is above the total of every live node and above every pool's ceiling.  While neither
    nodes nor ceilings are known it has to wait, since nothing is known about what could be had.
    """
    rooms = sorted((room for room in nodes if room.node.state in LIVE_NODES), key=lambda room: room.node.id)
    judged = [(room, _judge(wanted, room)) for room in rooms]
    fitting = [(room, found) for room, found in judged if isinstance(found, Placed)]
    if fitting:
        # `min` takes the first of equals, and rooms are sorted by id.
        return min(fitting, key=lambda pair: _left(wanted, pair[0]))[1]
    reasons = tuple(f"node {room.node.id}: {found}" for room, found in judged if isinstance(found, str))
    return _never(wanted, rooms, ceilings) or NoRoom(reasons)


def place_all(
    waiting: Sequence[tuple[str, Wanted]], nodes: Iterable[NodeRoom], ceilings: Sequence[PoolCeiling] = ()
) -> dict[str, Placement]:
    """Places ``(id, wanted)`` in the given order, each with what the ones before it left.

    Equal needs are judged once when they find no room: room only shrinks on the way.
    """
    rooms = {room.node.id: room for room in nodes}
    refused: dict[Wanted, Placement] = {}
    answers: dict[str, Placement] = {}
    for sandbox_id, wanted in waiting:
        answer = refused.get(wanted) or place(wanted, rooms.values(), ceilings)
        answers[sandbox_id] = answer
        if isinstance(answer, Placed):
            room = rooms[answer.node_id]
            taken = wanted.shape.model_copy(update={"gpus": answer.gpus})
            rooms[answer.node_id] = NodeRoom(room.node, room.reserved + taken)
        else:
            refused[wanted] = answer
    return answers


def runtime_for(wanted: Wanted, node: Node) -> RuntimeName | None:
    """The preferred runtime of ``node`` that can hold ``wanted``."""
    able = {
        report.name
        for report in node.runtimes
        if wanted.isolation in report.isolations
        and wanted.runtime in {None, report.name}
        and (report.gpus or not _wants_gpus(wanted))
    }
    return next((name for name in PREFERENCE if name in able), None)


def _wants_gpus(wanted: Wanted) -> bool:
    return wanted.all_gpus or wanted.shape.gpus > 0


def _judge(wanted: Wanted, room: NodeRoom) -> Placed | str:
    """The placement on this node, or why not."""
    node = room.node
    runtime = runtime_for(wanted, node)
    short = wanted.shape.shortfalls(room.free)
    if node.state is not NodeState.READY:
        return f"is {node.state}"
    if node.heartbeat_at is None:
        return "has not reported yet"
    if node.id in wanted.avoid:
        return "refused it just now"
    if runtime is None:
        return f"has no {wanted.runtime or 'runtime'} with isolation {wanted.isolation}" + (
            " and GPUs" if _wants_gpus(wanted) else ""
        )
    if short:
        return "has too little free: " + _compare(short, wanted.shape, room.free)
    if wanted.all_gpus and room.reserved.gpus:
        return "has GPUs in use, and all of them are asked for"
    return Placed(node.id, runtime, node.total.gpus if wanted.all_gpus else wanted.shape.gpus)


def _left(wanted: Wanted, room: NodeRoom) -> float:
    """Sum over the node's resources of the share that would be left; the smallest is the best fit."""
    left = room.free.minus(wanted.shape)
    shares = ((getattr(left, name), getattr(room.node.total, name)) for name in RESOURCES)
    return float(sum(rest / total for rest, total in shares if total))


def _never(wanted: Wanted, rooms: Sequence[NodeRoom], ceilings: Sequence[PoolCeiling]) -> NeverFits | None:
    """Why it can never fit; ``None`` when it may one day."""
    growing = [ceiling for ceiling in ceilings if ceiling.max_nodes > 0]
    if not rooms and not growing:
        return None
    reasons: list[str] = []
    for room in rooms:
        short = wanted.shape.shortfalls(room.node.total)
        if not short and runtime_for(wanted, room.node):
            return None
        reasons.append(f"node {room.node.id}: " + _why_never(wanted, short, room.node.total))
    for ceiling in growing:
        short = wanted.shape.shortfalls(ceiling.shape)
        if not short and _pool_runs(wanted, ceiling):
            return None
        reasons.append(f"pool {ceiling.pool}: " + _why_never(wanted, short, ceiling.shape))
    totals = [room.node.total for room in rooms] + [ceiling.shape for ceiling in growing]
    return NeverFits(tuple(reasons), min(totals, key=lambda total: _distance(wanted.shape, total)))


def _pool_runs(wanted: Wanted, ceiling: PoolCeiling) -> bool:
    needed = wanted.runtime or ("docker" if _wants_gpus(wanted) else None)
    return wanted.isolation in ceiling.isolations and (needed is None or needed in ceiling.runtimes)


def _why_never(wanted: Wanted, short: list[str], total: Shape) -> str:
    if short:
        return "is too small: " + _compare(short, wanted.shape, total)
    return f"does not run {wanted.runtime or 'sandboxes'} with isolation {wanted.isolation}"


def _compare(names: list[str], wanted: Shape, there: Shape) -> str:
    return ", ".join(f"{name} {getattr(there, name):g} of {getattr(wanted, name):g}" for name in names)


def _distance(wanted: Shape, total: Shape) -> tuple[int, float, float, float]:
    return (len(wanted.shortfalls(total)), -total.gpus, -total.memory_mb, -total.cpus)
