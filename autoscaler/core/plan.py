"""`plan`: what to do now, and what not, each with its reason.  `fallback`: what instead of a boot that was refused."""

from autoscaler.core import amnesia, deletion, drift, purchase, scale_down, scale_up
from autoscaler.core.model import Action, Boot, CancelDrain, FleetPolicy, Plan, Retry, Wait, WaitKind, World
from autoscaler.core.packing import grouped
from autoscaler.core.plan_builder import Draft
from autoscaler.core.states import IntentState

S = IntentState


def plan(world: World, policy: FleetPolicy, now: float) -> Plan:
    """The actions for one tick, in the order in which they are to be done: room is made before it is taken.

    Args:
        world: rows, listings, nodes and demand; rows are settled already (`autoscaler.core.findings`).
        policy: the pools and the rules that they share.
        now: seconds since the epoch.
    """
    waits = _blind_spots(world, policy)
    if (warning := amnesia.warning(world, policy)) is not None:
        waits.append(warning)
    if world.nodes is None:
        waits.append(Wait("fleet", WaitKind.NO_GATEWAY, "no scaling: the gateway cannot be asked"))
    if not world.synced:
        waits.append(
            Wait(
                "fleet",
                WaitKind.NOT_SYNCED,
                "it has just started, and not every node was heard of",
            )
        )
        return Plan((), tuple(waits))
    stops = deletion.stops(world, policy, now, waits)
    actions: list[Action] = [*deletion.sweeps(world, policy, now, waits), *deletion.forgets(world)]
    if world.nodes is None:
        return Plan((*stops, *actions), tuple(waits))
    actions += _retries(world, policy, now, waits)
    failed = {stop.operation_id for stop in stops if stop.boot_failed}
    held = frozenset(intent.pool for intent in world.intents if intent.operation_id in failed)
    scaled = _scaled(Draft(world, policy, now, waits, held))
    needed = {action.operation_id for action in scaled if isinstance(action, CancelDrain)}
    return Plan((*(stop for stop in stops if stop.operation_id not in needed), *actions, *scaled), tuple(waits))


def fallback(world: World, policy: FleetPolicy, now: float, refused: Boot) -> Plan:
    """What to boot instead of ``refused``, in the same tick; at most one boot.

    Args:
        world: the world of the tick, with the rows and back-offs as they are after the refusal.
        policy: the pools and the rules that they share.
        now: seconds since the epoch.
        refused: a boot that surely made nothing.
    """
    draft = Draft(world, policy, now, [])
    pool = next((pool for pool in policy.pools if pool.name == refused.pool), None)
    if pool is None:
        return Plan()
    group = next(iter(grouped([refused.item])), None) if refused.item is not None else None
    refusal = purchase.boot(draft, pool, group, f"{refused.reason}; {refused.offer} cannot be had", refused.cause)
    if refusal is not None and not draft.waits:
        draft.wait(f"pool {pool.name}", refusal.kind, refusal.text)
    return Plan(tuple(draft.actions), tuple(draft.waits))


def _scaled(draft: Draft) -> list[Action]:
    """Boots, drains and cancelled drains of all pools."""
    old = {pool.name: drift.dated(draft, pool) for pool in draft.policy.pools}
    ready = scale_up.grow(draft, old)
    if scale_up.youth(draft) is not None:
        return draft.actions
    for pool in draft.policy.pools:
        view = draft.world.providers.get(pool.provider)
        if view is not None and view.instances is not None:
            drift.replace_dated(draft, pool, old[pool.name], ready)
            scale_down.close_idle(draft, pool, old[pool.name], ready)
    return draft.actions


def outside(world: World, policy: FleetPolicy) -> list[Wait]:
    """Rows whose pool or provider is not in the settings any more: their instances run, and cost, without an end."""
    pools = {pool.name for pool in policy.pools}
    waits: list[Wait] = []
    for intent in world.intents:
        if intent.provider not in world.providers:
            waits.append(
                Wait(
                    intent.name,
                    WaitKind.UNKNOWN_PROVIDER,
                    f"provider {intent.provider} is not in the settings",
                )
            )
        elif intent.pool not in pools:
            why = f"its pool {intent.pool} is not in the settings; it is not scaled, and runs on until that is there"
            waits.append(Wait(intent.name, WaitKind.UNKNOWN_POOL, f"{why} again (max = 0 lets it go once it is idle)"))
    return waits


def _blind_spots(world: World, policy: FleetPolicy) -> list[Wait]:
    """What this plan says nothing about."""
    blind = [
        Wait(f"provider {name}", WaitKind.BLIND_PROVIDER, f"nothing is concluded or changed there: {view.problem}")
        for name, view in sorted(world.providers.items())
        if view.instances is None and not view.is_resting
    ]
    return [*blind, *outside(world, policy)]


def _retries(world: World, policy: FleetPolicy, now: float, waits: list[Wait]) -> list[Action]:
    """Creates that were written down and have no known outcome yet."""
    actions: list[Action] = []
    pools = {pool.name for pool in policy.pools}
    for intent in world.intents:
        if intent.state not in (S.PLANNED, S.CALLING) or intent.pool not in pools:
            continue
        view = world.providers.get(intent.provider)
        if view is None or view.instances is None:
            continue
        if now < intent.next_try_at:
            waits.append(
                Wait(intent.name, WaitKind.RETRY_LATER, f"its create is repeated in {intent.next_try_at - now:.0f} s")
            )
        elif intent.attempts and not view.caps.unique_names and not world.clock_settled:
            waits.append(
                Wait(
                    intent.name,
                    WaitKind.CLOCK_JUMP,
                    "the clock jumped; its create may still come through",
                )
            )
        elif intent.attempts and not view.caps.unique_names and intent.sighting not in world.missing_before:
            waits.append(
                Wait(
                    intent.name,
                    WaitKind.SECOND_LISTING,
                    "a second listing has to lack it",
                )
            )
        else:
            again = "its outcome is unknown, and the same name cannot make a second" if intent.attempts else "planned"
            actions.append(Retry(intent.operation_id, again))
    return actions
