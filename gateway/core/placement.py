"""Decide on which node a sandbox goes: pure functions over all nodes.

Best fit: of the nodes with room, the one that would have the smallest share of its resources left; that keeps large
holes open for large sandboxes. A node with GPUs takes other work only where no other node has room: what runs there
holds the dear machine after its GPU work has ended. Ties go to the smaller node id, so the answer depends on the
arguments alone.

`place` decides for one sandbox, `PlacementBatch` for many in turn with the same answers.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Final

from gateway.core.model import Node, Sandbox
from gateway.wire.capacity import PoolCeiling
from gateway.wire.resources import ALL_GPUS, Shape
from gateway.wire.sandboxes import Isolation, RuntimeName
from gateway.wire.states import NodeState, WaitReason

RESOURCES: Final = ("cpus", "memory_mb", "disk_mb", "gpus", "slots")
LIVE_NODES: Final = frozenset({NodeState.READY, NodeState.DRAINING, NodeState.UNREACHABLE})
MAX_REASONS: Final = 20
"""Nodes and pools named in one refusal; a last sentence counts the others."""
SHOWN_REASONS: Final = 3
"""Of these in one sentence."""
PREFERENCE: Final[tuple[RuntimeName, ...]] = ("runsc", "docker")
"""Runtimes from the most to the least preferred, where the spec leaves the choice."""

Rank = tuple[bool, float]
"""How well a node fits, the smallest best: whether it has GPUs that nobody asked for, and the share left of it."""


@dataclass(frozen=True)
class Requirements:
    """What one sandbox needs of a node."""

    shape: Shape
    runtime: RuntimeName | None = None
    isolation: Isolation = "gvisor"
    all_gpus: bool = False
    """Needs every GPU of its node, and at least one."""
    avoid: frozenset[str] = frozenset()
    """Nodes that refused the sandbox since their last heartbeat."""

    @classmethod
    def of(cls, sandbox: Sandbox, avoid: frozenset[str] = frozenset()) -> "Requirements":
        """Return the requirements of ``sandbox``."""
        spec = sandbox.spec
        return cls(spec.shape, spec.chosen_runtime, spec.isolation, spec.gpus == ALL_GPUS, avoid)

    @property
    def wants_gpus(self) -> bool:
        """Whether only a node with GPUs will do."""
        return self.all_gpus or self.shape.gpus > 0

    @cached_property
    def amounts(self) -> tuple[float, ...]:
        """The shape as plain numbers, in the order of `RESOURCES`."""
        return tuple(getattr(self.shape, name) for name in RESOURCES)

    @cached_property
    def key(self) -> str:
        """One text for all sandboxes with equal requirements, whichever nodes refused them."""
        amounts = "/".join(f"{amount:.12g}" for amount in self.amounts)
        return f"{amounts}/{self.runtime or 'any'}/{self.isolation}{'/all' if self.all_gpus else ''}"


@dataclass(frozen=True)
class NodeRoom:
    """A node and what is reserved of it."""

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
    """The sandbox goes to this node, under this runtime, and takes this many of its GPUs."""

    node_id: str
    runtime: RuntimeName
    gpus: int


@dataclass(frozen=True)
class NoRoom:
    """The sandbox has to wait. One sentence a node, `MAX_REASONS` at most; empty when there is no node."""

    reasons: tuple[str, ...]
    why: WaitReason
    waits_for: str
    """What would have to come, as the end of a sentence."""

    @property
    def sentence(self) -> str:
        """Why the sandbox waits, for people."""
        more = f"; and {len(self.reasons) - SHOWN_REASONS} more" if len(self.reasons) > SHOWN_REASONS else ""
        known = f": {'; '.join(self.reasons[:SHOWN_REASONS])}{more}" if self.reasons else ""
        return f"it waits for {self.waits_for}{known}"


@dataclass(frozen=True)
class NeverFits:
    """No live node and no pool could ever hold the sandbox. ``maximum`` is the total of the one that comes closest."""

    reasons: tuple[str, ...]
    maximum: Shape


Placement = Placed | NoRoom | NeverFits


def place(needs: Requirements, nodes: Iterable[NodeRoom], ceilings: Sequence[PoolCeiling] = ()) -> Placement:
    """Return the node for ``needs``, or why there is none.

    A shape never fits when it is above the total of every live node and above every pool's ceiling. While neither
    nodes nor ceilings are known it has to wait, since nothing is known about what could be bought.
    """
    rooms = _eligible(nodes)
    # `min` takes the first of equals, and rooms are sorted by id.
    fitting = [(rank, room) for room in rooms if (rank := fit(needs, room)) is not None]
    if not fitting:
        return _refuse(needs, rooms, ceilings)
    return _placed_on(needs, min(fitting, key=lambda pair: pair[0])[1].node)


@dataclass
class _Ranking:
    """Nodes by how well they fit one kind of requirements, best on top; entries of nodes that changed may be stale."""

    heap: list[tuple[Rank, int]]
    changes: int
    """How many changes of rooms it has taken in."""


class PlacementBatch:
    """Places many sandboxes one after the other, each with what the ones before it left.

    Equal requirements share one ranking of the nodes. It is made once, and after each placement only the node that was
    taken from is ranked again; so the work grows with what is placed and with the kinds of requirements, not with all
    that wait.
    """

    def __init__(self, nodes: Iterable[NodeRoom], ceilings: Sequence[PoolCeiling] = ()) -> None:
        self._rooms = _eligible(nodes)
        self._ceilings = ceilings
        self._changes: list[int] = []
        self._rankings: dict[Requirements, _Ranking] = {}
        self._refused: dict[Requirements, Placement] = {}

    def judge(self, needs: Requirements) -> Placement:
        """Return where a sandbox would go now, without taking the room."""
        refused = self._refused.get(needs)
        if refused is not None:
            return refused
        best = self._best(needs)
        if best is not None:
            return _placed_on(needs, self._rooms[best].node)
        # Room only shrinks on the way, so the refusal holds for all with equal requirements.
        self._refused[needs] = answer = _refuse(needs, self._rooms, self._ceilings)
        return answer

    def place(self, needs: Requirements) -> Placement:
        """Return where a sandbox goes, and take its room."""
        answer = self.judge(needs)
        if isinstance(answer, Placed):
            best = self._best(needs)
            assert best is not None  # noqa: S101 - narrows for the type checker; it was just found
            room = self._rooms[best]
            taken = needs.shape.model_copy(update={"gpus": answer.gpus})
            self._rooms[best] = NodeRoom(room.node, room.reserved + taken)
            self._changes.append(best)
        return answer

    def _best(self, needs: Requirements) -> int | None:
        """Return the index of the best fit; of equals the first, and rooms are sorted by id."""
        ranking = self._rankings.get(needs)
        if ranking is None:
            ranking = self._rankings[needs] = _Ranking([], len(self._changes))
            self._rank(needs, ranking, range(len(self._rooms)))
        self._rank(needs, ranking, self._changes[ranking.changes :])
        ranking.changes = len(self._changes)
        while ranking.heap:
            rank, index = ranking.heap[0]
            if fit(needs, self._rooms[index]) == rank:
                return index
            heapq.heappop(ranking.heap)
        return None

    def _rank(self, needs: Requirements, ranking: _Ranking, indexes: Iterable[int]) -> None:
        for index in indexes:
            rank = fit(needs, self._rooms[index])
            if rank is not None:
                heapq.heappush(ranking.heap, (rank, index))


def place_all(
    waiting: Iterable[tuple[str, Requirements]], nodes: Iterable[NodeRoom], ceilings: Sequence[PoolCeiling] = ()
) -> dict[str, Placement]:
    """Place sandboxes, given as id and requirements, in their order; return the answers by id."""
    batch = PlacementBatch(nodes, ceilings)
    return {sandbox_id: batch.place(needs) for sandbox_id, needs in waiting}


# -- does it fit ------------------------------------------------------------------------------------------------------


def fit(needs: Requirements, room: NodeRoom) -> Rank | None:
    """Return how well the sandbox would fit there, or ``None`` when it cannot go there now."""
    left = _left(needs.amounts, room)
    if left is None or _unavailable(needs, room) is not None:
        return None
    return (room.node.total.gpus > 0 and not needs.wants_gpus, left)


def runtime_for(needs: Requirements, node: Node) -> RuntimeName | None:
    """Return the preferred runtime of ``node`` that meets ``needs``."""
    for name in PREFERENCE:
        if needs.runtime in {None, name}:
            for report in node.runtimes:
                able = report.gpus or not needs.wants_gpus
                if report.name == name and needs.isolation in report.isolations and able:
                    return name
    return None


def _eligible(nodes: Iterable[NodeRoom]) -> list[NodeRoom]:
    """Return the nodes on which sandboxes are ever placed, by id."""
    hosts = (room for room in nodes if room.node.state in LIVE_NODES and room.node.hosts_sandboxes)
    return sorted(hosts, key=lambda room: room.node.id)


def _placed_on(needs: Requirements, node: Node) -> Placed:
    runtime = runtime_for(needs, node)
    assert runtime is not None  # noqa: S101 - narrows for the type checker; `fit` has looked
    return Placed(node.id, runtime, node.total.gpus if needs.all_gpus else needs.shape.gpus)


def _left(needed: Sequence[float], room: NodeRoom) -> float | None:
    """Return the sum over the node's resources of the share that would be left, the smallest being the best fit.

    ``None`` when there is too little of one. Agrees with `Shape.shortfalls`, its tolerance included.
    """
    share = 0.0
    for amount, (free, total) in zip(needed, room.amounts, strict=True):
        if amount > free + 1e-6:
            return None
        if total:
            share += (free - amount) / total
    return share


def _unavailable(needs: Requirements, room: NodeRoom) -> str | None:
    """Return why this node is out of the question now, apart from what it has free; ``None`` when it is not."""
    node = room.node
    if node.state is not NodeState.READY:
        return f"is {node.state}"
    if node.heartbeat_at is None:
        return "has not reported yet"
    if node.id in needs.avoid:
        return "refused it just now"
    if runtime_for(needs, node) is None:
        return f"does not run {_engine(needs)}"
    if needs.all_gpus and room.reserved.gpus:
        return "has GPUs in use, and all of them are asked for"
    return None


# -- why it does not --------------------------------------------------------------------------------------------------


def _refuse(needs: Requirements, rooms: Sequence[NodeRoom], ceilings: Sequence[PoolCeiling]) -> NoRoom | NeverFits:
    """Return why ``needs`` fits none of ``rooms``."""
    never = _never(needs, rooms, ceilings)
    if never is not None:
        return never
    reasons = (f"node {room.node.id}: {_unavailable(needs, room) or _too_little(needs, room)}" for room in rooms)
    return NoRoom(_limited(reasons, len(rooms), "nodes"), *_awaited(needs, rooms))


def _awaited(needs: Requirements, rooms: Sequence[NodeRoom]) -> tuple[WaitReason, str]:
    """Return what has to come before ``needs`` can be placed, as a code and for people."""
    if not rooms:
        return WaitReason.NO_NODE, "a node, and there is none yet"
    able = [room for room in rooms if runtime_for(needs, room.node) is not None]
    if not able:
        return WaitReason.NO_ENGINE, f"a node that runs {_engine(needs)}"
    if all(needs.shape.shortfalls(room.node.total) for room in able):
        return WaitReason.TOO_LARGE, "a larger node"
    return WaitReason.NO_ROOM, "room on a node"


def _engine(needs: Requirements) -> str:
    gpus = " and GPUs" if needs.wants_gpus else ""
    return f"{needs.runtime or 'sandboxes'} with isolation {needs.isolation}{gpus}"


def _never(needs: Requirements, rooms: Sequence[NodeRoom], ceilings: Sequence[PoolCeiling]) -> NeverFits | None:
    """Return why ``needs`` can never fit, or ``None`` when it may one day."""
    growing = [ceiling for ceiling in ceilings if ceiling.max_nodes > 0]
    if not rooms and not growing:
        return None
    reasons: list[str] = []
    for room in rooms:
        short = needs.shape.shortfalls(room.node.total)
        if not short and runtime_for(needs, room.node):
            return None
        reasons.append(f"node {room.node.id}: " + _why_never(needs, short, room.node.total))
    for ceiling in growing:
        short = needs.shape.shortfalls(ceiling.shape)
        if not short and _pool_runs(needs, ceiling):
            return None
        reasons.append(f"pool {ceiling.pool}: " + _why_never(needs, short, ceiling.shape))
    totals = [room.node.total for room in rooms] + [ceiling.shape for ceiling in growing]
    closest = min(totals, key=lambda total: _distance(needs.shape, total))
    return NeverFits(_limited(reasons, len(reasons), "nodes and pools"), closest)


def _pool_runs(needs: Requirements, ceiling: PoolCeiling) -> bool:
    runtime = needs.runtime or ("docker" if needs.wants_gpus else None)
    return needs.isolation in ceiling.isolations and (runtime is None or runtime in ceiling.runtimes)


def _too_little(needs: Requirements, room: NodeRoom) -> str:
    return "has too little free: " + _compare(needs.shape.shortfalls(room.free), needs.shape, room.free)


def _why_never(needs: Requirements, short: list[str], total: Shape) -> str:
    if short:
        return "is too small: " + _compare(short, needs.shape, total)
    return f"does not run {_engine(needs)}"


def _limited(reasons: Iterable[str], count: int, of_what: str) -> tuple[str, ...]:
    first = tuple(islice(reasons, MAX_REASONS))
    return first if count <= MAX_REASONS else (*first, f"and {count - MAX_REASONS} more {of_what}")


def _compare(names: list[str], needed: Shape, there: Shape) -> str:
    # Twelve digits: MiB stay whole numbers, and the rounding error of added cores stays out.
    return ", ".join(f"{name} {getattr(there, name):.12g} of {getattr(needed, name):.12g}" for name in names)


def _distance(needed: Shape, total: Shape) -> tuple[int, float, float, float]:
    return (len(needed.shortfalls(total)), -total.gpus, -total.memory_mb, -total.cpus)
