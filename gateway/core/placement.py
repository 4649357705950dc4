"""Where a sandbox goes: a pure function over all nodes.

Best fit: of the nodes with room, the one that would have the smallest share of its resources left; that keeps large
holes open for large sandboxes.  A node with GPUs takes other work only where no other node has room: what runs there
holds the dear machine after its GPU work has ended.  Ties go to the smaller node id, so the answer depends on the
arguments alone.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from gateway.core.model import Node, Sandbox
from gateway.wire.capacity import PoolCeiling
from gateway.wire.resources import Shape
from gateway.wire.sandboxes import Isolation, RuntimeName
from gateway.wire.states import NodeState

RESOURCES = ("cpus", "memory_mb", "disk_mb", "gpus", "slots")
LIVE_NODES = frozenset({NodeState.READY, NodeState.DRAINING, NodeState.UNREACHABLE})
MOST_REASONS = 20
"""Nodes and pools named in one refusal; how many more there are is told in one sentence."""
Rank = tuple[bool, float]
"""How well a node fits, the smallest best: whether it has GPUs that nobody asked for, and the share left of it."""
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

    @cached_property
    def need(self) -> tuple[float, ...]:
        """The shape as plain numbers."""
        return tuple(getattr(self.shape, name) for name in RESOURCES)

    @cached_property
    def key(self) -> str:
        """The same text for all that need the same, whatever refused them."""
        amounts = "/".join(f"{amount:.12g}" for amount in self.need)
        return f"{amounts}/{self.runtime or 'any'}/{self.isolation}{'/all' if self.all_gpus else ''}"

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

    @cached_property
    def amounts(self) -> tuple[tuple[float, float], ...]:
        """Free and total of each resource, as plain numbers: they are compared for every sandbox and node."""
        total, reserved = self.node.total, self.reserved
        return tuple((getattr(total, name) - getattr(reserved, name), getattr(total, name)) for name in RESOURCES)


@dataclass(frozen=True)
class Placed:
    """It goes to this node, under this runtime, and takes this many of its GPUs."""

    node_id: str
    runtime: RuntimeName
    gpus: int


@dataclass(frozen=True)
class NoRoom:
    """It has to wait.  One sentence a node, the first `MOST_REASONS`; empty when there is no node."""

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
    rooms = eligible(nodes)
    # `min` takes the first of equals, and rooms are sorted by id.
    fitting = [(rank, room) for room in rooms if (rank := fit(wanted, room)) is not None]
    if fitting:
        return placed_on(wanted, min(fitting, key=lambda pair: pair[0])[1].node)
    reasons = (f"node {room.node.id}: {_refusal(wanted, room) or _too_little(wanted, room)}" for room in rooms)
    return _never(wanted, rooms, ceilings) or NoRoom(_first(reasons, len(rooms), "nodes"))


def eligible(nodes: Iterable[NodeRoom]) -> list[NodeRoom]:
    """Those where sandboxes are ever placed, by id."""
    return sorted((room for room in nodes if _counts(room.node)), key=lambda room: room.node.id)


def fit(wanted: Wanted, room: NodeRoom) -> Rank | None:
    """How well it would fit there; ``None`` when it cannot go there now."""
    left = _left(wanted.need, room)
    if left is None or _refusal(wanted, room) is not None:
        return None
    return (room.node.total.gpus > 0 and not _wants_gpus(wanted), left)


def placed_on(wanted: Wanted, node: Node) -> Placed:
    """The answer once this node was found to fit."""
    runtime = runtime_for(wanted, node)
    assert runtime is not None  # noqa: S101 - narrows for the type checker; `fit` has looked
    return Placed(node.id, runtime, node.total.gpus if wanted.all_gpus else wanted.shape.gpus)


def _first(reasons: Iterable[str], count: int, of_what: str) -> tuple[str, ...]:
    told = tuple(islice(reasons, MOST_REASONS))
    return told if count <= MOST_REASONS else (*told, f"and {count - MOST_REASONS} more {of_what}")


def _counts(node: Node) -> bool:
    """Whether sandboxes are ever placed there."""
    return node.state in LIVE_NODES and node.hosts_sandboxes


def runtime_for(wanted: Wanted, node: Node) -> RuntimeName | None:
    """The preferred runtime of ``node`` that can hold ``wanted``."""
    gpus = _wants_gpus(wanted)
    for name in PREFERENCE:
        if wanted.runtime in {None, name}:
            for report in node.runtimes:
                if report.name == name and wanted.isolation in report.isolations and (report.gpus or not gpus):
                    return name
    return None


def _wants_gpus(wanted: Wanted) -> bool:
    return wanted.all_gpus or wanted.shape.gpus > 0


def _refusal(wanted: Wanted, room: NodeRoom) -> str | None:
    """Why this node is out of the question now, apart from what it has free; ``None`` when it is not."""
    node = room.node
    if node.state is not NodeState.READY:
        return f"is {node.state}"
    if node.heartbeat_at is None:
        return "has not reported yet"
    if node.id in wanted.avoid:
        return "refused it just now"
    if runtime_for(wanted, node) is None:
        return f"has no {wanted.runtime or 'runtime'} with isolation {wanted.isolation}" + (
            " and GPUs" if _wants_gpus(wanted) else ""
        )
    if wanted.all_gpus and room.reserved.gpus:
        return "has GPUs in use, and all of them are asked for"
    return None


def _too_little(wanted: Wanted, room: NodeRoom) -> str:
    return "has too little free: " + _compare(wanted.shape.shortfalls(room.free), wanted.shape, room.free)


def _left(need: Sequence[float], room: NodeRoom) -> float | None:
    """Sum over the node's resources of the share that would be left, the smallest being the best fit.

    ``None`` when there is too little of one.  Equal to `Shape.shortfalls`, its tolerance included.
    """
    share = 0.0
    for wanted, (free, total) in zip(need, room.amounts, strict=True):
        if wanted > free + 1e-6:
            return None
        if total:
            share += (free - wanted) / total
    return share


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
    return NeverFits(
        _first(reasons, len(reasons), "nodes and pools"), min(totals, key=lambda total: _distance(wanted.shape, total))
    )


def _pool_runs(wanted: Wanted, ceiling: PoolCeiling) -> bool:
    needed = wanted.runtime or ("docker" if _wants_gpus(wanted) else None)
    return wanted.isolation in ceiling.isolations and (needed is None or needed in ceiling.runtimes)


def _why_never(wanted: Wanted, short: list[str], total: Shape) -> str:
    if short:
        return "is too small: " + _compare(short, wanted.shape, total)
    return f"does not run {wanted.runtime or 'sandboxes'} with isolation {wanted.isolation}"


def _compare(names: list[str], wanted: Shape, there: Shape) -> str:
    # Twelve digits: MiB stay whole numbers, and the rounding error of added cores stays out.
    return ", ".join(f"{name} {getattr(there, name):.12g} of {getattr(wanted, name):.12g}" for name in names)


def _distance(wanted: Shape, total: Shape) -> tuple[int, float, float, float]:
    return (len(wanted.shortfalls(total)), -total.gpus, -total.memory_mb, -total.cpus)
