"""What one plan is made from: rows of the journal, listings, nodes and demand, as they were seen in one tick.

All times are seconds since the epoch, UTC.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from functools import cached_property
from typing import Final

from autoscaler.core import naming
from autoscaler.core.doubts import Doubt
from autoscaler.core.pools import Engine, OfferKey
from autoscaler.core.states import IntentState
from gateway.wire.capacity import Demand
from gateway.wire.nodes import NodeRecord
from gateway.wire.resources import Shape
from gateway.wire.states import NodeState
from providers.base import Caps, Instance, Offer, Phase

DRIFT: Final = "drift"
PRESSURE: Final = "pressure"
DETAIL_LENGTH: Final = 300
"""Characters of a provider's own text that go into a reason."""

LearnedKey = tuple[str, str, str]
"""Pool, type, and `PoolPolicy.spec`: with other settings a node gives away something else of the same machine."""


# -- the journal ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Intent:
    """One row of the journal."""

    operation_id: str
    pool: str
    provider: str
    name: str
    type: str
    location: str
    state: IntentState
    created_at: float
    changed_at: float
    """Since when it is in this state."""
    deadline: float
    """By when its instance must run; once it does, by when its node must have registered."""
    attempts: int = 0
    next_try_at: float = 0.0
    """No call about it before this."""
    instance_id: str | None = None
    node_id: str | None = None
    drain_mark: float | None = None
    """The node's last heartbeat, by the gateway's clock, when it was closed; a later one proves what is there."""
    detail: str = ""
    """The reason of the last change, or the last error."""
    price: Decimal | None = None
    """Euro an hour when it was ordered; ``None`` when unknown."""
    spec: str = ""
    """`Boot.spec` when it was ordered."""
    running_at: float | None = None
    """When its instance was first seen running."""
    cause: str = ""
    """Why it was booted or is being closed, where a rule depends on it: `PRESSURE`, `DRIFT`."""
    extended_at: float | None = None
    """When its boot was given more time; that happens once."""

    @property
    def offer(self) -> OfferKey:
        """What was ordered."""
        return OfferKey(self.type, self.location)

    @property
    def base(self) -> str:
        """The part of ``spec`` that the pool's settings decide; the rest names the bundle that its node installed."""
        return self.spec.partition("-")[0]

    @property
    def sighting(self) -> str:
        """Names this try in the record of what listings lacked: each new call has to be looked for again."""
        return f"{self.operation_id}/{self.attempts}"


class BackOffKind(StrEnum):
    """What a back-off holds back."""

    PROVIDER = "provider"  # every create at a provider
    LOCATION = "location"  # creates in one location of it
    OFFER = "offer"  # creates of one offer of it
    POOL = "pool"  # creates for one pool
    CLOSING = "closing"  # the scale-down of one pool
    SWEEP = "sweep"  # the delete of one thing that has no row
    CLOCK = "clock"  # every conclusion from an age
    DOUBT = "doubt"  # the use of what cannot be understood


@dataclass(frozen=True)
class BackOffKey:
    """Identifies what one back-off holds back; there is at most one back-off for each key."""

    kind: BackOffKind
    owner: str = ""
    """The pool, or the provider; empty for the clock."""
    item: str = ""
    """The location, offer or instance id within the provider."""

    def __str__(self) -> str:
        """Return a phrase for people."""
        match self.kind:
            case BackOffKind.PROVIDER | BackOffKind.POOL:
                return f"{self.kind} {self.owner}"
            case BackOffKind.LOCATION | BackOffKind.OFFER:
                return f"{self.kind} {self.item} of {self.owner}"
            case BackOffKind.CLOSING:
                return f"scale-down of pool {self.owner}"
            case BackOffKind.SWEEP:
                return f"delete of {self.item} at {self.owner}"
            case BackOffKind.CLOCK:
                return "clock"
            case BackOffKind.DOUBT:
                return self.owner


@dataclass(frozen=True)
class BackOff:
    """What ``key`` names is not tried before ``until``."""

    key: BackOffKey
    until: float
    failures: int
    failed_at: float
    reason: str


# -- the clouds -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProviderView:
    """What one provider answered in this tick.  Without a complete listing it is blind, and nothing is concluded."""

    caps: Caps
    instances: tuple[Instance, ...] | None
    taken_at: float = 0.0
    """By the provider's clock."""
    offers: tuple[Offer, ...] = ()
    leftovers: tuple[str, ...] = ()
    """Side resources, such as addresses and volumes, that no instance uses."""
    problem: str = ""
    """Why it is blind."""
    is_resting: bool = False
    """It is blind only because it was listed a moment ago."""
    doubts: tuple[Doubt, ...] = ()
    """What it answered and cannot be understood, and is left out."""


class InstanceIndex:
    """The instances in one complete listing, by the operation that made them, the oldest first."""

    def __init__(self, instances: Iterable[Instance]) -> None:
        found: defaultdict[str | None, list[Instance]] = defaultdict(list)
        self._ended: dict[str | None, Instance] = {}
        for instance in instances:
            if instance.phase is not Phase.GONE:
                found[naming.operation_of(instance)].append(instance)
            else:
                self._ended[naming.operation_of(instance)] = instance
        for several in found.values():
            if len(several) > 1:
                several.sort(key=lambda instance: (instance.created_at, instance.id))
        self._found = dict(found)

    def of(self, operation_id: str | None) -> list[Instance]:
        """Return all instances of one operation that are not gone."""
        return self._found.get(operation_id, [])

    def first(self, operation_id: str) -> Instance | None:
        """Return the instance that the row of an operation stands for."""
        return next(iter(self.of(operation_id)), None)

    def ended(self, operation_id: str) -> Instance | None:
        """Return an instance that is gone, where the provider goes on listing it."""
        return self._ended.get(operation_id)

    def __iter__(self) -> Iterator[Instance]:
        return (instance for several in self._found.values() for instance in several)


def last_words(instance: Instance | None) -> str:
    """Return what the provider reported of an instance, to be put after a reason; the start of it where it is long."""
    text = " ".join(instance.detail.split()) if instance is not None else ""
    if not text:
        return ""
    return f"; the provider reports: {text if len(text) <= DETAIL_LENGTH else text[:DETAIL_LENGTH] + ' …'}"


# -- the gateway ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NodeView:
    """A node as the gateway knows it."""

    id: str
    instance: str
    pool: str
    state: NodeState
    total: Shape
    reserved: Shape
    sandboxes: int
    engines: frozenset[Engine]
    """What it runs."""
    heartbeat_at: float | None = None
    idle_since: float | None = None
    pressed_for: float = 0.0
    """Seconds for which it has been under pressure without a break."""
    pressed_at: float | None = None
    """When it was last seen under pressure."""
    operation_id: str | None = None
    """The order that its instance came from, where its join token was bound to one."""

    @classmethod
    def of(cls, record: NodeRecord, pressed_for: float = 0.0, pressed_at: float | None = None) -> "NodeView":
        """Return the gateway's record of a node, with what its pressure was lately."""
        return cls(
            id=record.id,
            instance=record.instance,
            pool=record.pool,
            state=record.state,
            total=record.total,
            reserved=record.reserved,
            sandboxes=record.sandboxes,
            engines=frozenset((runtime.name, each) for runtime in record.runtimes for each in runtime.isolations),
            heartbeat_at=record.heartbeat_at.timestamp() if record.heartbeat_at is not None else None,
            idle_since=record.idle_since.timestamp() if record.idle_since is not None else None,
            pressed_for=pressed_for,
            pressed_at=pressed_at,
            operation_id=record.operation_id,
        )

    @cached_property
    def runtimes(self) -> frozenset[str]:
        """Its runtimes, whatever isolation they give."""
        return frozenset(runtime for runtime, _ in self.engines)

    @cached_property
    def isolations(self) -> frozenset[str]:
        """Its isolations, whichever runtime gives them."""
        return frozenset(isolation for _, isolation in self.engines)

    @property
    def is_empty(self) -> bool:
        """Whether no sandbox has a row there."""
        return self.sandboxes == 0

    def belongs_to(self, operation_id: str | None) -> bool:
        """Return whether it may come from this order; never one that another order of the same name has made."""
        return self.operation_id in (None, operation_id)


@dataclass(frozen=True)
class DemandItem:
    """Sandboxes of one shape that want room: they wait, were asked for ahead, or are a pool's warm floor."""

    shape: Shape
    runtime: str | None = None
    isolation: str = "gvisor"
    count: int = 1
    since: float | None = None
    """Since when, by the gateway's clock; ``None`` for what is not a waiting sandbox."""
    pool: str | None = None
    """The only pool that helps; ``None`` for any."""


def demand_items(demand: Demand) -> tuple[DemandItem, ...]:
    """Return what wants room.  Units that a create has claimed are left out: their sandboxes wait themselves."""
    waiting = (
        DemandItem(item.shape, item.runtime, item.isolation, since=item.since.timestamp()) for item in demand.waiting
    )
    ahead = (
        DemandItem(unit.resources, unit.runtime, unit.isolation, count=unit.count)
        for unit in demand.prepared
        if unit.count > 0
    )
    return (*waiting, *ahead)


# -- all of it --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class World:
    """Everything that one plan is made from."""

    intents: tuple[Intent, ...] = ()
    """All that are not gone."""
    gone: frozenset[str] = frozenset()
    """Names of instances that went lately."""
    providers: Mapping[str, ProviderView] = field(default_factory=dict)
    nodes: tuple[NodeView, ...] | None = None
    """``None`` when the gateway could not be asked."""
    waiting: tuple[DemandItem, ...] = ()
    """All that want room, prepared bursts included."""
    builders: int = 0
    """Builder nodes that builds need or that were asked for ahead."""
    backoffs: Mapping[BackOffKey, BackOff] = field(default_factory=dict)
    learned: Mapping[LearnedKey, Shape] = field(default_factory=dict)
    """What nodes of a pool and type that were made from one spec really had, once one was seen."""
    bundle: str = ""
    """What new nodes install, in short; empty while it is not known."""
    spent: Mapping[str, Decimal] = field(default_factory=dict)
    """Euro that instances which are gone have cost in this month, by pool."""
    clock_settled: bool = True
    """False for a while after the wall clock jumped: ages prove nothing then."""
    synced: bool = True
    """False from the start until every node has had the time to send a heartbeat."""
    missing_before: frozenset[str] = frozenset()
    """`Intent.sighting` of those whose instance the last complete listing lacked."""
    orphans_before: frozenset[str] = frozenset()
    """Ids of instances without a row in the last complete listing."""
    unknown_nodes_before: Mapping[str, float] = field(default_factory=dict)
    """Operations whose node the gateway did not know at the last look, with the seconds for which that had lasted."""
    leftovers_before: frozenset[str] = frozenset()
    """Side resources that have been left over for longer than `FleetPolicy.orphan_seconds`."""
    doubts: tuple[Doubt, ...] = ()
    """What the findings left out because it could not be understood."""

    @cached_property
    def listed(self) -> Mapping[str, InstanceIndex]:
        """The instances of each provider that could be listed."""
        return {
            name: InstanceIndex(view.instances) for name, view in self.providers.items() if view.instances is not None
        }

    @cached_property
    def nodes_by_instance(self) -> Mapping[str, NodeView]:
        """The gateway's nodes by the name of the instance behind each."""
        return {node.instance: node for node in self.nodes or ()}

    def node_of(self, intent: Intent) -> NodeView | None:
        """Return the node of one row."""
        node = self.nodes_by_instance.get(intent.name)
        return node if node is not None and node.belongs_to(intent.operation_id) else None

    def orphans(self, provider: str) -> Iterator[Instance]:
        """Yield listed instances that no open row stands for; of several of one operation, all but the oldest."""
        rows = {intent.operation_id for intent in self.intents if intent.provider == provider}
        index = self.listed[provider]
        for instance in index:
            operation = naming.operation_of(instance)
            if operation not in rows or index.of(operation)[0].id != instance.id:
                yield instance

    def held_back(self, key: BackOffKey, now: float) -> BackOff | None:
        """Return the back-off under a key while it lasts."""
        held = self.backoffs.get(key)
        return held if held is not None and now < held.until else None
