"""Amounts of resources: what a sandbox uses, and what a node has."""

import re
from typing import Annotated, Final, Self

from pydantic import AfterValidator, ConfigDict, Field

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


# -- GPUs -------------------------------------------------------------------------------------------------------------

# What `docker run --gpus` is given, in the three forms that a spec may use.  Engines hand the names of devices on to
# NVIDIA's tools as they are, and those take more than names: all, none, void, the beginning of a UUID.  So only whole
# names pass, each once, and their number is the number of GPUs.
ALL_GPUS: Final = "all"
_DEVICES: Final = "device="
_UUID: Final = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_NUMBER: Final = "(?:0|[1-9][0-9]?)"
# Number or UUID of a GPU; ``0:1`` or UUID of an instance that MIG made of one.
_NAME: Final = f"(?:{_NUMBER}(?::{_NUMBER})?|(?:GPU|MIG)-{_UUID})"
_GRAMMAR: Final = re.compile(f"{ALL_GPUS}|{_DEVICES}(?:{ALL_GPUS}|{_NAME}(?:,{_NAME}){{0,{limits.MAX_GPUS - 1}}})")


def devices_of(gpus: int | str) -> tuple[str, ...]:
    """Return the devices that a checked request names; none for a count and for ``all``."""
    if isinstance(gpus, int) or gpus == ALL_GPUS:
        return ()
    return tuple(gpus.removeprefix(_DEVICES).split(","))


def count_of(gpus: int | str) -> int:
    """Return how many GPUs a checked request needs at least: ``all`` of a node that has any is one or more."""
    if isinstance(gpus, int):
        return gpus
    return len(devices_of(gpus)) or 1


def _checked(text: str) -> str:
    if not _GRAMMAR.fullmatch(text):
        raise ValueError(f"gpus: {text!r} is neither a count, nor 'all', nor 'device=' with numbers or whole UUIDs")
    if text == _DEVICES + ALL_GPUS:
        return ALL_GPUS
    devices = devices_of(text)
    if len(set(devices)) < len(devices):
        raise ValueError(f"gpus: {text!r} names a device twice")
    return text


GpuRequest = (
    Annotated[int, Field(ge=0, le=limits.MAX_GPUS)]
    | Annotated[
        str,
        AfterValidator(_checked),
        # Wider than the grammar, for people; `_checked` decides.
        Field(json_schema_extra={"pattern": "^(all|device=[A-Za-z0-9:-]+(,[A-Za-z0-9:-]+)*)$"}),
    ]
)
