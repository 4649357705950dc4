"""Which sandboxes find room where: first fit, the largest first, all resources at once.

Equal shapes are one group.  For each of a few amounts of each resource, one whole number has a bit for every bin that
has so much; the bins that fit a group are the common bits.  So the work grows with the groups and the bins, and hardly
with one times the other.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from autoscaler.core.world import DemandItem
from gateway.wire.resources import Shape

Vector = tuple[float, float, float, float, float]
"""cpus, memory, disk, gpus, slots."""
NOTHING: Final[Vector] = (0.0, 0.0, 0.0, 0.0, 0.0)
SLACK: Final = 1e-6
"""Fractions of cores add up with rounding error."""
_BEYOND: Final = 1e300
"""The share that anything takes of a resource that no bin has."""
LEVELS: Final = 64
"""Most amounts of a resource that are indexed.  Where there are more, the amount below decides, and the bins that it
leads to are looked at one by one."""


def vector(shape: Shape) -> Vector:
    """Return a shape as plain numbers."""
    return (shape.cpus, shape.memory_mb, shape.disk_mb, shape.gpus, shape.slots)


def fits(need: Vector, free: Vector) -> bool:
    """Return whether ``free`` has enough of everything."""
    return (
        need[0] <= free[0] + SLACK
        and need[1] <= free[1]
        and need[2] <= free[2]
        and need[3] <= free[3]
        and need[4] <= free[4]
    )


@dataclass(slots=True)
class Bin:
    """Room of one node, there already or to be.  Packing takes from ``free``."""

    name: str
    free: Vector
    runtimes: frozenset[str]
    isolations: frozenset[str]
    pool: str = ""
    taken: int = 0
    """How many were put into it."""

    @property
    def used(self) -> bool:
        """Whether something was put into it."""
        return self.taken > 0

    def welcomes(self, item: DemandItem) -> bool:
        """Return whether its engines can run the item, whatever room there is."""
        return (
            item.isolation in self.isolations
            and (item.runtime is None or item.runtime in self.runtimes)
            and item.pool in (None, self.pool)
        )

    def put(self, need: Vector, most: int) -> int:
        """Put in as many of ``most`` as fit, and return how many that were."""
        free = self.free
        count = most
        for want, have in zip(need, free, strict=True):
            # The least of what is wanted may be so small that the quotient has no whole number.
            if want > 0 and (room := (have + SLACK) / want) < count:
                count = math.floor(room)
        if count <= 0:
            return 0
        self.free = (
            max(0.0, free[0] - count * need[0]),
            max(0.0, free[1] - count * need[1]),
            max(0.0, free[2] - count * need[2]),
            max(0.0, free[3] - count * need[3]),
            max(0.0, free[4] - count * need[4]),
        )
        self.taken += count
        return count


@dataclass(slots=True)
class Group:
    """Equal sandboxes."""

    item: DemandItem
    need: Vector
    count: int


def grouped(waiting: Iterable[DemandItem]) -> list[Group]:
    """Gather equal sandboxes."""
    found: dict[tuple[object, ...], Group] = {}
    for item in waiting:
        need = vector(item.shape)
        key = (need, item.runtime, item.isolation, item.pool)
        if (group := found.get(key)) is None:
            found[key] = Group(item, need, item.count)
        else:
            group.count += item.count
    return list(found.values())


def largest_first(groups: Iterable[Group], largest: Vector) -> list[Group]:
    """Sort by the greatest share that each takes of any resource of the largest bin; those with gpus come first."""
    cpus, memory, disk, gpus, slots = (1 / have if have > SLACK else _BEYOND for have in largest)

    def dominant(group: Group) -> tuple[bool, float, Vector]:
        need = group.need
        shares = (need[0] * cpus, need[1] * memory, need[2] * disk, need[3] * gpus, need[4] * slots)
        return need[3] > 0, max(shares), need

    return sorted(groups, key=dominant, reverse=True)


def largest(bins: Iterable[Vector]) -> Vector:
    """Return the most of each resource that any of them has."""
    found = NOTHING
    for each in bins:
        found = _most(found, each)
    return found


def pack(groups: Sequence[Group], bins: Sequence[Bin]) -> list[Group]:
    """Put what fits into the first bin that takes it, and return what found no room, in the same order.

    Bins of one kind are filled together, those with gpus last, so that they stay free for what needs them.
    """
    if not bins or not groups:
        return list(groups)
    row = _Row(_in_order(bins), [group.need for group in groups])
    left: list[Group] = []
    for group in groups:
        places = row.places(group)
        rest = row.fill(group, places) if places else group.count
        if rest == group.count:
            left.append(group)
        elif rest:
            left.append(Group(group.item, group.need, rest))
    return left


def items(groups: Iterable[Group]) -> list[DemandItem]:
    """Return groups as items again."""
    return [replace(group.item, count=group.count) for group in groups]


class _Row:
    """Bins in the order in which they are tried."""

    def __init__(self, bins: Sequence[Bin], needs: Sequence[Vector]) -> None:
        self._bins = bins
        self._welcomes: dict[tuple[object, ...], int] = {}
        wanted = zip(*needs, strict=True)
        haves = zip(*(each.free for each in bins), strict=True)
        self._scales = [
            (resource, _Scale(sorted(set(wants)), have))
            for resource, (wants, have) in enumerate(zip(wanted, haves, strict=True))
            if any(wants)
        ]
        self._tables = [(resource, scale.levels, scale.bits) for resource, scale in self._scales]

    def places(self, group: Group) -> int:
        """Return the bins that may fit one, as bits; those whose bits are not set surely do not."""
        item, need = group.item, group.need
        places = self._welcomes.get((item.runtime, item.isolation, item.pool))
        if places is None:
            places = self._welcoming(item)
        for resource, levels, bits in self._tables:
            places &= bits[bisect_right(levels, need[resource])]
            if not places:
                break
        return places

    def fill(self, group: Group, places: int) -> int:
        """Put as many as fit into the bins of these bits, and return how many are left."""
        need, count = group.need, group.count
        while places and count:
            place = (places & -places).bit_length() - 1
            places &= places - 1
            if fits(need, self._bins[place].free):
                count -= self._bins[place].put(need, count)
                for resource, scale in self._scales:
                    scale.lower(place, self._bins[place].free[resource])
        return count

    def _welcoming(self, item: DemandItem) -> int:
        places = sum(1 << place for place, each in enumerate(self._bins) if each.welcomes(item))
        self._welcomes[item.runtime, item.isolation, item.pool] = places
        return places


class _Scale:
    """Which bins have how much of one resource.

    Attributes:
        levels: amounts, ascending, the least that is wanted first.
        bits: at each number of levels, the bins that reach so many of them.
    """

    def __init__(self, wanted: Sequence[float], haves: Sequence[float]) -> None:
        step = -(-len(wanted) // LEVELS)
        self.levels = wanted[::step]
        self.bits = [0] * (len(self.levels) + 1)
        self._reached = [bisect_right(self.levels, have + SLACK) for have in haves]
        for place, reached in enumerate(self._reached):
            self.bits[reached] |= 1 << place
        for level in range(len(self.levels), 0, -1):
            self.bits[level - 1] |= self.bits[level]

    def lower(self, place: int, have: float) -> None:
        """Record that a bin has less than before."""
        reached = bisect_right(self.levels, have + SLACK)
        for level in range(reached + 1, self._reached[place] + 1):
            self.bits[level] &= ~(1 << place)
        self._reached[place] = reached


def _in_order(bins: Sequence[Bin]) -> list[Bin]:
    kinds: dict[tuple[object, ...], list[Bin]] = {}
    for each in bins:
        kinds.setdefault((each.free[3] > 0, each.runtimes, each.isolations, each.pool), []).append(each)
    ordered = sorted(kinds.items(), key=lambda kind: bool(kind[0][0]))
    return [each for _, members in ordered for each in members]


def _most(a: Vector, b: Vector) -> Vector:
    return (
        a[0] if a[0] >= b[0] else b[0],
        a[1] if a[1] >= b[1] else b[1],
        a[2] if a[2] >= b[2] else b[2],
        a[3] if a[3] >= b[3] else b[3],
        a[4] if a[4] >= b[4] else b[4],
    )
