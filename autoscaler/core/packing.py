"""Which sandboxes find room where: first fit, the largest first, all resources at once.

Equal shapes are one group, and a tournament tree over the bins leads to the first one that fits, so that the work grows
with the bins that are filled and not with sandboxes times nodes.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from autoscaler.core.rows import Waiting
from gateway.wire.resources import Shape

Vector = tuple[float, float, float, float, float]
"""cpus, memory, disk, gpus, slots."""
NOTHING: Final[Vector] = (0.0, 0.0, 0.0, 0.0, 0.0)
SLACK: Final = 1e-6
"""Fractions of cores add up with rounding error."""


def vector(shape: Shape) -> Vector:
    """A shape as plain numbers."""
    return (shape.cpus, shape.memory_mb, shape.disk_mb, shape.gpus, shape.slots)


def fits(need: Vector, free: Vector) -> bool:
    """Whether ``free`` has enough of everything."""
    return (
        need[0] <= free[0] + SLACK
        and need[1] <= free[1]
        and need[2] <= free[2]
        and need[3] <= free[3]
        and need[4] <= free[4]
    )


@dataclass
class Bin:
    """Room of one node, there already or to be.  Packing takes from ``free``."""

    name: str
    free: Vector
    runtimes: frozenset[str]
    isolations: frozenset[str]
    pool: str = ""
    used: bool = False
    """Whether something was put into it."""

    def welcomes(self, item: Waiting) -> bool:
        """Whether its engines can run the item, whatever room there is."""
        return (
            item.isolation in self.isolations
            and (item.runtime is None or item.runtime in self.runtimes)
            and item.pool in (None, self.pool)
        )

    def put(self, need: Vector, most: int) -> int:
        """Puts in as many of ``most`` as fit; how many that were."""
        free = self.free
        count = most
        for want, have in zip(need, free, strict=True):
            if want > 0:
                count = min(count, math.floor((have + SLACK) / want))
        if count <= 0:
            return 0
        self.free = (
            max(0.0, free[0] - count * need[0]),
            max(0.0, free[1] - count * need[1]),
            max(0.0, free[2] - count * need[2]),
            max(0.0, free[3] - count * need[3]),
            max(0.0, free[4] - count * need[4]),
        )
        self.used = True
        return count


@dataclass
class Group:
    """Equal sandboxes."""

    item: Waiting
    need: Vector
    count: int


def grouped(waiting: Iterable[Waiting]) -> list[Group]:
    """Equal ones together."""
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
    """By the greatest share that each takes of any resource of the largest bin; those with gpus before all others."""

    def dominant(group: Group) -> tuple[bool, float, Vector]:
        shares = [want / have if have else math.inf for want, have in zip(group.need, largest, strict=True) if want]
        return group.need[3] > 0, max(shares, default=0.0), group.need

    return sorted(groups, key=dominant, reverse=True)


def largest(bins: Iterable[Vector]) -> Vector:
    """The most of each resource that any of them has."""
    found = NOTHING
    for each in bins:
        found = _most(found, each)
    return found


def pack(groups: Iterable[Group], bins: Sequence[Bin]) -> list[Group]:
    """Puts what fits into the first bin that takes it; what found no room is returned in the same order."""
    halls = _halls(bins)
    left: list[Group] = []
    for group in groups:
        rest = group.count
        for hall in halls:
            if rest and hall.welcomes(group.item):
                rest = hall.fill(group.need, rest)
        if rest:
            left.append(Group(group.item, group.need, rest))
    return left


def items(groups: Iterable[Group]) -> list[Waiting]:
    """Groups as values again."""
    return [replace(group.item, count=group.count) for group in groups]


class _Hall:
    """Bins that run the same things, under a tree whose every knot has the most of each resource below it."""

    def __init__(self, bins: Sequence[Bin]) -> None:
        self._bins = bins
        self.welcomes = bins[0].welcomes
        self._width = 1 << max(0, len(bins) - 1).bit_length()
        tree = [NOTHING] * self._width + [each.free for each in bins] + [NOTHING] * (self._width - len(bins))
        for knot in range(self._width - 1, 0, -1):
            tree[knot] = _most(tree[2 * knot], tree[2 * knot + 1])
        self._tree = tree

    def fill(self, need: Vector, count: int) -> int:
        """Puts in as many as fit; how many are left."""
        while count and (place := self._first(need)) is not None:
            put = self._bins[place].put(need, count)
            count -= put
            self._refresh(place)
        return count

    def _first(self, need: Vector) -> int | None:
        tree, width = self._tree, self._width
        path = [1]
        while path:
            knot = path.pop()
            if not fits(need, tree[knot]):
                continue
            if knot >= width:
                return knot - width if knot - width < len(self._bins) else None
            path += (2 * knot + 1, 2 * knot)
        return None

    def _refresh(self, place: int) -> None:
        tree = self._tree
        knot = self._width + place
        tree[knot] = self._bins[place].free
        while knot > 1:
            knot //= 2
            most = _most(tree[2 * knot], tree[2 * knot + 1])
            if most == tree[knot]:
                return
            tree[knot] = most


def _halls(bins: Sequence[Bin]) -> list[_Hall]:
    """One for each kind of bin; those with gpus last, so that they stay free for what needs them."""
    kinds: dict[tuple[object, ...], list[Bin]] = {}
    for each in bins:
        kinds.setdefault((each.free[3] > 0, each.runtimes, each.isolations, each.pool), []).append(each)
    ordered = sorted(kinds.items(), key=lambda kind: bool(kind[0][0]))
    return [_Hall(members) for _, members in ordered]


def _most(a: Vector, b: Vector) -> Vector:
    return (
        a[0] if a[0] >= b[0] else b[0],
        a[1] if a[1] >= b[1] else b[1],
        a[2] if a[2] >= b[2] else b[2],
        a[3] if a[3] >= b[3] else b[3],
        a[4] if a[4] >= b[4] else b[4],
    )
