"""What a plan consists of, and what a look at the world proves.  Each carries its reason."""

from dataclasses import dataclass, field
from decimal import Decimal

from autoscaler.core.pools import OfferKey
from autoscaler.core.states import IntentState
from autoscaler.core.world import Intent, Waiting
from gateway.wire.resources import Shape

# -- what to do -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Boot:
    """Write an intent and create its instance."""

    pool: str
    provider: str
    offer: OfferKey
    seconds: float
    """Until it must run."""
    reason: str
    price: Decimal | None = field(default=None, compare=False)
    item: Waiting | None = field(default=None, compare=False)
    """What it must have room for, so that another offer can stand in when this one cannot be had."""
    cause: str = field(default="", compare=False)
    """See `Intent.cause`."""
    spec: str = field(default="", compare=False)
    """`PoolPolicy.spec`, and the bundle that its node will install where that is known."""


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
    cause: str = field(default="", compare=False)
    """See `Intent.cause`."""


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
    """Delete an instance that no row knows, or a side resource that nothing uses."""

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
class Started:
    """The instance of a booting intent runs: from here on its node has time to register."""

    operation_id: str
    deadline: float
    reason: str


@dataclass(frozen=True)
class Extended:
    """A booting intent is late, and its provider has just reported a step: it gets more time, this once."""

    operation_id: str
    deadline: float
    reason: str


@dataclass(frozen=True)
class Adopt:
    """A node of ours works that no row knows: the journal was lost.  This is its row."""

    intent: Intent
    reason: str


LessonKey = tuple[str, str, str]
"""Pool, type, and `PoolPolicy.spec`: with other settings a node gives away something else of the same machine."""


@dataclass(frozen=True)
class Learn:
    """What a node of this pool and type, made from this spec, really has."""

    pool: str
    type: str
    spec: str
    shape: Shape

    @property
    def key(self) -> LessonKey:
        """Under which it is looked up."""
        return self.pool, self.type, self.spec


Finding = Move | Started | Extended | Adopt | Learn
