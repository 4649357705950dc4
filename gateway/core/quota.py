"""Decide whether a tenant's quota leaves room for one thing more.

What counts is what its sandboxes take of their nodes or wait for (`gateway.core.model.Sandbox.claimed`), whoever made
them.  The caller reads that in the transaction that writes the new thing, and holds off every other one meanwhile.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from gateway.core.policy import Quota
from gateway.wire.resources import Shape

_ROUNDING: Final = 1e-9

Unit = tuple[str, str]
"""Its name for people where there is one of it, and where there are more."""

_STANDING: Final[tuple[tuple[str, str, Unit], ...]] = (
    ("sandboxes", "slots", ("sandbox", "sandboxes")),
    ("cpus", "cpus", ("core", "cores")),
    ("memory_mb", "memory_mb", ("MiB of memory", "MiB of memory")),
    ("disk_mb", "disk_mb", ("MiB of disk", "MiB of disk")),
    ("gpus", "gpus", ("GPU", "GPUs")),
)
"""Key of the quota, field of a shape, and the unit."""
_PREPARED: Final[Unit] = ("prepared unit", "prepared units")


@dataclass(frozen=True)
class Excess:
    """One limit of a quota that something would break."""

    key: str
    """Of the quota."""
    unit: Unit
    limit: float
    used: float
    asked: float
    where: str
    """Where the limit is set, for people."""

    @property
    def alone(self) -> bool:
        """Whether what is asked for breaks the limit by itself, so that nothing that ends would help."""
        return self.asked > self.limit + _ROUNDING

    def amount(self, number: float) -> str:
        """Return a number of its unit, for people."""
        return f"{number:.12g} {self.unit[number != 1]}"


def claim_excess(quota: Quota, used: Shape, more: Shape) -> Excess | None:
    """Return the first limit that ``more`` would break for a tenant that claims ``used`` already."""
    return next(claim_excesses(quota, used, more), None)


def claim_excesses(quota: Quota, used: Shape, more: Shape) -> Iterator[Excess]:
    """Yield every limit that ``more`` would break for a tenant that claims ``used`` already."""
    for key, name, unit in _STANDING:
        limit = getattr(quota, key)
        present, asked = getattr(used, name), getattr(more, name)
        if limit is not None and asked > 0 and present + asked > limit + _ROUNDING:
            yield Excess(key, unit, limit, present, asked, quota.where(key))


def in_use(key: str, used: Shape, prepared_units: int) -> float | None:
    """Return what counts against one key of a quota; ``None`` for the pace of creates, which nothing uses up."""
    if key == "prepared_units":
        return prepared_units
    return next((getattr(used, name) for known, name, _ in _STANDING if known == key), None)


def units_excess(quota: Quota, used: int, more: int) -> Excess | None:
    """Return the excess of ``more`` prepared units for a tenant that has ``used`` unclaimed ones."""
    limit = quota.prepared_units
    if limit is None or used + more <= limit:
        return None
    return Excess("prepared_units", _PREPARED, limit, used, more, quota.where("prepared_units"))


@dataclass(frozen=True)
class CreatePace:
    """The answer to a create under a quota of creates per second: it may begin, or has to wait."""

    due: datetime | None
    """When the next create would be on time, if this one begins; ``None``: it has to wait."""
    wait_seconds: float = 0.0
    """For how long; 0 for one that may begin."""


def paced(per_second: float, due: datetime | None, now: datetime) -> CreatePace:
    """Return whether a create may begin now: ``per_second`` on average, one second's worth at once.

    Args:
        per_second: of the quota, above 0.
        due: as the create before left it; ``None`` before the first.
        now: UTC.
    """
    interval = 1.0 / per_second
    on_time = now if due is None else max(now, due)
    ahead = (on_time - now).total_seconds() - max(0.0, 1.0 - interval)
    if ahead > 1e-6:
        return CreatePace(None, ahead)
    return CreatePace(on_time + timedelta(seconds=interval))
