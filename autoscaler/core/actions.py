"""Actions of a plan, why others are put off, and findings about the world.

Each carries its reason, a sentence for people: no rule reads it, and two that differ in nothing else are equal.
"""

from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum

from autoscaler.core.doubts import Doubt
from autoscaler.core.pools import OfferKey
from autoscaler.core.states import IntentState
from autoscaler.core.world import DemandItem, Intent, LearnedKey
from gateway.wire.resources import Shape

# -- actions ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Boot:
    """Write an intent and create its instance."""

    pool: str
    provider: str
    offer: OfferKey
    seconds: float
    """Until it must run."""
    reason: str = field(compare=False)
    price: Decimal | None = field(default=None, compare=False)
    item: DemandItem | None = field(default=None, compare=False)
    """What it must have room for, so that another offer can stand in when this one cannot be had."""
    cause: str = field(default="", compare=False)
    """See `Intent.cause`."""
    spec: str = field(default="", compare=False)
    """`PoolPolicy.spec`, and the bundle that its node will install where that is known."""


@dataclass(frozen=True)
class Retry:
    """Send the create of this intent, for the first time or again, under the same name."""

    operation_id: str
    reason: str = field(compare=False)


@dataclass(frozen=True)
class Drain:
    """Close the node of this intent to new sandboxes."""

    operation_id: str
    node_id: str
    reason: str = field(compare=False)
    cause: str = field(default="", compare=False)
    """See `Intent.cause`."""


@dataclass(frozen=True)
class CancelDrain:
    """Open the node of this intent again."""

    operation_id: str
    node_id: str
    reason: str = field(compare=False)


@dataclass(frozen=True)
class Stop:
    """Delete the instance of this intent."""

    operation_id: str
    reason: str = field(compare=False)
    boot_failed: bool = False
    """Its pool backs off."""
    drained: bool = False
    """It is idle, and must still be when the delete is sent."""


@dataclass(frozen=True)
class Sweep:
    """Delete an instance without a row, or a side resource that nothing uses."""

    provider: str
    instance_id: str
    reason: str = field(compare=False)


@dataclass(frozen=True)
class Forget:
    """Remove the node of an instance that is gone from the gateway."""

    node_id: str
    reason: str = field(compare=False)


Action = Boot | Retry | Drain | CancelDrain | Stop | Sweep | Forget


# -- refusals and waits -----------------------------------------------------------------------------------------------


class RefusalKind(StrEnum):
    """Why nothing is booted, for a pool or for all that waits."""

    RESTING = "resting"  # the provider was listed a moment ago
    TICK_FULL = "tick_full"  # no more boots in this tick
    IN_FLIGHT = "in_flight"  # as many are on their way as may be
    YOUNG = "young"  # a burst may still be coming in
    POOL_FULL = "pool_full"
    FLEET_FULL = "fleet_full"
    BLIND = "blind"  # the provider could not be listed
    FAILED_BOOT = "failed_boot"  # an instance of the pool has just failed to become a node
    BACKOFF = "backoff"
    UNAVAILABLE = "unavailable"  # the provider is out of stock
    PRICE = "price"  # a price cap, or a price that is not known
    UNSOLD = "unsold"  # the provider sells none of the pool's offers, or not for much longer
    UNFIT = "unfit"  # nothing that may be bought has room for it, or can run it

    @property
    def is_brief(self) -> bool:
        """Whether it ends by itself within a few ticks: waiting is cheaper than an offer of second choice."""
        return self in (RefusalKind.RESTING, RefusalKind.TICK_FULL, RefusalKind.IN_FLIGHT)


class WaitKind(StrEnum):
    """Why something else is put off."""

    BLIND_PROVIDER = "blind_provider"  # its provider could not be listed
    NO_GATEWAY = "no_gateway"  # the gateway cannot be asked
    GATEWAY_AMNESIA = "gateway_amnesia"  # the gateway may have lost its database
    NOT_SYNCED = "not_synced"  # the process has just started
    CLOCK_JUMP = "clock_jump"  # ages prove nothing
    UNKNOWN_PROVIDER = "unknown_provider"  # not in the settings
    UNKNOWN_POOL = "unknown_pool"  # not in the settings
    RETRY_LATER = "retry_later"  # a call is repeated at a set time
    SECOND_LISTING = "second_listing"  # one more listing has to show that it is absent
    LATE_CREATE = "late_create"  # an instance may still come of it
    DELETING = "deleting"  # a delete was sent
    SILENT_NODE = "silent_node"  # its node is lost, but not for long enough
    UNPROVED_DRAIN = "unproved_drain"  # its node's next heartbeat has to show that it is empty
    STUCK_DRAIN = "stuck_drain"  # closed for long, and still not empty
    ORPHAN_AT_WORK = "orphan_at_work"  # an instance without a row has a node that works
    ORPHAN_YOUNG = "orphan_young"  # an instance or side resource without a row, not old enough
    BACKOFF = "backoff"
    BUILDERS_SHORT = "builders_short"  # no pool may have the builders that builds want
    PRESSURE_FULL = "pressure_full"  # as many nodes were added for pressure as may be
    IDLE_WANTED = "idle_wanted"  # what waits fits on the idle node
    IDLE_YOUNG = "idle_young"  # idle, but not for long enough
    IDLE_QUEUED = "idle_queued"  # other idle nodes are closed first
    IDLE_PAID = "idle_paid"  # the started hour is paid
    HOLD = "hold"  # the pool grew, or was under pressure, a moment ago
    REPLACING = "replacing"  # another out-of-date node, or what is on its way, comes first
    NOT_UNDERSTOOD = "not_understood"  # left out, so that the rest goes on; a person has to look at it


@dataclass(frozen=True)
class BootRefusal:
    """Why nothing is booted; the text is for people only."""

    kind: RefusalKind
    text: str


@dataclass(frozen=True)
class Wait:
    """Something that was not done, and why; the reason is for people only."""

    subject: str
    kind: WaitKind | RefusalKind
    reason: str = field(compare=False)


@dataclass(frozen=True)
class Plan:
    """What to do in one tick, in the order in which it is to be done, and what not."""

    actions: tuple[Action, ...] = ()
    waits: tuple[Wait, ...] = ()


# -- findings ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Move:
    """An intent is in another state than its row says."""

    operation_id: str
    to: IntentState
    reason: str = field(compare=False)
    instance_id: str | None = None
    node_id: str | None = None

    @property
    def event(self) -> str:
        """The kind of the event that it leaves in the journal."""
        return self.to.value


@dataclass(frozen=True)
class BootStarted:
    """The instance of a booting intent runs: from here on its node has time to register."""

    operation_id: str
    deadline: float
    reason: str = field(compare=False)

    @property
    def event(self) -> str:
        """See `Move.event`."""
        return "running"


@dataclass(frozen=True)
class BootExtended:
    """A booting intent is late, and its provider has just reported a step: it gets more time, this once."""

    operation_id: str
    deadline: float
    reason: str = field(compare=False)

    @property
    def event(self) -> str:
        """See `Move.event`."""
        return "extended"


@dataclass(frozen=True)
class Adopt:
    """A node of ours works without a row: the journal was lost.  This is its row."""

    intent: Intent
    reason: str = field(compare=False)


@dataclass(frozen=True)
class Learn:
    """What a node of this pool and type, made from this spec, really has."""

    pool: str
    type: str
    spec: str
    shape: Shape

    @property
    def key(self) -> LearnedKey:
        """Under which `World.learned` has it."""
        return self.pool, self.type, self.spec


Finding = Move | BootStarted | BootExtended | Adopt | Learn | Doubt
