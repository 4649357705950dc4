"""Amounts of resources: what a sandbox uses, and what a node has."""

from typing import Self

from pydantic import ConfigDict, Field

from gateway.wire import limits
from gateway.wire.base import WireModel


class Shape(WireModel):
    """An amount of every resource at once: what one sandbox asks for, or what a node has."""

    model_config = ConfigDict(extra="ignore")

    cpus: float = Field(default=0.0, ge=0, le=limits.MAX_INTEGER, allow_inf_nan=False)
    """Cores; fractions are allowed."""
    memory_mb: int = Field(default=0, ge=0, le=limits.MAX_INTEGER)
    """MiB."""
    disk_mb: int = Field(default=0, ge=0, le=limits.MAX_INTEGER)
    """MiB of writable disk."""
    gpus: int = Field(default=0, ge=0, le=limits.MAX_INTEGER)
    """Whole devices."""
    slots: int = Field(default=0, ge=0, le=limits.MAX_INTEGER)
    """Number of sandboxes: 1 for a sandbox; for a node, the most that it may run."""

    def __add__(self, other: Self) -> "Shape":
        return Shape(
            cpus=self.cpus + other.cpus,
            memory_mb=self.memory_mb + other.memory_mb,
            disk_mb=self.disk_mb + other.disk_mb,
            gpus=self.gpus + other.gpus,
            slots=self.slots + other.slots,
        )

    def times(self, count: int) -> "Shape":
        """Return the sum of ``count`` such shapes."""
        return Shape(
            cpus=self.cpus * count,
            memory_mb=self.memory_mb * count,
            disk_mb=self.disk_mb * count,
            gpus=self.gpus * count,
            slots=self.slots * count,
        )

    def minus(self, other: "Shape") -> "Shape":
        """Return what is left after subtracting ``other``; nothing goes below zero."""
        return Shape(
            cpus=max(0.0, self.cpus - other.cpus),
            memory_mb=max(0, self.memory_mb - other.memory_mb),
            disk_mb=max(0, self.disk_mb - other.disk_mb),
            gpus=max(0, self.gpus - other.gpus),
            slots=max(0, self.slots - other.slots),
        )

    def shortfalls(self, free: "Shape") -> list[str]:
        """Return the names of the resources of which ``free`` has less than this, in a fixed order."""
        names = ("cpus", "memory_mb", "disk_mb", "gpus", "slots")
        # Sums of fractional cores have rounding errors; a millionth of a core does not matter.
        return [name for name in names if getattr(self, name) > getattr(free, name) + 1e-6]

    def fits(self, free: "Shape") -> bool:
        """Return whether ``free`` has enough of every resource."""
        return not self.shortfalls(free)
