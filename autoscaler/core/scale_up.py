"""How many nodes: demand, warm floors, builders, pressure and the minimum."""

from collections import Counter

from autoscaler.core.model import CancelDrain, Drain, Node, PoolPolicy, Refusal, RefusalKind, Waiting, WaitKind
from autoscaler.core.packing import Bin, Group, fits, grouped, largest, largest_first, pack
from autoscaler.core.plan_builder import Draft, room
from autoscaler.core.purchase import boot, may_grow, pool_refusal, suits, words
from autoscaler.core.states import IntentState
from autoscaler.core.world import DRIFT, PRESSURE
from gateway.wire.states import NodeState

S = IntentState


def grow(draft: Draft, old: dict[str, dict[str, str]]) -> dict[str, Bin]:
    """Adds boots and cancelled drains to the plan.

    Waiting sandboxes are put into free room of nodes, then of closed ones that can be opened again, then of those on
    their way, and only then into new ones.  What is on its way counts in full until its deadline, and for nothing
    after it; against the maximum it counts until it is proved gone.

    Args:
        draft: the plan.
        old: operations whose instances are out of date, by pool.

    Returns:
        The rooms of ready nodes by instance, with what was put into them.
    """
    _share_out_builders(draft)
    ready = draft.ready_bins()
    coming = draft.coming_bins()
    most = largest(ware.gives for pool in draft.policy.pools for ware in draft.wares(pool))
    most = largest([most, *(each.free for each in ready.values())])
    young = youth(draft)
    wanted = largest_first(grouped(draft.world.waiting), most)
    left = pack(wanted, list(ready.values()))
    left = _reopen(draft, left, old)
    left = pack(left, coming)
    warm = pack(_warm(draft), [*ready.values(), *coming])
    for pool in draft.policy.pools:
        for _ in range(max(0, draft.floor(pool) - draft.kept(pool))):
            if boot(draft, pool, None, _floor_reason(draft, pool)) is not None:
                break
    if young is not None and left:
        draft.wait(
            "demand",
            RefusalKind.YOUNG,
            f"the oldest has waited {young:.0f} s; a burst is awaited until {draft.policy.young_seconds:.0f} s",
        )
    else:
        _boot_for(draft, left, "nothing has room for {}")
    _boot_for(draft, warm, "the warm floor lacks room for {}")
    for pool in draft.policy.pools:
        _relieve(draft, pool, ready)
    return ready


def youth(draft: Draft) -> float | None:
    """The age of the oldest waiting sandbox while all of them are young: a burst may be coming in."""
    since = [item.since for item in draft.world.waiting if item.since is not None]
    if not since or draft.policy.young_seconds <= 0 or any(item.since is None for item in draft.world.waiting):
        return None
    oldest = max(0.0, draft.now - min(since))
    return oldest if oldest < draft.policy.young_seconds else None


# -- room that is there -----------------------------------------------------------------------------------------------


def _reopen(draft: Draft, left: list[Group], old: dict[str, dict[str, str]]) -> list[Group]:
    """Opens closed nodes again that work was placed on, that waiting work fits, or that the minimum needs.

    One that is being replaced stays closed: it goes once its work has ended, whatever waits.
    """
    closed = [
        (pool, intent, node)
        for pool in draft.policy.pools
        for intent in draft.rows(pool, {S.DRAINING})
        if (node := draft.node(intent)) is not None and node.state in (NodeState.READY, NodeState.DRAINING)
    ]
    leaving = {i.name for pool, i, _ in closed if i.cause == DRIFT and i.operation_id in old[pool.name]}
    rooms = {i.name: room(node) for pool, i, node in closed if pool.hosts_sandboxes and i.name not in leaving}
    left = pack(left, list(rooms.values()))
    for pool, intent, node in closed:
        fitting = rooms[intent.name].taken if intent.name in rooms else 0
        reason = None if intent.name in leaving else _reopening(draft, pool, node, fitting)
        if reason is not None:
            draft.reopened[pool.name] += 1
            draft.actions.append(CancelDrain(intent.operation_id, node.id, reason))
        elif node.state is NodeState.READY or intent.drain_mark is None:
            draft.actions.append(
                Drain(intent.operation_id, node.id, "it is not known to be closed", cause=intent.cause)
            )
    return left


def _reopening(draft: Draft, pool: PoolPolicy, node: Node, fitting: int) -> str | None:
    """Why a closed node is wanted after all."""
    if not node.is_empty:
        return "work was placed there before it was closed"
    if fitting:
        return f"{fitting} waiting sandboxes fit there"
    if draft.kept(pool) < draft.floor(pool):
        return _floor_reason(draft, pool)
    return None


# -- demand that is not a waiting sandbox -----------------------------------------------------------------------------


def _share_out_builders(draft: Draft) -> None:
    """Each pool of builders takes as many as it may have, in order; one that cannot grow now, only what it has."""
    left = draft.world.builders
    pools = [pool for pool in draft.policy.pools if pool.hosts_builds]
    for pool in pools:
        draft.builders_of[pool.name] = min(left, pool.max if may_grow(draft, pool) else draft.kept(pool))
        left -= draft.builders_of[pool.name]
    if left:
        lack = "their pools are at their maximum or cannot grow now" if pools else "no pool has builders"
        draft.wait("builders", WaitKind.BUILDERS_SHORT, f"{left} more are wanted, but {lack}")


def _floor_reason(draft: Draft, pool: PoolPolicy) -> str:
    builders = draft.builders_of[pool.name]
    return f"builds want {builders}" if builders > pool.min else f"the pool keeps {pool.min}"


def _warm(draft: Draft) -> list[Group]:
    return grouped(
        Waiting(floor.shape, count=floor.count, isolation=min(pool.isolations, default=""), pool=pool.name)
        for pool in draft.policy.pools
        for floor in pool.warm
        if pool.hosts_sandboxes and floor.holds(draft.now)
    )


def _relieve(draft: Draft, pool: PoolPolicy, ready: dict[str, Bin]) -> None:
    """One more node for a pool whose nodes have been pressed for a while, none of them idle and none on its way."""
    if pool.pressure_nodes == 0 or draft.starting(pool):
        return
    rows = draft.rows(pool, {S.READY})
    nodes = [node for intent in rows if (node := draft.node(intent)) is not None and node.state is NodeState.READY]
    pressed = [node for node in nodes if node.pressed_for >= pool.pressure_seconds]
    if not pressed or any(node.is_empty for node in nodes):
        return
    added = sum(1 for intent in draft.rows(pool) if intent.cause == PRESSURE)
    reason = f"{len(pressed)} of {len(nodes)} nodes have been under pressure for {pool.pressure_seconds:.0f} s"
    if added >= pool.pressure_nodes:
        draft.wait(
            f"pool {pool.name}",
            WaitKind.PRESSURE_FULL,
            f"{reason}, but it has {added} of at most {pool.pressure_nodes} for that",
        )
    else:
        boot(draft, pool, None, reason, cause=PRESSURE)


# -- room to be made --------------------------------------------------------------------------------------------------


def _boot_for(draft: Draft, left: list[Group], why: str) -> None:
    """New nodes for what found no room; one reason for each kind of refusal, not one for each sandbox."""
    refused: Counter[tuple[str, Refusal]] = Counter()
    sizes = list(dict.fromkeys(ware.gives for pool in draft.policy.pools for ware in draft.wares(pool)))
    problems: dict[tuple[object, ...], tuple[str, Refusal]] = {}  # while nothing more is booted, equal questions
    most = largest(new.free for _, _, new in draft.booted)
    for group in left:
        count = group.count
        if fits(group.need, most):
            for _, _, new in draft.booted:
                if count and fits(group.need, new.free) and new.welcomes(group.item):
                    count -= new.put(group.need, count)
        item = group.item
        alike = (item.runtime, item.isolation, item.pool, group.need[3] > 0, *[fits(group.need, s) for s in sizes])
        while count:
            problem = problems.get(alike) or _boot_for_one(draft, group, why)
            if problem is not None:
                if problem[1].kind is not RefusalKind.UNFIT:  # which names the shape
                    problems[alike] = problem
                refused[problem] += count
                break
            problems.clear()
            count -= draft.booted[-1][2].put(group.need, count)
        if count != group.count:
            most = largest(new.free for _, _, new in draft.booted)
    for (subject, refusal), number in sorted(refused.items(), key=lambda entry: (entry[0][0], entry[0][1].text)):
        draft.wait(subject, refusal.kind, f"{refusal.text} ({number} waiting)")


def _boot_for_one(draft: Draft, group: Group, why: str) -> tuple[str, Refusal] | None:
    """Boots a node that fits one of ``group``; else the pool that came closest and why it may not."""
    problem: tuple[str, Refusal] | None = None
    # Pools in their order, but dear machines with GPUs are the last that other work gets.
    for pool in sorted(draft.policy.pools, key=lambda pool: pool.wants_gpus and not group.need[3]):
        if not pool.hosts_sandboxes or not any(suits(draft, pool, ware, group) for ware in draft.wares(pool)):
            continue
        refusal = pool_refusal(draft, pool) or boot(draft, pool, group, why)
        if refusal is None:
            return None
        problem = (f"pool {pool.name}", refusal)
        if refusal.kind.is_brief:
            return problem  # a moment's patience is cheaper than a node of the second choice
    return problem or ("demand", Refusal(RefusalKind.UNFIT, f"no pool has nodes that fit {words(group.item)}"))
