"""The builder of one plan: what its rules share, and what they have decided so far."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from functools import cached_property, partial
from typing import Final, TypeGuard, TypeVar

from autoscaler.core import cost
from autoscaler.core.actions import Action, BootRefusal, CancelDrain, Drain, Plan, RefusalKind, Stop, Wait, WaitKind
from autoscaler.core.doubts import MOST, Doubt, unclear_amounts
from autoscaler.core.offers import PoolOffer, engines, expected_shape, pool_offers
from autoscaler.core.packing import Bin, Vector, vector
from autoscaler.core.pools import Engine, FleetPolicy, OfferKey, PoolPolicy
from autoscaler.core.states import KEPT, STARTING, IntentState
from autoscaler.core.world import DemandItem, Intent, NodeView, World
from gateway.wire.states import NodeState

S = IntentState
EVERY_POOL: Final = "*"
"""In the place of a pool's name; no pool can have it."""
T = TypeVar("T")


class PlanBuilder:
    """Collects the decisions of one plan, and answers what the rules ask of rows, offers and money.

    Attributes:
        actions: what is to be done, in order.
        waits: what is not, and why.
        booted: the instances that this plan orders: pool, what is bought, and the room that it will have.
        failing: pools of which this plan gives up an instance that did not become a node.
        reopened: how many closed nodes of each pool this plan opens again.
        builders_of: how many builder nodes each pool is to have.
        refusals: of whole pools; within one plan a limit that is reached stays reached.
    """

    def __init__(self, world: World, policy: FleetPolicy, now: float) -> None:
        self.world = world
        self.policy = policy
        self.now = now
        self.actions: list[Action] = []
        self.waits: list[Wait] = []
        self.booted: list[tuple[PoolPolicy, PoolOffer, Bin]] = []
        self.failing: set[str] = set()
        self.reopened: Counter[str] = Counter()
        self.builders_of: Counter[str] = Counter()
        self.refusals: dict[str, BootRefusal] = {}
        self._rows: defaultdict[str, list[Intent]] = defaultdict(list)
        for intent in world.intents:
            self._rows[intent.pool].append(intent)
        self._doubted: set[str] = set()
        self._offers = {
            pool.name: self.attempt(f"pool {pool.name}", partial(pool_offers, world, pool, now), pool.name) or ()
            for pool in policy.pools
        }
        self._bills: dict[str | None, tuple[Decimal | None, Decimal]] = {}
        self._engines: dict[str, frozenset[Engine]] = {}
        self._expected: dict[str, dict[OfferKey, Vector]] = {}

    def wait(self, subject: str, kind: WaitKind | RefusalKind, reason: str) -> None:
        """Record something that is not done."""
        self.waits.append(Wait(subject, kind, reason))

    def finish(self) -> Plan:
        """Return the plan.  What it opens again it does not delete, and what is doubted it does not scale down."""
        kept = {action.operation_id for action in self.actions if isinstance(action, CancelDrain)}
        pools = self._rows.keys() if EVERY_POOL in self._doubted else self._doubted
        doubted = {intent.operation_id for pool in pools for intent in self._rows.get(pool, ())}
        actions = (
            each
            for each in self.actions
            if not (isinstance(each, Stop) and each.operation_id in kept)
            and not (_is_scale_down(each) and each.operation_id in doubted)
        )
        return Plan(tuple(actions), tuple(self.waits))

    # -- doubts -------------------------------------------------------------------------------------------------------

    def doubt(self, doubt: Doubt) -> None:
        """Record what is left out of this plan; its pool is not scaled down."""
        self.wait(doubt.subject, WaitKind.NOT_UNDERSTOOD, doubt.reason)
        if doubt.pool is not None:
            self._doubted.add(doubt.pool)

    def attempt(self, subject: str, rule: Callable[[], T], pool: str | None = None) -> T | None:
        """Return what a rule makes of one thing; one that breaks is left out of this plan, and the others go on.

        Args:
            subject: what the rule is about.
            rule: decides.
            pool: not scaled down where the rule breaks; may be `EVERY_POOL`.
        """
        try:
            return rule()
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not stop the fleet
            self.doubt(Doubt.of(subject, error, pool))
            return None

    @cached_property
    def waiting(self) -> tuple[DemandItem, ...]:
        """What wants room and can be understood."""
        return tuple(self._clear_wishes())

    @cached_property
    def nodes(self) -> tuple[NodeView, ...]:
        """The nodes whose room can be counted with."""
        return tuple(self._clear_nodes())

    def _clear_wishes(self) -> Iterator[DemandItem]:
        problems: list[str] = []
        for item in self.world.waiting:
            try:
                problem = unclear_amounts(item.shape)
                if problem is None and not 0 < item.count <= MOST:
                    problem = f"there cannot be {item.count!r} of it"
            except Exception as error:  # noqa: BLE001 - as in `attempt`, which is too slow for every waiting sandbox
                problem = f"{type(error).__name__}: {error}"
            if problem is None:
                yield item
            else:
                problems.append(problem)
        if problems:
            why = f"{len(problems)} wishes are not understood and left out; of the first, {problems[0]}"
            self.doubt(Doubt("demand", why))

    def _clear_nodes(self) -> Iterator[NodeView]:
        for node in self.world.nodes_by_instance.values():
            known = len(self.waits)
            subject = f"node {node.id}"
            for shape in (node.total, node.reserved):
                problem = self.attempt(subject, partial(unclear_amounts, shape), node.pool)
                if problem is not None:
                    self.doubt(Doubt(subject, f"it is not understood and counts for nothing: {problem}", node.pool))
            if len(self.waits) == known:
                yield node

    # -- rows ---------------------------------------------------------------------------------------------------------

    def rows(self, pool: PoolPolicy, states: Iterable[IntentState] | None = None) -> list[Intent]:
        """Return the rows of a pool, in any state that is not gone by default."""
        mine = self._rows[pool.name]
        if states is None:
            return mine
        wanted = frozenset(states)
        return [intent for intent in mine if intent.state in wanted]

    def open_nodes(self, pool: PoolPolicy) -> list[tuple[Intent, NodeView]]:
        """Return the ready rows of a pool whose nodes take sandboxes, and are not closed by this plan."""
        closing = {action.operation_id for action in self.actions if isinstance(action, Drain)}
        rows = [(intent, self.world.node_of(intent)) for intent in self.rows(pool, {S.READY})]
        return [
            (intent, node)
            for intent, node in rows
            if node is not None and node.state is NodeState.READY and intent.operation_id not in closing
        ]

    def booting(self, pool: PoolPolicy) -> int:
        """Return how many instances this plan orders for a pool."""
        return sum(1 for booted, _, _ in self.booted if booted is pool)

    def starting(self, pool: PoolPolicy) -> int:
        """Return how many instances are on their way, those of this plan included."""
        return len(self.rows(pool, STARTING)) + self.booting(pool)

    def kept(self, pool: PoolPolicy) -> int:
        """Return how many instances are meant to go on, those of this plan included."""
        return len(self.rows(pool, KEPT)) + self.booting(pool) + self.reopened[pool.name]

    def floor(self, pool: PoolPolicy) -> int:
        """Return how many instances a pool keeps whatever waits."""
        return min(pool.max, max(pool.min, self.builders_of[pool.name]))

    # -- offers and money ---------------------------------------------------------------------------------------------

    def offers(self, pool: PoolPolicy) -> tuple[PoolOffer, ...]:
        """Return what a pool may buy, in its order of preference."""
        return self._offers[pool.name]

    def engines(self, pool: PoolPolicy) -> frozenset[Engine]:
        """Return what a pool runs; see `autoscaler.core.offers.engines`."""
        if pool.name not in self._engines:
            self._engines[pool.name] = engines(self.world, pool)
        return self._engines[pool.name]

    def bill(self, pool: PoolPolicy | None) -> tuple[Decimal | None, Decimal]:
        """Return what the rows of a pool, or of the whole fleet, cost an hour, if known, and have cost this month."""
        name = pool.name if pool is not None else None
        if name not in self._bills:
            rows = self.rows(pool) if pool is not None else self.world.intents
            self._bills[name] = cost.rate(rows), cost.cost_of_all(rows, self.now)
        return self._bills[name]

    # -- room ---------------------------------------------------------------------------------------------------------

    @cached_property
    def ready_bins(self) -> dict[str, Bin]:
        """Free room of every node that takes sandboxes, ours or not, by the name of its instance.

        A node counts from its first heartbeat on, though its row is not ready while its provider is blind.
        """
        kept = {intent.name for intent in self.world.intents if intent.state is S.READY or self._has_joined(intent)}
        not_ready = {intent.name for intent in self.world.intents} - kept
        builders = {pool.name for pool in self.policy.pools if not pool.hosts_sandboxes}
        return {
            node.instance: free_room(node)
            for node in self.nodes
            if node.state is NodeState.READY and node.instance not in not_ready and node.pool not in builders
        }

    def coming_bins(self) -> list[Bin]:
        """Return the room of everything that is on its way, not there yet and not late: full or nothing."""
        found: list[Bin] = []
        for pool in self.policy.pools:
            if not pool.hosts_sandboxes:
                continue
            for intent in self.rows(pool, STARTING):
                room = self._expected_room(pool, intent)
                if room is not None and self.now <= intent.deadline and not self._has_joined(intent):
                    found.append(Bin(intent.name, room, pool.runtimes, pool.isolations, pool.name))
        return found

    def is_idle(self, intent: Intent, node: NodeView) -> bool:
        """Return whether a node is open and empty, and this plan has put nothing there."""
        room = self.ready_bins.get(intent.name)
        return node.state is NodeState.READY and node.is_empty and not (room is not None and room.used)

    def _has_joined(self, intent: Intent) -> bool:
        """Return whether a row that is on its way has a node that sandboxes are placed on already."""
        node = self.world.node_of(intent) if intent.state in STARTING else None
        return node is not None and node.state is NodeState.READY and node.heartbeat_at is not None

    def _expected_room(self, pool: PoolPolicy, intent: Intent) -> Vector | None:
        """Return what an instance on its way will have, though its offer may not be bought any more."""
        if pool.name not in self._expected:
            view = self.world.providers.get(pool.provider)
            self._expected[pool.name] = {}
            for offer in view.offers if view is not None else ():
                shape = self.attempt(f"pool {pool.name}", partial(expected_shape, self.world, pool, offer), pool.name)
                if shape is not None:
                    self._expected[pool.name][OfferKey(offer.type, offer.location)] = vector(shape)
        if (room := self._expected[pool.name].get(intent.offer)) is not None:
            return room
        seen = self.world.learned.get((pool.name, intent.type, pool.spec))
        return vector(seen) if seen is not None else None


def _is_scale_down(action: Action) -> TypeGuard[Drain | Stop]:
    """Return whether an action lets go of room; what has failed is deleted in any case."""
    return isinstance(action, Drain) or (isinstance(action, Stop) and action.drained)


def free_room(node: NodeView) -> Bin:
    """Return the free room of a node."""
    total, taken = vector(node.total), vector(node.reserved)
    free = (
        max(0.0, total[0] - taken[0]),
        max(0.0, total[1] - taken[1]),
        max(0.0, total[2] - taken[2]),
        max(0.0, total[3] - taken[3]),
        max(0.0, total[4] - taken[4]),
    )
    return Bin(node.id, free, node.runtimes, node.isolations, node.pool)
