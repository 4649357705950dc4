"""Placing many sandboxes one after the other: the answers of `gateway.core.placement.place`, for less work.

Equal needs share one ranking of the nodes. It is made once, and after each placement only the node that was taken
from is ranked anew; so the work grows with what is placed and with the kinds of needs, not with all that wait.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gateway.core.placement import NodeRoom, Placed, Placement, Rank, Wanted, eligible, fit, place, placed_on
from gateway.wire.capacity import PoolCeiling


@dataclass
class _Ranking:
    """Nodes for one need, the best fit at the top; entries of nodes that changed meanwhile may be outdated."""

    heap: list[tuple[Rank, int]]
    changes: int
    """How many changes of rooms it has taken in."""


class Batch:
    """Nodes, and what the placements so far have left of them."""

    def __init__(self, nodes: Iterable[NodeRoom], ceilings: Sequence[PoolCeiling] = ()) -> None:
        self._rooms = eligible(nodes)
        self._ceilings = ceilings
        self._changes: list[int] = []
        self._rankings: dict[Wanted, _Ranking] = {}
        self._refused: dict[Wanted, Placement] = {}

    def judge(self, wanted: Wanted) -> Placement:
        """Where it would go now."""
        refused = self._refused.get(wanted)
        if refused is not None:
            return refused
        best = self._best(wanted)
        if best is not None:
            return placed_on(wanted, self._rooms[best].node)
        # Room only shrinks on the way, so the refusal holds for all that need the same.
        self._refused[wanted] = answer = place(wanted, self._rooms, self._ceilings)
        return answer

    def place(self, wanted: Wanted) -> Placement:
        """Where it goes; its room is taken."""
        answer = self.judge(wanted)
        if isinstance(answer, Placed):
            best = self._best(wanted)
            assert best is not None  # noqa: S101 - narrows for the type checker; it was just found
            room = self._rooms[best]
            taken = wanted.shape.model_copy(update={"gpus": answer.gpus})
            self._rooms[best] = NodeRoom(room.node, room.reserved + taken)
            self._changes.append(best)
        return answer

    def _best(self, wanted: Wanted) -> int | None:
        """Index of the best fit; of equals the first, and rooms are sorted by id."""
        ranking = self._rankings.get(wanted)
        if ranking is None:
            ranking = self._rankings[wanted] = _Ranking([], len(self._changes))
            self._rank(wanted, ranking, range(len(self._rooms)))
        self._rank(wanted, ranking, self._changes[ranking.changes :])
        ranking.changes = len(self._changes)
        while ranking.heap:
            rank, index = ranking.heap[0]
            if fit(wanted, self._rooms[index]) == rank:
                return index
            heapq.heappop(ranking.heap)
        return None

    def _rank(self, wanted: Wanted, ranking: _Ranking, indexes: Iterable[int]) -> None:
        for index in indexes:
            rank = fit(wanted, self._rooms[index])
            if rank is not None:
                heapq.heappush(ranking.heap, (rank, index))


def place_all(
    waiting: Iterable[tuple[str, Wanted]], nodes: Iterable[NodeRoom], ceilings: Sequence[PoolCeiling] = ()
) -> dict[str, Placement]:
    """Places ``(id, wanted)`` in the given order, each with what the ones before it left."""
    batch = Batch(nodes, ceilings)
    return {sandbox_id: batch.place(wanted) for sandbox_id, wanted in waiting}
