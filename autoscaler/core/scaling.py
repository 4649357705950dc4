"""How many nodes: demand, minimum and maximum; idle nodes beyond the minimum are closed, then stopped."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from autoscaler.core import backoff
from autoscaler.core.lifecycle import KEPT, STARTING, IntentState
from autoscaler.core.model import (
    Action,
    Boot,
    CancelDrain,
    Drain,
    FleetPolicy,
    Intent,
    Node,
    OfferKey,
    PoolPolicy,
    Wait,
    Waiting,
    World,
)
from autoscaler.core.packing import Bin, largest_first, pack
from autoscaler.core.settle import nodes_by_instance
from gateway.wire.resources import Shape
from gateway.wire.states import NodeState
from providers.base import Offer

S = IntentState


@dataclass
class _Draft:
    """One plan in the making."""

    world: World
    policy: FleetPolicy
    now: float
    waits: list[Wait]
    failed: frozenset[str]
    actions: list[Action] = field(default_factory=list)
    new: list[tuple[PoolPolicy, Bin]] = field(default_factory=list)
    """Nodes that this plan boots."""
    reopened: Counter[str] = field(default_factory=Counter)
    """How many nodes of each pool this plan opens again."""

    def rows(self, pool: PoolPolicy, states: Iterable[IntentState] | None = None) -> list[Intent]:
        """Rows of a pool, in any state that is not gone by default."""
        mine = [intent for intent in self.world.intents if intent.pool == pool.name]
        return mine if states is None else [intent for intent in mine if intent.state in set(states)]

    def booting(self, pool: PoolPolicy) -> int:
        """How many nodes this plan boots for a pool."""
        return sum(1 for booted, _ in self.new if booted is pool)


def scale(
    world: World, policy: FleetPolicy, now: float, waits: list[Wait], failed: frozenset[str] = frozenset()
) -> list[Action]:
    """Boots, drains and cancelled drains of all pools; none boots of the pools in ``failed``.

    Waiting sandboxes are put into free room of nodes, then of closed ones that can be opened again, then of those on
    their way, and only then into new ones.  What is on its way counts in full until its deadline, and for nothing
    after it; against the maximum it counts until it is proved gone.
    """
    draft = _Draft(world, policy, now, waits, failed)
    nodes = nodes_by_instance(world)
    ready = _ready_bins(draft, nodes)
    left = pack(world.waiting, list(ready.values()))
    left = _reopen(draft, nodes, left)
    left = pack(left, _coming_bins(draft))
    for pool in policy.pools:
        missing = pool.min - len(draft.rows(pool, KEPT)) - draft.reopened[pool.name]
        for _ in range(max(0, missing)):
            _boot(draft, pool, None, f"the pool keeps {pool.min}")
    _boot_for(draft, left)
    for pool in policy.pools:
        _close_idle(draft, pool, nodes, ready)
    return draft.actions


# -- room that is there -----------------------------------------------------------------------------------------------


def _ready_bins(draft: _Draft, nodes: dict[str, Node]) -> dict[str, Bin]:
    """Free room of every node that takes sandboxes, ours or not, by the name of its instance."""
    draining = {intent.name for intent in draft.world.intents if intent.state is not S.READY}
    return {
        node.instance: Bin(node.id, node.total.minus(node.reserved), node.runtimes, node.isolations)
        for node in nodes.values()
        if node.state is NodeState.READY and node.instance not in draining
    }


def _reopen(draft: _Draft, nodes: dict[str, Node], left: list[Waiting]) -> list[Waiting]:
    """Opens closed nodes again that work was placed on, that waiting work fits, or that the minimum needs."""
    for pool in draft.policy.pools:
        for intent in draft.rows(pool, {S.DRAINING}):
            node = nodes.get(intent.name)
            if node is None or node.state not in (NodeState.READY, NodeState.DRAINING):
                continue
            still = pack(left, [Bin(node.id, node.total.minus(node.reserved), node.runtimes, node.isolations)])
            if not node.is_empty:
                reason = "work was placed there before it was closed"
            elif len(still) < len(left):
                reason = f"{len(left) - len(still)} waiting sandboxes fit there"
            elif len(draft.rows(pool, KEPT)) + draft.reopened[pool.name] < pool.min:
                reason = f"the pool keeps {pool.min}"
            else:
                if node.state is NodeState.READY or intent.drain_mark is None:
                    draft.actions.append(Drain(intent.operation_id, node.id, "it is not known to be closed"))
                continue
            left = still
            draft.reopened[pool.name] += 1
            draft.actions.append(CancelDrain(intent.operation_id, node.id, reason))
    return left


def _coming_bins(draft: _Draft) -> list[Bin]:
    """Room of everything that is on its way and not late."""
    return [
        Bin(intent.name, shape, pool.runtimes, pool.isolations)
        for pool in draft.policy.pools
        for intent in draft.rows(pool, STARTING)
        if draft.now <= intent.deadline and (shape := _shape_of(draft, pool, intent.offer)) is not None
    ]


# -- room to be made --------------------------------------------------------------------------------------------------


def expected_shape(world: World, pool: PoolPolicy, offer: Offer) -> Shape:
    """What a node of this offer will have for sandboxes: as seen before, or the offer less what a node keeps."""
    if (seen := world.learned.get((pool.name, offer.type))) is not None:
        return seen
    has = offer.resources
    return Shape(
        cpus=pool.gives.get("cpus", has.cpus * pool.cpu_overcommit),
        memory_mb=int(pool.gives.get("memory_mb", max(0, has.memory_mb - pool.reserve_memory_mb))),
        disk_mb=int(pool.gives.get("disk_mb", max(0, has.disk_mb - pool.reserve_disk_mb))),
        gpus=has.gpus,
        slots=pool.slots,
    )


def offers_of(world: World, pool: PoolPolicy) -> list[Offer]:
    """The offers that a pool may use, in its order of preference."""
    view = world.providers.get(pool.provider)
    sold = {OfferKey(offer.type, offer.location): offer for offer in (view.offers if view else ())}
    if pool.offers:
        return [sold[key] for key in pool.offers if key in sold]
    unpriced = max((o.price_per_hour for o in sold.values() if o.price_per_hour is not None), default=0)
    return sorted(sold.values(), key=lambda o: (o.price_per_hour is None, o.price_per_hour or unpriced, o.type))


def _shape_of(draft: _Draft, pool: PoolPolicy, key: OfferKey) -> Shape | None:
    for offer in offers_of(draft.world, pool):
        if (offer.type, offer.location) == (key.type, key.location):
            return expected_shape(draft.world, pool, offer)
    return draft.world.learned.get((pool.name, key.type))


def _boot_for(draft: _Draft, left: list[Waiting]) -> None:
    """New nodes for what found no room; one reason for each kind of refusal, not one for each sandbox."""
    refused: Counter[tuple[str, str]] = Counter()
    for item in largest_first(left):
        if any(room.takes(item) for _, room in draft.new):
            continue
        problem = _boot_for_one(draft, item)
        if problem is not None:
            refused[problem] += 1
    for (subject, reason), count in sorted(refused.items()):
        draft.waits.append(Wait(subject, f"{reason} ({count} waiting)"))


def _boot_for_one(draft: _Draft, item: Waiting) -> tuple[str, str] | None:
    """Boots a node that fits ``item``; else the pool that came closest and why it may not."""
    problem = ("demand", f"no pool has nodes that fit {_words(item)}")
    for pool in draft.policy.pools:
        if not any(_room(draft, pool, offer).takes(item) for offer in offers_of(draft.world, pool)):
            continue
        refusal = _boot(draft, pool, item, f"nothing has room for {_words(item)}")
        if refusal is None:
            return None
        problem = (f"pool {pool.name}", refusal)
        if refusal.startswith("later"):
            return problem  # a moment's patience is cheaper than a node of the second choice
    return problem


def _boot(draft: _Draft, pool: PoolPolicy, item: Waiting | None, reason: str) -> str | None:
    """Adds one boot to the plan, with ``item`` in it; or says why not."""
    refusal = _pool_refusal(draft, pool)
    if refusal is None:
        refusal = "its offers are not sold any more" if pool.offers else "its provider has no offers"
        for offer in offers_of(draft.world, pool):
            room = _room(draft, pool, offer)
            if item is not None and not room.takes(item):
                continue
            held = _offer_refusal(draft, pool, offer)
            if held is None:
                key = OfferKey(offer.type, offer.location)
                draft.actions.append(Boot(pool.name, pool.provider, key, pool.boot_seconds, reason))
                draft.new.append((pool, room))
                return None
            refusal = held
    if item is None:
        draft.waits.append(Wait(f"pool {pool.name}", f"{reason}, but {refusal}"))
    return refusal


def _room(draft: _Draft, pool: PoolPolicy, offer: Offer) -> Bin:
    return Bin(pool.name, expected_shape(draft.world, pool, offer), pool.runtimes, pool.isolations)


def _pool_refusal(draft: _Draft, pool: PoolPolicy) -> str | None:
    view = draft.world.providers.get(pool.provider)
    if view is None or view.instances is None:
        return f"provider {pool.provider} is blind"
    if pool.name in draft.failed:
        return "an instance of it has just failed to become a node"
    booting = draft.booting(pool)
    rows = len(draft.rows(pool)) + booting
    if rows >= pool.max:
        return f"it has {rows} of at most {pool.max}"
    if len(draft.new) >= draft.policy.creates_per_tick:
        return f"later: {draft.policy.creates_per_tick} a tick"
    in_flight = len(draft.rows(pool, STARTING)) + booting
    if in_flight >= pool.max_in_flight:
        return f"later: {in_flight} are on their way"
    return None


def _offer_refusal(draft: _Draft, pool: PoolPolicy, offer: Offer) -> str | None:
    for key in backoff.keys(pool.provider, pool.name, OfferKey(offer.type, offer.location)):
        held = draft.world.backoffs.get(key)
        if held is not None and draft.now < held.until:
            return f"{key} is held back for {held.until - draft.now:.0f} s: {held.reason}"
    if not offer.available:
        return f"{offer.type}@{offer.location} is not available"
    return None


# -- room too much ----------------------------------------------------------------------------------------------------


def _close_idle(draft: _Draft, pool: PoolPolicy, nodes: dict[str, Node], ready: dict[str, Bin]) -> None:
    """Closes the longest idle node beyond the minimum, unless the pool grows or waiting work needs it."""
    spare = len(draft.rows(pool, {S.READY})) - pool.min
    if spare <= 0 or draft.booting(pool) or not draft.world.clock_settled:
        return
    idle: list[tuple[float, Intent, Node]] = []
    for intent in draft.rows(pool, {S.READY}):
        node = nodes.get(intent.name)
        if node is None or node.state is not NodeState.READY or not node.is_empty or node.idle_since is None:
            continue
        if ready[intent.name].used:
            draft.waits.append(Wait(intent.name, "it is idle, but waiting sandboxes fit there"))
        elif draft.now - node.idle_since < pool.idle_seconds:
            rest = pool.idle_seconds - (draft.now - node.idle_since)
            draft.waits.append(Wait(intent.name, f"it is idle; it is closed in {rest:.0f} s"))
        else:
            idle.append((node.idle_since, intent, node))
    closing = sum(1 for action in draft.actions if isinstance(action, Drain))
    for since, intent, node in sorted(idle, key=lambda entry: entry[0])[: min(spare, draft.policy.stops_per_tick)]:
        if closing >= draft.policy.stops_per_tick:
            return
        closing += 1
        draft.actions.append(Drain(intent.operation_id, node.id, f"idle for {draft.now - since:.0f} s"))


def _words(item: Waiting) -> str:
    shape = item.shape
    gpus = f", {shape.gpus} gpus" if shape.gpus else ""
    runtime = f" on {item.runtime}" if item.runtime else ""
    return f"{shape.cpus:g} cpus, {shape.memory_mb} MiB, {shape.disk_mb} MiB disk{gpus} ({item.isolation}{runtime})"
