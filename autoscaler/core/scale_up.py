"""Scale up: boots for demand, warm floors, builders, pressure and the minimum, once the room that is there is used."""

from collections import Counter
from functools import partial

from autoscaler.core.actions import BootRefusal, CancelDrain, Drain, RefusalKind, WaitKind
from autoscaler.core.packing import Group, Vector, fits, grouped, largest, largest_first, pack
from autoscaler.core.plan_builder import PlanBuilder, free_room
from autoscaler.core.pools import PoolPolicy
from autoscaler.core.purchase import boot, describe_item, may_grow, pool_refusal, suits
from autoscaler.core.states import IntentState
from autoscaler.core.world import DRIFT, PRESSURE, DemandItem, NodeView
from gateway.wire.states import NodeState

S = IntentState


def grow(draft: PlanBuilder, outdated: dict[str, dict[str, str]]) -> None:
    """Add boots and cancelled drains to the plan.

    Waiting sandboxes are put into free room of nodes, then of closed ones that can be opened again, then of those on
    their way, and only then into new ones.  What is on its way counts in full until its deadline, and for nothing
    after it; against the maximum it counts until it is proved gone.

    Args:
        draft: the plan; what fits into ready nodes is put into its `ready_bins`.
        outdated: see `drift.outdated`, by pool.
    """
    _share_out_builders(draft)
    ready, coming = list(draft.ready_bins.values()), draft.coming_bins()
    unplaced = pack(largest_first(grouped(draft.waiting), _largest_node(draft)), ready)
    unplaced = _reopen(draft, unplaced, outdated)
    unplaced = pack(unplaced, coming)
    cold = pack(_warm_floors(draft), [*ready, *coming])

    for pool in draft.policy.pools:
        draft.attempt(f"pool {pool.name}", partial(_boot_minimum, draft, pool), pool.name)
    age = age_of_burst(draft)
    if age is not None and unplaced:
        why = f"the oldest has waited {age:.0f} s; a burst is awaited until {draft.policy.young_seconds:.0f} s"
        draft.wait("demand", RefusalKind.YOUNG, why)
    else:
        _boot_for(draft, unplaced, "nothing has room for {}")
    _boot_for(draft, cold, "the warm floor lacks room for {}")
    for pool in draft.policy.pools:
        draft.attempt(f"pool {pool.name}", partial(_relieve_pressure, draft, pool), pool.name)


def age_of_burst(draft: PlanBuilder) -> float | None:
    """Return the age of the oldest waiting sandbox while all of them are young: a burst may still be coming in."""
    since = [item.since for item in draft.waiting if item.since is not None]
    if not since or draft.policy.young_seconds <= 0 or any(item.since is None for item in draft.waiting):
        return None
    oldest = max(0.0, draft.now - min(since))
    return oldest if oldest < draft.policy.young_seconds else None


def _largest_node(draft: PlanBuilder) -> Vector:
    sold = (offer.room for pool in draft.policy.pools for offer in draft.offers(pool))
    return largest([*sold, *(each.free for each in draft.ready_bins.values())])


# -- room that is there -----------------------------------------------------------------------------------------------


def _reopen(draft: PlanBuilder, unplaced: list[Group], outdated: dict[str, dict[str, str]]) -> list[Group]:
    """Open closed nodes again that work was placed on, that waiting work fits, or that the minimum needs.

    One that is being replaced stays closed: it goes once its work has ended, whatever waits.

    Returns:
        What still finds no room.
    """
    closed = [
        (pool, intent, node)
        for pool in draft.policy.pools
        for intent in draft.rows(pool, {S.DRAINING})
        if (node := draft.world.node_of(intent)) is not None and node.state in (NodeState.READY, NodeState.DRAINING)
    ]
    leaving = {i.name for pool, i, _ in closed if i.cause == DRIFT and i.operation_id in outdated[pool.name]}
    clear = {node.id for node in draft.nodes}
    rooms = {
        intent.name: free_room(node)
        for pool, intent, node in closed
        if pool.hosts_sandboxes and intent.name not in leaving and node.id in clear
    }
    unplaced = pack(unplaced, list(rooms.values()))
    for pool, intent, node in closed:
        fitting = rooms[intent.name].taken if intent.name in rooms else 0
        reason = None if intent.name in leaving else _reason_to_reopen(draft, pool, node, fitting)
        if reason is not None:
            draft.reopened[pool.name] += 1
            draft.actions.append(CancelDrain(intent.operation_id, node.id, reason))
        elif node.state is NodeState.READY or intent.drain_mark is None:
            again = "it is not known to be closed"
            draft.actions.append(Drain(intent.operation_id, node.id, again, cause=intent.cause))
    return unplaced


def _reason_to_reopen(draft: PlanBuilder, pool: PoolPolicy, node: NodeView, fitting: int) -> str | None:
    if not node.is_empty:
        return "work was placed there before it was closed"
    if fitting:
        return f"{fitting} waiting sandboxes fit there"
    if draft.kept(pool) < draft.floor(pool):
        return _reason_for_floor(draft, pool)
    return None


# -- demand that is not a waiting sandbox -----------------------------------------------------------------------------


def _share_out_builders(draft: PlanBuilder) -> None:
    """Give each pool of builders as many as it may have, in order; one that cannot grow now, only what it has."""
    left = draft.world.builders
    pools = [pool for pool in draft.policy.pools if pool.hosts_builds]
    for pool in pools:
        draft.builders_of[pool.name] = min(left, pool.max if may_grow(draft, pool) else draft.kept(pool))
        left -= draft.builders_of[pool.name]
    if left:
        lack = "their pools are at their maximum or cannot grow now" if pools else "no pool has builders"
        draft.wait("builders", WaitKind.BUILDERS_SHORT, f"{left} more are wanted, but {lack}")


def _boot_minimum(draft: PlanBuilder, pool: PoolPolicy) -> None:
    for _ in range(max(0, draft.floor(pool) - draft.kept(pool))):
        if boot(draft, pool, None, _reason_for_floor(draft, pool)) is not None:
            break


def _reason_for_floor(draft: PlanBuilder, pool: PoolPolicy) -> str:
    builders = draft.builders_of[pool.name]
    return f"builds want {builders}" if builders > pool.min else f"the pool keeps {pool.min}"


def _warm_floors(draft: PlanBuilder) -> list[Group]:
    return grouped(
        DemandItem(floor.shape, count=floor.count, isolation=min(pool.isolations, default=""), pool=pool.name)
        for pool in draft.policy.pools
        for floor in pool.warm
        if pool.hosts_sandboxes and floor.holds(draft.now)
    )


def _relieve_pressure(draft: PlanBuilder, pool: PoolPolicy) -> None:
    """Boot for a pool whose nodes have been pressed for a while, none of them idle and none on its way."""
    if pool.pressure_nodes == 0 or draft.starting(pool):
        return
    rows = draft.rows(pool, {S.READY})
    found = (draft.world.node_of(intent) for intent in rows)
    nodes = [node for node in found if node is not None and node.state is NodeState.READY]
    pressed = [node for node in nodes if node.pressed_for >= pool.pressure_seconds]
    if not pressed or any(node.is_empty for node in nodes):
        return
    added = sum(1 for intent in draft.rows(pool) if intent.cause == PRESSURE)
    reason = f"{len(pressed)} of {len(nodes)} nodes have been under pressure for {pool.pressure_seconds:.0f} s"
    if added >= pool.pressure_nodes:
        why = f"{reason}, but it has {added} of at most {pool.pressure_nodes} for that"
        draft.wait(f"pool {pool.name}", WaitKind.PRESSURE_FULL, why)
    else:
        boot(draft, pool, None, reason, cause=PRESSURE)


# -- room to be made --------------------------------------------------------------------------------------------------


def _boot_for(draft: PlanBuilder, unplaced: list[Group], why: str) -> None:
    """Boot nodes for what found no room; wait with one reason for each kind of refusal, not one for each sandbox."""
    buying = _Buying(draft, why)
    for group in unplaced:
        draft.attempt("demand", partial(buying.serve, group))
    for (subject, refusal), number in sorted(buying.refused.items(), key=lambda each: (each[0][0], each[0][1].text)):
        draft.wait(subject, refusal.kind, f"{refusal.text} ({number} waiting)")


class _Buying:
    """Nodes for groups, one after the other; what has been booted is filled first.

    Attributes:
        refused: how many found nothing, by the pool that came closest and why.
    """

    def __init__(self, draft: PlanBuilder, why: str) -> None:
        self._draft = draft
        self._why = why
        self.refused: Counter[tuple[str, BootRefusal]] = Counter()
        self._sizes = list(dict.fromkeys(offer.room for pool in draft.policy.pools for offer in draft.offers(pool)))
        # While nothing more is booted, equal questions have equal answers.
        self._known: dict[tuple[object, ...], tuple[str, BootRefusal]] = {}
        self._most = largest(new.free for _, _, new in draft.booted)

    def serve(self, group: Group) -> None:
        """Find room for a group in what is booted, and boot more while that helps."""
        booted, need, count = self._draft.booted, group.need, group.count
        if fits(need, self._most):
            for _, _, new in booted:
                if count and fits(need, new.free) and new.welcomes(group.item):
                    count -= new.put(need, count)
        item = group.item
        alike = (item.runtime, item.isolation, item.pool, need[3] > 0, *[fits(need, size) for size in self._sizes])
        while count:
            problem = self._known.get(alike) or _boot_for_one(self._draft, group, self._why)
            if problem is not None:
                if problem[1].kind is not RefusalKind.UNFIT:  # which names the shape
                    self._known[alike] = problem
                self.refused[problem] += count
                break
            self._known.clear()
            count -= booted[-1][2].put(need, count)
        if count != group.count:
            self._most = largest(new.free for _, _, new in booted)


def _boot_for_one(draft: PlanBuilder, group: Group, why: str) -> tuple[str, BootRefusal] | None:
    """Boot a node that fits one of ``group``; else return the pool that came closest and why it may not."""
    problem: tuple[str, BootRefusal] | None = None
    # Pools in their order, but dear machines with GPUs are the last that other work gets.
    for pool in sorted(draft.policy.pools, key=lambda pool: pool.wants_gpus and not group.need[3]):
        if not pool.hosts_sandboxes or not any(suits(draft, pool, offer, group) for offer in draft.offers(pool)):
            continue
        refusal = pool_refusal(draft, pool) or boot(draft, pool, group, why)
        if refusal is None:
            return None
        problem = (f"pool {pool.name}", refusal)
        if refusal.kind.is_brief:
            return problem  # a moment's patience is cheaper than a node of the second choice
    unfit = BootRefusal(RefusalKind.UNFIT, f"no pool has nodes that fit {describe_item(group.item)}")
    return problem or ("demand", unfit)
