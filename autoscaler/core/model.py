"""What the policy sees and what it answers.  All times are seconds since the epoch, UTC."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from autoscaler.core.lifecycle import IntentState
from gateway.wire.resources import Shape
from gateway.wire.states import NodeState
from providers.base import Caps, Instance, Offer

# -- what is asked for ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OfferKey:
    """Names one offer of a provider."""

    type: str
    location: str

    def __str__(self) -> str:
        return f"{self.type}@{self.location}"


@dataclass(frozen=True)
class PoolPolicy:
    """One pool: nodes of one kind, scaled together."""

    name: str
    provider: str
    role: str
    min: int
    max: int
    offers: tuple[OfferKey, ...] = ()
    """In order of preference; empty for all of the provider's, the cheapest first."""
    idle_seconds: float = 600.0
    boot_seconds: float = 900.0
    """From the row to the registered node; later than that it has failed."""
    max_in_flight: int = 2
    """Most instances on their way at once."""
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
    """``cpus``, ``memory_mb``, ``disk_mb`` that its nodes are told to give away, whatever the offer has."""


@dataclass(frozen=True)
class FleetPolicy:
    """All pools and the rules that they share."""

    deployment: str
    pools: tuple[PoolPolicy, ...]
    creates_per_tick: int = 1
    stops_per_tick: int = 1
    orphan_seconds: float = 900.0
    """An instance that no row knows is deleted once it is older than this, by the provider's clock."""
    silent_seconds: float = 1800.0
    """A lost node is stopped once its last heartbeat is older than this."""
    delete_retry_seconds: float = 60.0


# -- what is there ----------------------------------------------------------------------------------------------------


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
    """By when its node must have registered."""
    attempts: int = 0
    next_try_at: float = 0.0
    """No call about it before this."""
    instance_id: str | None = None
    node_id: str | None = None
    drain_mark: float | None = None
    """The node's last heartbeat, by the gateway's clock, when it was closed; a later one proves what is there."""
    detail: str = ""
    """The reason of the last change, or the last error."""

    @property
    def offer(self) -> OfferKey:
        """What was ordered."""
        return OfferKey(self.type, self.location)

    @property
    def sighting(self) -> str:
        """Names this try in the record of what listings lacked: each new call has to be looked for anew."""
        return f"{self.operation_id}/{self.attempts}"


@dataclass(frozen=True)
class ProviderView:
    """What one provider said in this tick.  Without a complete listing it is blind, and nothing is concluded."""

    caps: Caps
    instances: tuple[Instance, ...] | None
    taken_at: float = 0.0
    """By the provider's clock."""
    offers: tuple[Offer, ...] = ()
    leftovers: tuple[str, ...] = ()
    problem: str = ""
    """Why it is blind."""


@dataclass(frozen=True)
class Node:
    """A node as the gateway knows it."""

    id: str
    instance: str
    pool: str
    state: NodeState
    total: Shape
    reserved: Shape
    sandboxes: int
    runtimes: frozenset[str]
    isolations: frozenset[str]
    heartbeat_at: float | None = None
    idle_since: float | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no sandbox has a row there."""
        return self.sandboxes == 0


@dataclass(frozen=True)
class Waiting:
    """One sandbox that waits for room."""

    shape: Shape
    runtime: str | None = None
    isolation: str = "gvisor"


@dataclass(frozen=True)
class BackOff:
    """Nothing is created under ``key`` before ``until``."""

    key: str
    until: float
    failures: int
    failed_at: float
    reason: str


@dataclass(frozen=True)
class World:
    """Everything that one plan is made from."""

    intents: tuple[Intent, ...] = ()
    """All that are not gone."""
    gone: frozenset[str] = frozenset()
    """Names of instances that went lately."""
    providers: Mapping[str, ProviderView] = field(default_factory=dict)
    nodes: tuple[Node, ...] | None = None
    """``None`` when the gateway could not be asked."""
    waiting: tuple[Waiting, ...] = ()
    backoffs: Mapping[str, BackOff] = field(default_factory=dict)
    learned: Mapping[tuple[str, str], Shape] = field(default_factory=dict)
    """What nodes of a pool and type really had, once one was seen."""
    clock_settled: bool = True
    """False for a while after the wall clock jumped: ages prove nothing then."""
    missing_before: frozenset[str] = frozenset()
    """`Intent.sighting` of those whose instance the last complete listing lacked."""
    strays_before: frozenset[str] = frozenset()
    """Ids of instances without a row in the last complete listing."""
    unknown_nodes_before: frozenset[str] = frozenset()
    """Operations whose node the gateway did not know at the last look."""


# -- what to do -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Boot:
    """Write an intent and create its instance."""

    pool: str
    provider: str
    offer: OfferKey
    boot_seconds: float
    reason: str


@dataclass(frozen=True)
class Retry:
    """Send the create of this intent, for the first time or again, under the same name."""

    operation_id: str
    reason: str


@dataclass(frozen=True)
class Drain:
    """Close the node of this intent."""

    operation_id: str
    node_id: str
    reason: str


@dataclass(frozen=True)
class CancelDrain:
    """Open it again."""

    operation_id: str
    node_id: str
    reason: str


@dataclass(frozen=True)
class Stop:
    """Delete the instance of this intent."""

    operation_id: str
    reason: str
    boot_failed: bool = False
    """Its pool backs off."""
    drained: bool = False
    """It is idle, and must still be when the delete is sent."""


@dataclass(frozen=True)
class Sweep:
    """Delete an instance that no row knows."""

    provider: str
    instance_id: str
    reason: str


@dataclass(frozen=True)
class Forget:
    """Tell the gateway that a node is no more."""

    node_id: str
    reason: str


Action = Boot | Retry | Drain | CancelDrain | Stop | Sweep | Forget


@dataclass(frozen=True)
class Wait:
    """Something that was not done, and why."""

    subject: str
    reason: str


@dataclass(frozen=True)
class Plan:
    """The answer of the policy: actions in the order in which they are to be done."""

    actions: tuple[Action, ...] = ()
    waits: tuple[Wait, ...] = ()


# -- what has become clear --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Move:
    """An intent is in another state than its row says."""

    operation_id: str
    to: IntentState
    reason: str
    instance_id: str | None = None
    node_id: str | None = None


@dataclass(frozen=True)
class Adopt:
    """A node of ours works that no row knows: the journal was lost.  This is its row."""

    intent: Intent
    reason: str


@dataclass(frozen=True)
class Learn:
    """What a node of this pool and type really has."""

    pool: str
    type: str
    shape: Shape


Finding = Move | Adopt | Learn
