"""One plan in the making: the world, made quick to ask, and what has been decided so far."""

from collections import Counter
from collections.abc import Iterable
from decimal import Decimal

from autoscaler.core import cost
from autoscaler.core.lookup import listed, node_of, nodes_by_instance, rows_by_pool
from autoscaler.core.model import (
    Action,
    Boot,
    FleetPolicy,
    Intent,
    Node,
    OfferKey,
    PoolPolicy,
    Refusal,
    RefusalKind,
    Wait,
    WaitKind,
    World,
)
from autoscaler.core.offers import Ware, expected_shape, wares
from autoscaler.core.packing import Bin, Vector, vector
from autoscaler.core.states import KEPT, STARTING, IntentState
from gateway.wire.states import NodeState

S = IntentState


class Draft:
    """What the rules of one plan share.

    Attributes:
        actions: what is to be done, in order.
        waits: what is not, and why.
        booted: the instances that this plan orders: pool, what is bought, and the room that it will have.
        reopened: how many closed nodes of each pool this plan opens again.
        builders_of: how many builder nodes each pool is to have.
    """

    def __init__(
        self, world: World, policy: FleetPolicy, now: float, waits: list[Wait], failed: frozenset[str] = frozenset()
    ) -> None:
        self.world = world
        self.policy = policy
        self.now = now
        self.waits = waits
        self.failed = failed
        self.actions: list[Action] = []
        self.booted: list[tuple[PoolPolicy, Ware, Bin]] = []
        self.reopened: Counter[str] = Counter()
        self.builders_of: Counter[str] = Counter()
        self.refusals: dict[str, Refusal] = {}
        """Of whole pools; within one plan a limit that is reached stays reached."""
        self._bills: dict[str | None, tuple[Decimal | None, Decimal]] = {}
        self.nodes: dict[str, Node] = nodes_by_instance(world)
        self.listed = listed(world)
        self._engines: dict[str, tuple[frozenset[str], frozenset[str]]] = {}
        self._gives: dict[str, dict[OfferKey, Vector]] = {}
        self._rows = rows_by_pool(world.intents)
        self._wares = {pool.name: wares(world, pool, now) for pool in policy.pools}

    def rows(self, pool: PoolPolicy, states: Iterable[IntentState] | None = None) -> list[Intent]:
        """Rows of a pool, in any state that is not gone by default."""
        mine = self._rows.get(pool.name, [])
        if states is None:
            return mine
        wanted = frozenset(states)
        return [intent for intent in mine if intent.state in wanted]

    def node(self, intent: Intent) -> Node | None:
        """The node of a row."""
        return node_of(intent, self.nodes)

    def wares(self, pool: PoolPolicy) -> tuple[Ware, ...]:
        """What a pool may buy, in its order of preference."""
        return self._wares[pool.name]

    def engines(self, pool: PoolPolicy) -> tuple[frozenset[str], frozenset[str]]:
        """Runtimes and isolations that a pool has: as its nodes report them, and while there is none, as it promises.

        A promise that its image does not keep would else buy node after node for what none of them can run.
        """
        if pool.name not in self._engines:
            rows = [intent for intent in self.rows(pool, {S.READY}) if intent.base == pool.spec]
            nodes = [node for intent in rows if (node := self.node(intent)) is not None]
            self._engines[pool.name] = (
                frozenset().union(*(node.runtimes for node in nodes)) if nodes else pool.runtimes,
                frozenset().union(*(node.isolations for node in nodes)) if nodes else pool.isolations,
            )
        return self._engines[pool.name]

    def booting(self, pool: PoolPolicy) -> int:
        """How many instances this plan orders for a pool."""
        return sum(1 for booted, _, _ in self.booted if booted is pool)

    def starting(self, pool: PoolPolicy) -> int:
        """How many are on their way, those of this plan included."""
        return len(self.rows(pool, STARTING)) + self.booting(pool)

    def kept(self, pool: PoolPolicy) -> int:
        """How many are meant to go on, those of this plan included."""
        return len(self.rows(pool, KEPT)) + self.booting(pool) + self.reopened[pool.name]

    def floor(self, pool: PoolPolicy) -> int:
        """How many a pool keeps whatever waits."""
        return min(pool.max, max(pool.min, self.builders_of[pool.name]))

    def bill(self, pool: PoolPolicy | None) -> tuple[Decimal | None, Decimal]:
        """Of the rows of a pool or of the whole fleet: euro an hour, if known, and what they have cost this month."""
        name = pool.name if pool is not None else None
        if name not in self._bills:
            rows = self.rows(pool) if pool is not None else self.world.intents
            self._bills[name] = cost.rate(rows), cost.cost_of_all(rows, self.now)
        return self._bills[name]

    def boots(self, pool: PoolPolicy) -> bool:
        """Whether this plan boots for a pool."""
        return any(isinstance(action, Boot) and action.pool == pool.name for action in self.actions)

    def wait(self, subject: str, kind: WaitKind | RefusalKind, reason: str) -> None:
        """Record something that is not done."""
        self.waits.append(Wait(subject, kind, reason))

    def ready_bins(self) -> dict[str, Bin]:
        """Free room of every node that takes sandboxes, ours or not, by the name of its instance.

        A node counts from its first heartbeat on, though its row is not ready while its provider cannot be seen.
        """
        kept = {intent.name for intent in self.world.intents if intent.state is S.READY or self._has_come(intent)}
        not_ready = {intent.name for intent in self.world.intents} - kept
        builders = {pool.name for pool in self.policy.pools if not pool.hosts_sandboxes}
        return {
            node.instance: room(node)
            for node in self.nodes.values()
            if node.state is NodeState.READY and node.instance not in not_ready and node.pool not in builders
        }

    def coming_bins(self) -> list[Bin]:
        """Room of everything that is on its way, not there yet and not late: full or nothing."""
        found: list[Bin] = []
        for pool in self.policy.pools:
            if not pool.hosts_sandboxes:
                continue
            for intent in self.rows(pool, STARTING):
                gives = self._to_give(pool, intent)
                if gives is not None and self.now <= intent.deadline and not self._has_come(intent):
                    found.append(Bin(intent.name, gives, pool.runtimes, pool.isolations, pool.name))
        return found

    def _has_come(self, intent: Intent) -> bool:
        """Whether a row that is on its way has a node that sandboxes are placed on already."""
        node = self.node(intent) if intent.state in STARTING else None
        return node is not None and node.state is NodeState.READY and node.heartbeat_at is not None

    def _to_give(self, pool: PoolPolicy, intent: Intent) -> Vector | None:
        """What an instance on its way will have, though its offer may not be bought any more."""
        if pool.name not in self._gives:
            view = self.world.providers.get(pool.provider)
            sold = view.offers if view is not None else ()
            self._gives[pool.name] = {
                OfferKey(offer.type, offer.location): vector(expected_shape(self.world, pool, offer)) for offer in sold
            }
        if (gives := self._gives[pool.name].get(intent.offer)) is not None:
            return gives
        seen = self.world.learned.get((pool.name, intent.type, pool.spec))
        return vector(seen) if seen is not None else None


def room(node: Node) -> Bin:
    """The free room of a node."""
    total, taken = vector(node.total), vector(node.reserved)
    free = (
        max(0.0, total[0] - taken[0]),
        max(0.0, total[1] - taken[1]),
        max(0.0, total[2] - taken[2]),
        max(0.0, total[3] - taken[3]),
        max(0.0, total[4] - taken[4]),
    )
    return Bin(node.id, free, node.runtimes, node.isolations, node.pool)
