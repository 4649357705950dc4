"""Amounts of all that a job takes and a node gives, as plain numbers: cpus, memory, disk, gpus, slots, builds."""

from typing import Final

from autoscaler.core.packing import SLACK, vector
from autoscaler.core.pools import PoolPolicy
from gateway.wire.resources import Shape

Amounts = tuple[float, ...]
RESOURCES: Final = ("cpus", "memory_mb", "disk_mb", "gpus", "slots", "builds")
ZERO: Final[Amounts] = (0.0,) * len(RESOURCES)
ONE_BUILD: Final[Amounts] = (0.0, 0.0, 0.0, 0.0, 0.0, 1.0)


def of_shape(shape: Shape) -> Amounts:
    """A sandbox, or what a node gives to sandboxes."""
    return (*vector(shape), 0.0)


def of_node(pool: PoolPolicy, shape: Shape, builds: int) -> Amounts:
    """What a node of a pool gives to jobs: its shape to sandboxes, places to builds, or both.

    Args:
        pool: whose role decides.
        shape: what the node has for sandboxes.
        builds: how many builds a builder runs at once.
    """
    given = of_shape(shape) if pool.hosts_sandboxes else ZERO
    return plus(given, ONE_BUILD, builds) if pool.hosts_builds else given


def plus(some: Amounts, more: Amounts, times: float = 1.0) -> Amounts:
    """``some`` and so many times ``more``."""
    return tuple(a + times * b for a, b in zip(some, more, strict=True))


def left(need: Amounts, free: Amounts, total: Amounts) -> float | None:
    """How well a node fits: the sum of the shares that would be left, the smallest being the best; ``None`` if it
    does not.  The gateway's own rule for placing sandboxes."""
    share = 0.0
    for want, have, whole in zip(need, free, total, strict=True):
        if want > have + SLACK:
            return None
        if whole:
            share += (have - want) / whole
    return share
