"""Deletes that no demand can stop: failed boots, lost and drained nodes, and orphans."""

from functools import partial

from autoscaler.core import backoff, naming
from autoscaler.core.actions import Forget, Stop, Sweep, Wait, WaitKind
from autoscaler.core.plan_builder import PlanBuilder
from autoscaler.core.pools import PoolPolicy
from autoscaler.core.states import IntentState
from autoscaler.core.world import Intent, NodeView, World, last_words
from gateway.wire.states import NodeState
from providers.base import Instance, Phase

S = IntentState


# -- rows -------------------------------------------------------------------------------------------------------------


def delete_instances(draft: PlanBuilder) -> None:
    """Delete the instances of rows that are not meant to go on."""
    pools = {pool.name: pool for pool in draft.policy.pools}
    for intent in draft.world.intents:
        if intent.provider not in draft.world.listed:
            continue
        match draft.attempt(intent.name, partial(_judge, draft, intent, pools.get(intent.pool)), intent.pool):
            case Stop() as stop:
                draft.actions.append(stop)
                if stop.boot_failed:
                    draft.failing.add(intent.pool)
            case Wait() as wait:
                draft.waits.append(wait)


def _judge(draft: PlanBuilder, intent: Intent, pool: PoolPolicy | None) -> Stop | Wait | None:
    return _verdict(draft, intent) or _stuck_drain(draft, intent, pool)


def _verdict(draft: PlanBuilder, intent: Intent) -> Stop | Wait | None:
    """Return the delete of one row, why it is put off, or ``None`` for a row that may go on."""
    world, node = draft.world, draft.world.node_of(intent)
    match intent.state:
        case S.ABANDONED:
            is_listed = world.listed[intent.provider].first(intent.operation_id) is not None
            if not is_listed and (draft.now < intent.next_try_at or not world.clock_settled):
                why = "it was given up, but its last create may still succeed; it counts until that is ruled out"
                return Wait(intent.name, WaitKind.LATE_CREATE, why)
            return Stop(intent.operation_id, intent.detail, boot_failed=True)
        case S.LOST:
            return Stop(intent.operation_id, intent.detail, boot_failed=intent.node_id is None)
        case S.BOOTING if draft.now > intent.deadline:
            return _late_boot(draft, intent)
        case S.READY | S.DRAINING if node is not None and node.state is NodeState.LOST:
            return _silent(draft, intent, node)
        case S.DRAINING if node is not None:
            return _drained(intent, node)
        case S.DELETING:
            return _delete_again(draft, intent)
    return None


def _late_boot(draft: PlanBuilder, intent: Intent) -> Stop | Wait:
    world = draft.world
    if not world.clock_settled:
        return Wait(intent.name, WaitKind.CLOCK_JUMP, "its boot is late, but the clock has just jumped")
    if world.nodes is None:
        why = "its boot is late, but its node may have registered: the gateway cannot be asked"
        return Wait(intent.name, WaitKind.NO_GATEWAY, why)
    extended_at = intent.extended_at
    more = ", more time included" if extended_at is not None and extended_at >= (intent.running_at or 0.0) else ""
    if intent.running_at is None:
        reason = f"it did not run within {intent.deadline - intent.created_at:.0f} s{more}"
    else:
        reason = f"it ran, but its node did not register within {intent.deadline - intent.running_at:.0f} s{more}"
    instance = world.listed[intent.provider].first(intent.operation_id)
    return Stop(intent.operation_id, reason + last_words(instance), boot_failed=True)


def _silent(draft: PlanBuilder, intent: Intent, node: NodeView) -> Stop | Wait:
    silent, most = draft.now - (node.heartbeat_at or intent.changed_at), draft.policy.silent_seconds
    if not draft.world.clock_settled or silent < most:
        why = f"node {node.id} is lost; its instance is deleted after {most:.0f} s without a heartbeat"
        return Wait(intent.name, WaitKind.SILENT_NODE, why)
    return Stop(intent.operation_id, f"node {node.id} has sent no heartbeat for {silent:.0f} s")


def _drained(intent: Intent, node: NodeView) -> Stop | Wait | None:
    """Delete what is empty and closed, once a heartbeat has said so that is newer than the drain."""
    if not node.is_empty or node.state is not NodeState.DRAINING:
        return None  # `scale_up` opens it again or closes it once more
    if node.heartbeat_at is None or intent.drain_mark is None or node.heartbeat_at <= intent.drain_mark:
        why = f"node {node.id} is closed; its next heartbeat has to show that it is empty"
        return Wait(intent.name, WaitKind.UNPROVED_DRAIN, why)
    return Stop(intent.operation_id, f"node {node.id} is drained and empty", drained=True)


def _delete_again(draft: PlanBuilder, intent: Intent) -> Stop | Wait:
    if not draft.world.listed[intent.provider].of(intent.operation_id):
        return Stop(intent.operation_id, "it is missing from the listing; the provider has to confirm that")
    if draft.now < max(intent.next_try_at, intent.changed_at + draft.policy.delete_retry_seconds):
        return Wait(intent.name, WaitKind.DELETING, f"it is being deleted: {intent.detail}")
    return Stop(intent.operation_id, "it is still listed, so its delete is sent again")


def _stuck_drain(draft: PlanBuilder, intent: Intent, pool: PoolPolicy | None) -> Wait | None:
    """Point out a closed node that does not become empty: a person has to look, what runs there is not killed."""
    closed_for = draft.now - intent.changed_at
    if intent.state is not S.DRAINING or pool is None or closed_for <= pool.drain_seconds:
        return None
    why = f"it has been closed for {closed_for:.0f} s and is still not empty; look at what runs there"
    return Wait(intent.name, WaitKind.STUCK_DRAIN, why)


# -- orphans ----------------------------------------------------------------------------------------------------------


def sweep_orphans(draft: PlanBuilder) -> None:
    """Delete instances of ours without an open row: old enough, seen twice, and without a node that works."""
    for provider in sorted(draft.world.listed):
        draft.attempt(f"provider {provider}", partial(_sweep, draft, provider))


def _sweep(draft: PlanBuilder, provider: str) -> None:
    _sweep_leftovers(draft, provider)
    for instance in draft.world.orphans(provider):
        if (wait := _wait_to_sweep(draft, provider, instance)) is not None:
            draft.waits.append(wait)
        elif instance.id in draft.world.orphans_before:
            age = _age(draft, provider, instance)
            reason = f"{instance.name} has had no row for {age:.0f} s"
            draft.actions.append(Sweep(provider, instance.id, reason))


def _wait_to_sweep(draft: PlanBuilder, provider: str, instance: Instance) -> Wait | None:
    world, least = draft.world, draft.policy.orphan_seconds
    if instance.name not in world.gone and _has_working_node(world, instance):
        return Wait(instance.name, WaitKind.ORPHAN_AT_WORK, "it has no row, but its node works")
    if instance.phase is Phase.STOPPING:
        return Wait(instance.name, WaitKind.DELETING, "it has no row; it is being deleted")
    if world.nodes is None or not world.clock_settled or _age(draft, provider, instance) < least:
        why = f"it has no row; it is deleted once it is {least:.0f} s old"
        return Wait(instance.name, WaitKind.ORPHAN_YOUNG, why)
    if (held := _held_back(draft, provider, instance.id)) is not None:
        return Wait(instance.name, WaitKind.BACKOFF, f"it has no row; {held}")
    return None


def _has_working_node(world: World, instance: Instance) -> bool:
    operation = naming.operation_of(instance)
    return any(
        node.instance == instance.name and node.state is not NodeState.LOST and node.belongs_to(operation)
        for node in world.nodes or ()
    )


def _age(draft: PlanBuilder, provider: str, instance: Instance) -> float:
    """Return the seconds since an instance was created; both times are the provider's."""
    return draft.world.providers[provider].taken_at - instance.created_at.timestamp()


def _sweep_leftovers(draft: PlanBuilder, provider: str) -> None:
    """Delete side resources, such as addresses and volumes, that no instance uses any more."""
    for leftover in draft.world.providers[provider].leftovers:
        if (held := _held_back(draft, provider, leftover)) is not None:
            draft.wait(leftover, WaitKind.BACKOFF, f"no instance uses it; {held}")
        elif leftover in draft.world.leftovers_before and draft.world.clock_settled:
            draft.actions.append(Sweep(provider, leftover, "no instance has used it for a long time"))
        else:
            draft.wait(leftover, WaitKind.ORPHAN_YOUNG, "no instance uses it; it is deleted once that has lasted")


def _held_back(draft: PlanBuilder, provider: str, thing: str) -> str | None:
    """Return why the delete of something without a row is not sent again yet."""
    held = draft.world.held_back(backoff.sweep_key(provider, thing), draft.now)
    return f"its delete is sent again in {held.until - draft.now:.0f} s: {held.reason}" if held is not None else None


def forget_nodes(draft: PlanBuilder) -> None:
    """Remove nodes from the gateway whose instance is proved gone."""
    for node in draft.world.nodes or ():
        if node.instance in draft.world.gone:
            draft.actions.append(Forget(node.id, f"its instance {node.instance} is gone"))
