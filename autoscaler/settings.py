"""Settings of the autoscaler and their translation into the policy; nothing is read at import."""

from decimal import Decimal
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from autoscaler.core.naming import NAME_PATTERN
from autoscaler.core.pools import FleetPolicy, OfferKey, OfferOrder, PoolPolicy, WarmFloor
from gateway.wire.resources import Shape
from gateway.wire.sandboxes import Isolation, RuntimeName
from gateway.wire.settings import DaemonSettings
from gateway.wire.text import of_form

_GIVES: Final = ("cpus", "memory_mb", "disk_mb")

CLOCK: Final = r"^(([01]\d|2[0-3]):[0-5]\d|24:00)$"
Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: Final[tuple[Day, ...]] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")

Euro = Annotated[Decimal, Field(ge=0, strict=False)]
Name = Annotated[str, of_form(NAME_PATTERN, "a name of a-z, 0-9 and '-', from a letter on, 24 characters at most")]


class OfferSettings(BaseModel):
    """One offer that a pool may buy."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    type: str
    """The provider's word for the kind of machine."""
    location: str
    """The provider's word for the place."""


class WarmSettings(BaseModel):
    """Room that a pool keeps free over and above all demand."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    count: int = Field(ge=1)
    """How many sandboxes of this shape must find room at once."""
    cpus: float = Field(gt=0)
    """Cores of each."""
    memory_mb: int = Field(ge=1)
    """MiB of memory of each."""
    disk_mb: int = Field(default=0, ge=0)
    """MiB of disk of each."""
    gpus: int = Field(default=0, ge=0)
    """GPUs of each."""
    days: tuple[Day, ...] = DAYS
    """On which days; UTC."""
    start: str = Field(default="00:00", pattern=CLOCK)
    """From when, ``HH:MM`` UTC."""
    end: str = Field(default="24:00", pattern=CLOCK)
    """Until when; before ``start`` it is the next day's."""

    def floor(self) -> WarmFloor:
        """Return the floor as the policy sees it."""
        shape = Shape(cpus=self.cpus, memory_mb=self.memory_mb, disk_mb=self.disk_mb, gpus=self.gpus, slots=1)
        days = frozenset(DAYS.index(day) for day in self.days)
        return WarmFloor(shape, self.count, days, _minute(self.start), _minute(self.end))


class PoolSettings(BaseModel):
    """Nodes of one kind, scaled together."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: Name
    """Part of its instances' names."""
    provider: str
    """A key of ``providers``."""
    role: Literal["sandbox", "builder", "both"] = "sandbox"
    """What its nodes do; a label of each."""
    offers: tuple[OfferSettings, ...] = ()
    """What may be bought; empty for all that the provider sells, the cheapest first."""
    order: OfferOrder = OfferOrder.LISTED
    """``listed``: offers are tried in the order above; ``price``: the cheapest first."""
    gpus: int = Field(default=0, ge=0)
    """GPUs that each of its nodes must have; offers with fewer are left out, and a provider without any is refused."""
    max_price: Euro | None = None
    """Euro an hour that one instance may cost at most.  With any cap set, an offer without a known price is refused."""
    max_hourly: Euro | None = None
    """Euro an hour that all instances of the pool may cost together."""
    max_monthly: Euro | None = None
    """Euro in a calendar month (UTC); nothing is booted that could exceed it."""
    warm: tuple[WarmSettings, ...] = ()
    """Room that is kept free, always or at certain times."""
    labels: dict[str, str] = {}
    """More labels of its instances, by the provider's own rules."""
    replace_outdated: bool = True
    """Whether nodes of other settings, of another bundle, or of an offer that ends are replaced one by one."""
    image: str = ""
    """What instances boot from, in the provider's words."""
    min: int = Field(default=0, ge=0)
    """Nodes that are kept without any demand."""
    max: int = Field(default=1, ge=0)
    """Most instances at any moment, those on their way and those being deleted included."""
    idle_seconds: float = Field(default=600.0, gt=0)
    """A node beyond the minimum that has been empty this long is closed and deleted."""
    hold_seconds: float | None = Field(default=None, ge=0)
    """After the pool grew nothing is closed for this long; ``None`` is ``idle_seconds``."""
    start_seconds: float = Field(default=300.0, gt=0)
    """From the first call to the running instance; a boot that takes longer has failed."""
    boot_seconds: float = Field(default=600.0, gt=0)
    """From the running instance to the registered node; a boot that takes longer has failed."""
    extend_seconds: float = Field(default=300.0, ge=0)
    """A late boot gets this much more time, once, if its provider reported progress no longer ago; 0 is none."""
    drain_seconds: float = Field(default=1800.0, gt=0)
    """A closed node that is not empty by then is reported."""
    drain_share: float = Field(default=0.1, ge=0, le=1)
    """Share of the ready nodes that may be closed or being deleted at once; one always may."""
    max_in_flight: int = Field(default=2, ge=1)
    """Most instances that boot at once; more only when more than that are ready, then as many as those."""
    pressure_nodes: int = Field(default=0, ge=0)
    """Most nodes that are added for pressure on the others; 0 is none."""
    pressure_percent: float = Field(default=60.0, gt=0, le=100)
    """Share of stalled time (Linux PSI) from which a node counts as under pressure."""
    pressure_seconds: float = Field(default=60.0, ge=0)
    """How long that must last."""
    pressure_hold_seconds: float = Field(default=300.0, ge=0)
    """After a node of the pool was under pressure nothing is closed for this long."""
    billing_margin_seconds: float = Field(default=300.0, ge=60)
    """Where started hours are paid, an idle node is closed only this long before its next one begins."""
    runtimes: tuple[RuntimeName, ...] = ("runsc", "docker")
    """Engines of its nodes; passed to them."""
    isolations: tuple[Isolation, ...] = ("gvisor", "runc")
    """Isolations that those engines give."""
    cpu_overcommit: float = Field(default=4.0, gt=0)
    """Cores that a node gives to sandboxes per core of its machine; passed to it."""
    reserve_memory_mb: int = Field(default=512, ge=0)
    """MiB of memory that a node keeps for itself; passed to it."""
    reserve_disk_mb: int = Field(default=2048, ge=0)
    """MiB of disk that a node keeps for itself; passed to it."""
    slots: int = Field(default=250, ge=1)
    """Most sandboxes of a node; passed to it."""
    default_route: str | None = None
    """Router of instances whose network announces none, such as those with a private address only."""
    resolvers: tuple[str, ...] = ()
    """Name servers of instances whose network announces none."""
    node: dict[str, object] = {}
    """More settings of its node agents, as in the node agent's own file; they win over the ones above."""

    @model_validator(mode="after")
    def _min_within_max(self) -> Self:
        if self.min > self.max:
            raise ValueError("min must not be above max")
        if self.role == "builder" and self.warm:
            raise ValueError("warm is room for sandboxes, and a builder pool has none")
        return self

    @property
    def node_settings(self) -> dict[str, object]:
        """Settings that are passed to its node agents."""
        return {
            "runtimes": list(self.runtimes),
            "cpu_overcommit": self.cpu_overcommit,
            "reserve_memory_mb": self.reserve_memory_mb,
            "reserve_disk_mb": self.reserve_disk_mb,
            "slots": self.slots,
            **self.node,
        }

    def policy(self) -> PoolPolicy:
        """Return the pool as the policy sees it."""
        gives = {key: value for key in _GIVES if isinstance(value := self.node.get(key), int | float)}
        return PoolPolicy(
            name=self.name,
            provider=self.provider,
            role=self.role,
            min=self.min,
            max=self.max,
            offers=tuple(OfferKey(offer.type, offer.location) for offer in self.offers),
            order=self.order,
            gpus=self.gpus,
            max_price=self.max_price,
            max_hourly=self.max_hourly,
            max_monthly=self.max_monthly,
            warm=tuple(each.floor() for each in self.warm),
            labels=self.labels,
            replaces=self.replace_outdated,
            idle_seconds=self.idle_seconds,
            hold_seconds=self.hold_seconds,
            start_seconds=self.start_seconds,
            boot_seconds=self.boot_seconds,
            extend_seconds=self.extend_seconds,
            drain_seconds=self.drain_seconds,
            drain_share=self.drain_share,
            max_in_flight=self.max_in_flight,
            pressure_nodes=self.pressure_nodes,
            pressure_percent=self.pressure_percent,
            pressure_seconds=self.pressure_seconds,
            pressure_hold_seconds=self.pressure_hold_seconds,
            billing_margin_seconds=self.billing_margin_seconds,
            runtimes=frozenset(self.runtimes),
            isolations=frozenset(self.isolations),
            cpu_overcommit=self.cpu_overcommit,
            reserve_memory_mb=self.reserve_memory_mb,
            reserve_disk_mb=self.reserve_disk_mb,
            slots=self.slots,
            gives=gives,
        )


class AutoscalerSettings(DaemonSettings):
    """Settings of the autoscaler, from a file and from ``SANDBOXES_AUTOSCALER_<FIELD>``."""

    model_config = ConfigDict(allow_inf_nan=False)

    env_prefix = "SANDBOXES_AUTOSCALER_"
    owner = "autoscaler"

    deployment: Name = "local"
    """Name of this fleet; every instance carries it, and no other instance is ever touched."""
    gateway_url: str = Field(pattern=r"^https?://[^/\s]+")
    """Where the gateway is reached from here."""
    node_gateway_url: str | None = Field(default=None, pattern=r"^https?://[^/\s]+")
    """Where nodes reach it; ``None`` is ``gateway_url``."""
    token_file: Path
    """File with an operator token."""
    state_dir: Path = Path("/var/lib/sandbox-fleet/autoscaler")
    """Directory of the journal and the lock; only its owner may read it."""
    database_url: str | None = None
    """SQLAlchemy URL of the journal; ``None`` is a SQLite file in ``state_dir``."""
    tick_seconds: float = Field(default=2.0, gt=0, le=3600)
    """Seconds between two ticks."""
    list_seconds: float = Field(default=10.0, ge=0)
    """Least seconds between two listings of a provider that counts calls; rounded up to whole ticks."""
    heartbeat_seconds: float = Field(default=10.0, ge=0)
    """After a start nothing is changed for this long, so that every node has a heartbeat: at least as long as the
    gateway's ``heartbeat_interval``."""
    max: int | None = Field(default=None, ge=0)
    """Most instances of all pools together; ``None`` is the sum of theirs."""
    max_hourly: Euro | None = None
    """Euro an hour that all instances may cost together."""
    max_monthly: Euro | None = None
    """Euro in a calendar month (UTC) over all pools; nothing is booted that could exceed it."""
    young_seconds: float = Field(default=0.0, ge=0)
    """While all demand is younger than this it waits, so that a burst becomes one decision."""
    creates_per_tick: int = Field(default=1, ge=1)
    """Most instances that one tick orders, over all pools."""
    stops_per_tick: int = Field(default=1, ge=1)
    """Most idle nodes that one tick closes, over all pools."""
    orphan_seconds: float = Field(default=900.0, gt=0)
    """An instance of this fleet without a row in the journal is deleted once it is older than this."""
    silent_seconds: float = Field(default=1800.0, gt=0)
    """A lost node's instance is deleted once its last heartbeat is older than this."""
    clock_grace_seconds: float = Field(default=900.0, ge=0)
    """After the wall clock jumped nothing is deleted for its age for this long."""
    providers: dict[Name, dict[str, object]] = {}
    """One table for each provider, with its own settings; ``kind`` is its plugin, by default the table's name."""
    pools: tuple[PoolSettings, ...] = ()
    """Pools, in the order in which waiting sandboxes are offered to them."""

    @model_validator(mode="after")
    def _pools_hold_together(self) -> Self:
        names = [pool.name for pool in self.pools]
        if len(set(names)) < len(names):
            raise ValueError("pools: each needs a name of its own")
        for pool in self.pools:
            if pool.provider not in self.providers:
                known = ", ".join(sorted(self.providers)) or "none"
                raise ValueError(f"pools: {pool.name} names the provider {pool.provider!r} (there is: {known})")
        return self

    @property
    def url(self) -> str:
        """SQLAlchemy URL of the journal."""
        return self.database_url or f"sqlite:///{self.state_dir / 'journal.db'}"

    @property
    def lock(self) -> Path:
        """Held by the one that acts."""
        return self.state_dir / "autoscaler.lock"

    def policy(self) -> FleetPolicy:
        """Return the fleet as the policy sees it."""
        return FleetPolicy(
            deployment=self.deployment,
            pools=tuple(pool.policy() for pool in self.pools),
            max=self.max,
            max_hourly=self.max_hourly,
            max_monthly=self.max_monthly,
            young_seconds=self.young_seconds,
            creates_per_tick=self.creates_per_tick,
            stops_per_tick=self.stops_per_tick,
            orphan_seconds=self.orphan_seconds,
            silent_seconds=self.silent_seconds,
        )


def _minute(text: str) -> int:
    hours, minutes = text.split(":")
    return int(hours) * 60 + int(minutes)
