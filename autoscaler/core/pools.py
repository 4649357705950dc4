"""What the operator asks for: pools, their limits and the rules that they share.  All money is in euro, net."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Final

from gateway.wire.nodes import NodeRole
from gateway.wire.resources import Shape
from providers.base import Caps

EVERY_DAY: Final = frozenset(range(7))
DAY_MINUTES: Final = 24 * 60
GPU_RUNTIME: Final = "docker"
"""The one that hands GPUs on to sandboxes."""


class OfferOrder(StrEnum):
    """In which order the offers of a pool are tried."""

    LISTED = "listed"  # as they stand in the settings
    PRICE = "price"  # the cheapest first


@dataclass(frozen=True)
class OfferKey:
    """Names one offer of a provider."""

    type: str
    location: str

    def __str__(self) -> str:
        return f"{self.type}@{self.location}"


Engine = tuple[str, str]
"""A runtime, and an isolation that it gives."""


@dataclass(frozen=True)
class WarmFloor:
    """Room that is kept free over and above all demand, always or at certain times."""

    shape: Shape
    count: int
    days: frozenset[int] = EVERY_DAY
    """Monday is 0; UTC."""
    start: int = 0
    """Minute of the day, UTC."""
    end: int = DAY_MINUTES
    """First minute after it; below ``start`` the window runs over midnight."""

    def holds(self, now: float) -> bool:
        """Return whether the floor applies at a moment."""
        at = datetime.fromtimestamp(now, UTC)
        minute, day = at.hour * 60 + at.minute, at.weekday()
        if self.start <= self.end:
            return day in self.days and self.start <= minute < self.end
        if minute < self.end:
            return (day - 1) % 7 in self.days  # the window began yesterday
        return day in self.days and minute >= self.start


@dataclass(frozen=True)
class PoolPolicy:
    """One pool: nodes of one kind, scaled together."""

    name: str
    provider: str
    role: NodeRole
    min: int
    max: int
    offers: tuple[OfferKey, ...] = ()
    """What may be bought; empty for all that the provider sells, the cheapest first."""
    order: OfferOrder = OfferOrder.LISTED
    gpus: int = 0
    """GPUs that each of its nodes must have; offers with fewer are left out."""
    max_price: Decimal | None = None
    """Euro an hour that one instance may cost at most."""
    max_hourly: Decimal | None = None
    """Euro an hour that all rows of the pool may cost together; an unknown price is over it."""
    max_monthly: Decimal | None = None
    """Euro in a calendar month (UTC); once a new node could lead beyond it, none is booted."""
    warm: tuple[WarmFloor, ...] = ()
    idle_seconds: float = 600.0
    hold_seconds: float | None = None
    """Nothing is closed so soon after the last boot; ``None`` is `idle_seconds`."""
    start_seconds: float = 300.0
    """From the first call to the running instance; later than that it has failed."""
    boot_seconds: float = 600.0
    """From the running instance to the registered node; later than that it has failed."""
    extend_seconds: float = 300.0
    """So much more time a late boot gets, once, if a step of it was reported no longer ago than this."""
    drain_seconds: float = 1800.0
    """A closed node that is not empty by then is pointed out; it is never killed for it."""
    max_in_flight: int = 2
    """Most instances on their way at once, until more nodes than that are ready: then as many as are ready."""
    drain_share: float = 0.1
    """Part of the pool's ready nodes that may be closed at once; one always may."""
    pressure_nodes: int = 0
    """Most nodes that pressure alone adds; 0 is none."""
    pressure_percent: float = 60.0
    """Share of stalled time from which a node counts as pressed."""
    pressure_seconds: float = 60.0
    """How long it must last."""
    pressure_hold_seconds: float = 300.0
    """Nothing is closed so soon after a pressed moment."""
    billing_margin_seconds: float = 300.0
    """Where started hours are paid: an idle node is closed only so shortly before its next one."""
    runtimes: frozenset[str] = frozenset({"runsc", "docker"})
    isolations: frozenset[str] = frozenset({"gvisor", "runc"})
    cpu_overcommit: float = 4.0
    """Cores that a node gives away per core that it has."""
    reserve_memory_mb: int = 512
    reserve_disk_mb: int = 2048
    """What a node keeps for itself."""
    slots: int = 250
    """Most sandboxes of a node."""
    gives: Mapping[str, float] = field(default_factory=dict)
    """``cpus``, ``memory_mb``, ``disk_mb`` that its nodes are configured to give away, whatever the offer has."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """More labels of its instances."""
    spec: str = ""
    """Digest of all that an instance is made from; empty while it is not known."""
    installs: bool = False
    """Whether its nodes install the gateway's bundle, so that another bundle makes other nodes."""
    replaces: bool = True
    """Whether what was made from another spec, or of an offer that ends, is replaced."""

    @property
    def engines(self) -> frozenset[Engine]:
        """What its nodes are to run."""
        return frozenset((runtime, isolation) for runtime in self.runtimes for isolation in self.isolations)

    @property
    def hosts_sandboxes(self) -> bool:
        """Whether waiting sandboxes may run there."""
        return self.role != "builder"

    @property
    def hosts_builds(self) -> bool:
        """Whether its nodes build images."""
        return self.role != "sandbox"

    @property
    def wants_gpus(self) -> bool:
        """Whether it makes no sense where there are none."""
        return self.gpus > 0 or any(floor.shape.gpus > 0 for floor in self.warm)


@dataclass(frozen=True)
class FleetPolicy:
    """All pools and the rules that they share."""

    deployment: str
    pools: tuple[PoolPolicy, ...]
    max: int | None = None
    """Most instances of all pools together."""
    max_hourly: Decimal | None = None
    max_monthly: Decimal | None = None
    creates_per_tick: int = 1
    stops_per_tick: int = 1
    young_seconds: float = 0.0
    """Demand that is all younger than this waits, so that a burst becomes one decision."""
    orphan_seconds: float = 900.0
    """An instance without a row is deleted once it is older than this, by the provider's clock."""
    silent_seconds: float = 1800.0
    """The instance of a lost node is deleted once the last heartbeat is older than this."""
    delete_retry_seconds: float = 60.0


def misfits(pools: Iterable[PoolPolicy], caps: Mapping[str, Caps]) -> list[str]:
    """Return a sentence for each pool that could never work, so that nothing is started.

    Args:
        pools: as the settings have them.
        caps: what each provider can do; one that is left out is not judged.
    """
    return [f"pool {pool.name}: {problem}" for pool in pools if (problem := _misfit(pool, caps.get(pool.provider)))]


def _misfit(pool: PoolPolicy, caps: Caps | None) -> str | None:
    if not pool.wants_gpus:
        return None
    gpus = f"gpus = {pool.gpus}" if pool.gpus else f"gpus = {max(f.shape.gpus for f in pool.warm)} in its warm room"
    if caps is not None and not caps.has_gpu:
        return (
            f"it wants GPUs ({gpus}), and provider {pool.provider} has none; name a provider that has, turn "
            "them on in that provider's own settings where it has a key for it, or take the GPUs out of the pool"
        )
    if GPU_RUNTIME not in pool.runtimes:
        return (
            f"it wants GPUs ({gpus}), and of its runtimes none hands them on; add {GPU_RUNTIME} to them, "
            "or take the GPUs out of the pool"
        )
    return None
