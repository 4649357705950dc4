"""Which waiting sandboxes find room where: first fit, the largest first, all resources at once."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autoscaler.core.model import Waiting
from gateway.wire.resources import Shape


@dataclass
class Bin:
    """Room of one node, there already or to be.  `pack` takes from ``free``."""

    name: str
    free: Shape
    runtimes: frozenset[str]
    isolations: frozenset[str]
    used: bool = False
    """Whether something was put into it."""

    def takes(self, item: Waiting) -> bool:
        """Puts ``item`` in if it fits; whether it did."""
        if item.isolation not in self.isolations or (item.runtime is not None and item.runtime not in self.runtimes):
            return False
        if not item.shape.fits(self.free):
            return False
        self.free = self.free.minus(item.shape)
        self.used = True
        return True


def largest_first(waiting: Iterable[Waiting]) -> list[Waiting]:
    """By what is scarcest: gpus, then memory, cpus, disk."""
    return sorted(waiting, key=lambda w: (w.shape.gpus, w.shape.memory_mb, w.shape.cpus, w.shape.disk_mb), reverse=True)


def pack(waiting: Iterable[Waiting], bins: Sequence[Bin]) -> list[Waiting]:
    """Puts what fits into the first bin that takes it; what found no room is returned, the largest first."""
    return [item for item in largest_first(waiting) if not any(bin_.takes(item) for bin_ in bins)]
