"""The values of the policy in one place: what it sees (`World`), what is asked for, and what it answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from autoscaler.core.actions import Action as Action
from autoscaler.core.actions import Adopt as Adopt
from autoscaler.core.actions import Boot as Boot
from autoscaler.core.actions import CancelDrain as CancelDrain
from autoscaler.core.actions import Drain as Drain
from autoscaler.core.actions import Extended as Extended
from autoscaler.core.actions import Finding as Finding
from autoscaler.core.actions import Forget as Forget
from autoscaler.core.actions import Learn as Learn
from autoscaler.core.actions import LessonKey as LessonKey
from autoscaler.core.actions import Move as Move
from autoscaler.core.actions import Plan as Plan
from autoscaler.core.actions import Refusal as Refusal
from autoscaler.core.actions import RefusalKind as RefusalKind
from autoscaler.core.actions import Retry as Retry
from autoscaler.core.actions import Started as Started
from autoscaler.core.actions import Stop as Stop
from autoscaler.core.actions import Sweep as Sweep
from autoscaler.core.actions import Wait as Wait
from autoscaler.core.actions import WaitKind as WaitKind
from autoscaler.core.pools import FleetPolicy as FleetPolicy
from autoscaler.core.pools import OfferKey as OfferKey
from autoscaler.core.pools import Order as Order
from autoscaler.core.pools import PoolPolicy as PoolPolicy
from autoscaler.core.pools import WarmFloor as WarmFloor
from autoscaler.core.world import BackOff as BackOff
from autoscaler.core.world import BackOffKey as BackOffKey
from autoscaler.core.world import BackOffKind as BackOffKind
from autoscaler.core.world import Intent as Intent
from autoscaler.core.world import Node as Node
from autoscaler.core.world import ProviderView as ProviderView
from autoscaler.core.world import Waiting as Waiting
from gateway.wire.resources import Shape


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
    """All that want room, prepared bursts included."""
    builders: int = 0
    """Builder nodes that builds need or that were asked for ahead."""
    backoffs: Mapping[BackOffKey, BackOff] = field(default_factory=dict)
    learned: Mapping[LessonKey, Shape] = field(default_factory=dict)
    """What nodes of a pool and type that were made from one spec really had, once one was seen."""
    bundle: str = ""
    """What new nodes install, in short; empty while it is not known."""
    spent: Mapping[str, Decimal] = field(default_factory=dict)
    """Euro that instances which are gone have cost in this month, by pool."""
    clock_settled: bool = True
    """False for a while after the wall clock jumped: ages prove nothing then."""
    synced: bool = True
    """False from the start until every node has had the time to be heard of."""
    missing_before: frozenset[str] = frozenset()
    """`Intent.sighting` of those whose instance the last complete listing lacked."""
    strays_before: frozenset[str] = frozenset()
    """Ids of instances without a row in the last complete listing."""
    unknown_nodes_before: Mapping[str, float] = field(default_factory=dict)
    """Operations whose node the gateway did not know at the last look, with the seconds for which that had lasted."""
    leftovers_before: frozenset[str] = frozenset()
    """Side resources that have been left over for longer than `FleetPolicy.orphan_seconds`."""
