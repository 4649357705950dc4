"""What is there: rows of the journal, listings, nodes and demand.  All times are seconds since the epoch, UTC."""

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from autoscaler.core.pools import OfferKey
from autoscaler.core.states import IntentState
from gateway.wire.resources import Shape
from gateway.wire.states import NodeState
from providers.base import Caps, Instance, Offer

DRIFT = "drift"
PRESSURE = "pressure"


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
    """Why it was booted or is being closed, where a rule depends on it: ``pressure``, ``drift``."""
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
    is_resting: bool = False
    """It is blind only because it was listed a moment ago."""


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
    pressed_for: float = 0.0
    """Seconds for which it has been under pressure without a break."""
    pressed_at: float | None = None
    """When it was last seen under pressure."""
    operation_id: str | None = None
    """The order that its instance came from, where its join token was bound to one."""

    @property
    def is_empty(self) -> bool:
        """Whether no sandbox has a row there."""
        return self.sandboxes == 0


@dataclass(frozen=True)
class Waiting:
    """Sandboxes of one shape that want room: they wait, were asked for ahead, or are a pool's warm floor."""

    shape: Shape
    runtime: str | None = None
    isolation: str = "gvisor"
    count: int = 1
    since: float | None = None
    """Since when, by the gateway's clock; ``None`` for what is not a waiting sandbox."""
    pool: str | None = None
    """The only pool that helps; ``None`` for any."""


class BackOffKind(StrEnum):
    """What a back-off holds back."""

    PROVIDER = "provider"  # every create at a provider
    LOCATION = "location"  # creates in one location of it
    OFFER = "offer"  # creates of one offer of it
    POOL = "pool"  # creates for one pool
    CLOSING = "closing"  # the scale-down of one pool
    SWEEP = "sweep"  # the delete of one thing that has no row
    CLOCK = "clock"  # every conclusion from an age


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


@dataclass(frozen=True)
class BackOff:
    """What ``key`` names is not tried before ``until``."""

    key: BackOffKey
    until: float
    failures: int
    failed_at: float
    reason: str
