"""One plan, from start to end; and `fallback`, which stands in for a boot that was refused.

What one rule cannot make sense of (`PlanBuilder.attempt`) is left out, told, and stops nothing else.
"""

from functools import partial

from autoscaler.core import deletion, drift, purchase, scale_down, scale_up
from autoscaler.core.actions import Boot, Plan, Retry, Wait, WaitKind
from autoscaler.core.findings import amnesia_warning
from autoscaler.core.packing import grouped
from autoscaler.core.plan_builder import EVERY_POOL, PlanBuilder
from autoscaler.core.pools import FleetPolicy
from autoscaler.core.states import IntentState
from autoscaler.core.world import Intent, World

S = IntentState


def plan(world: World, policy: FleetPolicy, now: float) -> Plan:
    """Return the actions for one tick, in the order in which they are to be done: room is made before it is taken.

    Args:
        world: rows, listings, nodes and demand; rows are settled already (`autoscaler.core.findings`).
        policy: the pools and the rules that they share.
        now: seconds since the epoch.
    """
    draft = PlanBuilder(world, policy, now)
    _report_blind_spots(draft)
    if not world.synced:
        draft.wait("fleet", WaitKind.NOT_SYNCED, "the process has just started, and not every node has reported yet")
        return draft.finish()

    # Deletes that no demand can stop.
    deletion.delete_instances(draft)
    deletion.sweep_orphans(draft)
    deletion.forget_nodes(draft)
    if world.nodes is None:
        return draft.finish()

    # Room for the demand: what is on its way first, then new boots.
    _repeat_creates(draft)
    outdated = {
        pool.name: draft.attempt(f"pool {pool.name}", partial(drift.outdated, draft, pool), pool.name) or {}
        for pool in policy.pools
    }
    draft.attempt("demand", partial(scale_up.grow, draft, outdated), EVERY_POOL)
    if scale_up.age_of_burst(draft) is not None:
        return draft.finish()

    # Nodes that are out of date, and nodes too many.
    for pool in policy.pools:
        if pool.provider in world.listed:
            for rule in (drift.replace_outdated, scale_down.close_idle):
                draft.attempt(f"pool {pool.name}", partial(rule, draft, pool, outdated[pool.name]), pool.name)
    return draft.finish()


def fallback(world: World, policy: FleetPolicy, now: float, refused: Boot) -> Plan:
    """Return what to boot instead of ``refused``, in the same tick; at most one boot.

    Args:
        world: the world of the tick, with the rows and back-offs as they are after the refusal.
        policy: the pools and the rules that they share.
        now: seconds since the epoch.
        refused: a boot that surely made nothing.
    """
    draft = PlanBuilder(world, policy, now)
    pool = next((pool for pool in policy.pools if pool.name == refused.pool), None)
    if pool is None:
        return Plan()
    group = next(iter(grouped([refused.item])), None) if refused.item is not None else None
    reason = f"{refused.reason}; {refused.offer} cannot be had"
    refusal = purchase.boot(draft, pool, group, reason, refused.cause)
    if refusal is not None and not draft.waits:
        draft.wait(f"pool {pool.name}", refusal.kind, refusal.text)
    return draft.finish()


def _report_blind_spots(draft: PlanBuilder) -> None:
    """Record what this plan concludes and changes nothing about."""
    world = draft.world
    for doubt in world.doubts:
        draft.doubt(doubt)
    for name, view in sorted(world.providers.items()):
        for doubt in view.doubts:
            draft.doubt(doubt)
        if view.instances is None and not view.is_resting:
            why = f"it cannot be listed, so nothing is changed there: {view.problem}"
            draft.wait(f"provider {name}", WaitKind.BLIND_PROVIDER, why)
    _report_unconfigured_rows(draft)
    if (warning := amnesia_warning(world, draft.policy)) is not None:
        draft.waits.append(warning)
    if world.nodes is None:
        draft.wait("fleet", WaitKind.NO_GATEWAY, "nothing is scaled: the gateway cannot be asked")


def _report_unconfigured_rows(draft: PlanBuilder) -> None:
    """Record rows whose pool or provider is not in the settings: their instances run, and cost, without an end."""
    pools = {pool.name for pool in draft.policy.pools}
    for intent in draft.world.intents:
        if intent.provider not in draft.world.providers:
            why = f"its provider {intent.provider} is not in the settings, so it is left alone"
            draft.wait(intent.name, WaitKind.UNKNOWN_PROVIDER, why)
        elif intent.pool not in pools:
            why = f"its pool {intent.pool} is not in the settings, so it runs on"
            draft.wait(intent.name, WaitKind.UNKNOWN_POOL, f"{why}; a pool with max = 0 lets it go once it is idle")


def _repeat_creates(draft: PlanBuilder) -> None:
    """Send creates that were written down and have no known outcome yet."""
    pools = {pool.name for pool in draft.policy.pools}
    for intent in draft.world.intents:
        if intent.state not in (S.PLANNED, S.CALLING) or intent.pool not in pools:
            continue
        if intent.provider in draft.world.listed:
            draft.attempt(intent.name, partial(_repeat_create, draft, intent), intent.pool)


def _repeat_create(draft: PlanBuilder, intent: Intent) -> None:
    if (wait := _wait_to_create(draft, intent)) is not None:
        draft.waits.append(wait)
    else:
        reason = "the outcome of its last create is not known" if intent.attempts else "planned"
        draft.actions.append(Retry(intent.operation_id, reason))


def _wait_to_create(draft: PlanBuilder, intent: Intent) -> Wait | None:
    if draft.now < intent.next_try_at:
        why = f"its create is sent again in {intent.next_try_at - draft.now:.0f} s"
        return Wait(intent.name, WaitKind.RETRY_LATER, why)
    if not intent.attempts or draft.world.providers[intent.provider].caps.unique_names:
        return None
    if not draft.world.clock_settled:
        why = "the clock has just jumped, and its first create may still succeed"
        return Wait(intent.name, WaitKind.CLOCK_JUMP, why)
    if intent.sighting not in draft.world.missing_before:
        why = "a second listing has to show that the first create made nothing"
        return Wait(intent.name, WaitKind.SECOND_LISTING, why)
    return None
