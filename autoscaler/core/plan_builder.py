"""The builder of one plan: what its rules share, and what they have decided so far."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from decimal import Decimal
from functools import cached_property

from autoscaler.core import cost
from autoscaler.core.actions import Action, BootRefusal, CancelDrain, Drain, Plan, RefusalKind, Stop, Wait, WaitKind
from autoscaler.core.offers import PoolOffer, expected_shape, pool_offers
from autoscaler.core.packing import Bin, Vector, vector
from autoscaler.core.pools import FleetPolicy, OfferKey, PoolPolicy
from autoscaler.core.states import KEPT, STARTING, IntentState
from autoscaler.core.world import Intent, NodeView, World
from gateway.wire.states import NodeState

S = IntentState


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
        self._offers = {pool.name: pool_offers(world, pool, now) for pool in policy.pools}
        self._bills: dict[str | None, tuple[Decimal | None, Decimal]] = {}
        self._engines: dict[str, tuple[frozenset[str], frozenset[str]]] = {}
        self._expected: dict[str, dict[OfferKey, Vector]] = {}

    def wait(self, subject: str, kind: WaitKind | RefusalKind, reason: str) -> None:
        """Record something that is not done."""
        self.waits.append(Wait(subject, kind, reason))

    def finish(self) -> Plan:
        """Return the plan.  What it opens again it does not delete."""
        kept = {action.operation_id for action in self.actions if isinstance(action, CancelDrain)}
        actions = (each for each in self.actions if not (isinstance(each, Stop) and each.operation_id in kept))
        return Plan(tuple(actions), tuple(self.waits))

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

    def engines(self, pool: PoolPolicy) -> tuple[frozenset[str], frozenset[str]]:
        """Return runtimes and isolations of a pool: as its nodes report them, and while it has none, as it promises.

        A promise that its image does not keep would else buy node after node for what none of them can run.
        """
        if pool.name not in self._engines:
            rows = [intent for intent in self.rows(pool, {S.READY}) if intent.base == pool.spec]
            nodes = [node for intent in rows if (node := self.world.node_of(intent)) is not None]
            self._engines[pool.name] = (
                frozenset().union(*(node.runtimes for node in nodes)) if nodes else pool.runtimes,
                frozenset().union(*(node.isolations for node in nodes)) if nodes else pool.isolations,
            )
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
            for node in self.world.nodes_by_instance.values()
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
            self._expected[pool.name] = {
                OfferKey(offer.type, offer.location): vector(expected_shape(self.world, pool, offer))
                for offer in (view.offers if view is not None else ())
            }
        if (room := self._expected[pool.name].get(intent.offer)) is not None:
            return room
        seen = self.world.learned.get((pool.name, intent.type, pool.spec))
        return vector(seen) if seen is not None else None


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
