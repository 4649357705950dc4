"""What is to go, whatever the demand: the failed, the lost, the drained, and what no row knows."""

from collections.abc import Iterator

from autoscaler.core import backoff, naming
from autoscaler.core.lookup import Listed, listed, node_of, nodes_by_instance, said
from autoscaler.core.model import (
    FleetPolicy,
    Forget,
    Intent,
    Node,
    PoolPolicy,
    ProviderView,
    Stop,
    Sweep,
    Wait,
    WaitKind,
    World,
)
from autoscaler.core.states import IntentState
from gateway.wire.states import NodeState
from providers.base import Instance, Phase

S = IntentState


def stops(world: World, policy: FleetPolicy, now: float, waits: list[Wait]) -> list[Stop]:
    """Rows whose instance is to be deleted now."""
    nodes, seen = nodes_by_instance(world), listed(world)
    pools = {pool.name: pool for pool in policy.pools}
    found: list[Stop] = []
    for intent in world.intents:
        if intent.provider not in seen:
            continue
        stop = (
            _again(intent, seen[intent.provider], policy, now)
            if intent.state is S.DELETING
            else _stop(intent, node_of(intent, nodes), seen[intent.provider], world, policy, now)
        )
        if isinstance(stop, Stop):
            found.append(stop)
        elif stop is not None:
            waits.append(stop)
        elif (overdue := _overdue(intent, pools.get(intent.pool), now)) is not None:
            waits.append(overdue)
    return found


def _stop(
    intent: Intent, node: Node | None, seen: Listed, world: World, policy: FleetPolicy, now: float
) -> Stop | Wait | None:
    """The stop of one row; or why it is put off; or nothing."""
    operation = intent.operation_id
    match intent.state:
        case S.ABANDONED:
            if seen.first(operation) is None and (now < intent.next_try_at or not world.clock_settled):
                why = "it was given up, but its last create may still come through; it counts until then"
                return Wait(intent.name, WaitKind.LATE_CREATE, why)
            return Stop(operation, intent.detail, boot_failed=True)
        case S.LOST:
            return Stop(operation, intent.detail, boot_failed=intent.node_id is None)
        case S.BOOTING if now > intent.deadline:
            if not world.clock_settled:
                return Wait(intent.name, WaitKind.CLOCK_JUMP, "its boot took too long, but the clock has just jumped")
            if world.nodes is None:
                why = "its boot took too long, but its node may have registered: the gateway cannot be asked"
                return Wait(intent.name, WaitKind.NO_GATEWAY, why)
            return Stop(operation, _too_slow(intent) + said(seen.first(operation)), boot_failed=True)
        case S.READY | S.DRAINING if node is not None and node.state is NodeState.LOST:
            return _silent(intent, node, world, policy, now)
        case S.DRAINING if node is not None:
            return _drained(intent, node)
    return None


def _too_slow(intent: Intent) -> str:
    extended_at = intent.extended_at
    more = ", more time included" if extended_at is not None and extended_at >= (intent.running_at or 0.0) else ""
    if intent.running_at is None:
        return f"it did not run within {intent.deadline - intent.created_at:.0f} s{more}"
    return f"it runs, but no node came of it in {intent.deadline - intent.running_at:.0f} s{more}"


def _overdue(intent: Intent, pool: PoolPolicy | None, now: float) -> Wait | None:
    """A closed node that does not become empty is for a person to look at: what runs there is not killed."""
    closed_for = now - intent.changed_at
    if intent.state is not S.DRAINING or pool is None or closed_for <= pool.drain_seconds:
        return None
    why = f"it has been closed for {closed_for:.0f} s and is still not empty; look at what runs there"
    return Wait(intent.name, WaitKind.STUCK_DRAIN, why)


def _again(intent: Intent, seen: Listed, policy: FleetPolicy, now: float) -> Stop | Wait:
    if not seen.of(intent.operation_id):
        return Stop(intent.operation_id, "it is listed no more; the provider shall confirm it")
    if now < max(intent.next_try_at, intent.changed_at + policy.delete_retry_seconds):
        return Wait(intent.name, WaitKind.DELETING, f"it is being deleted: {intent.detail}")
    return Stop(intent.operation_id, "it is still there; asking again")


def _silent(intent: Intent, node: Node, world: World, policy: FleetPolicy, now: float) -> Stop | Wait:
    silent = now - (node.heartbeat_at or intent.changed_at)
    if not world.clock_settled or silent < policy.silent_seconds:
        why = f"node {node.id} is lost; it is stopped after {policy.silent_seconds:.0f} s of silence"
        return Wait(intent.name, WaitKind.SILENT_NODE, why)
    return Stop(intent.operation_id, f"node {node.id} has been silent for {silent:.0f} s")


def _drained(intent: Intent, node: Node) -> Stop | Wait | None:
    """Empty, closed, and said so in a heartbeat after it was closed."""
    if not node.is_empty or node.state is not NodeState.DRAINING:
        return None  # `scaling` opens it again or closes it once more
    if node.heartbeat_at is None or intent.drain_mark is None or node.heartbeat_at <= intent.drain_mark:
        why = f"node {node.id} is closed; its next heartbeat shall show that it is empty"
        return Wait(intent.name, WaitKind.UNPROVED_DRAIN, why)
    return Stop(intent.operation_id, f"node {node.id} is drained and empty", drained=True)


def sweeps(world: World, policy: FleetPolicy, now: float, waits: list[Wait]) -> list[Sweep]:
    """Instances of ours that no open row knows: old enough, seen twice, and without a node that works."""
    working = {node.instance: node for node in world.nodes or () if node.state is not NodeState.LOST}
    found: list[Sweep] = []
    for name, seen in sorted(listed(world).items()):
        view = world.providers[name]
        if view.leftovers:
            found += _unused(world, name, view, now, waits)
        for instance in strays(world, name, seen, view):
            age = view.taken_at - instance.created_at.timestamp()
            node = working.get(instance.name) if instance.name not in world.gone else None
            if node is not None and node.operation_id in (None, naming.operation_of(instance)):
                waits.append(Wait(instance.name, WaitKind.ORPHAN_AT_WORK, "no row knows it, but its node works"))
            elif instance.phase is Phase.STOPPING:
                waits.append(Wait(instance.name, WaitKind.DELETING, "no row knows it; it is being deleted"))
            elif world.nodes is None or not world.clock_settled or age < policy.orphan_seconds:
                waits.append(
                    Wait(
                        instance.name,
                        WaitKind.ORPHAN_YOUNG,
                        f"no row knows it; it goes at {policy.orphan_seconds:.0f} s",
                    )
                )
            elif (held := _told(world, name, instance.id, now)) is not None:
                waits.append(Wait(instance.name, WaitKind.BACKOFF, f"no row knows it; {held}"))
            elif instance.id in world.strays_before:
                found.append(Sweep(name, instance.id, f"{instance.name} has been there for {age:.0f} s without a row"))
    return found


def _told(world: World, provider: str, thing: str, now: float) -> str | None:
    """Why something is not told to go again yet."""
    held = world.backoffs.get(backoff.sweep_key(provider, thing))
    if held is None or now >= held.until:
        return None
    return f"it is told to go again in {held.until - now:.0f} s: {held.reason}"


def _unused(world: World, name: str, view: ProviderView, now: float, waits: list[Wait]) -> list[Sweep]:
    """Side resources, such as addresses and volumes, that no instance uses any more."""
    found: list[Sweep] = []
    for leftover in view.leftovers:
        if (held := _told(world, name, leftover, now)) is not None:
            waits.append(Wait(leftover, WaitKind.BACKOFF, f"no instance uses it; {held}"))
        elif leftover in world.leftovers_before and world.clock_settled:
            found.append(Sweep(name, leftover, "no instance has used it for long"))
        else:
            waits.append(Wait(leftover, WaitKind.ORPHAN_YOUNG, "no instance uses it; it goes once that has lasted"))
    return found


def strays(world: World, provider: str, seen: Listed, view: ProviderView) -> Iterator[Instance]:
    """Listed instances that no open row stands for; of several of one operation, all but the oldest."""
    open_ = {intent.operation_id for intent in world.intents if intent.provider == provider}
    for instance in view.instances or ():
        if instance.phase is Phase.GONE:
            continue
        operation = naming.operation_of(instance)
        if operation not in open_ or seen.of(operation)[0].id != instance.id:
            yield instance


def forgets(world: World) -> list[Forget]:
    """Nodes whose instance is proved gone."""
    return [
        Forget(node.id, f"its instance {node.instance} is gone")
        for node in world.nodes or ()
        if node.instance in world.gone
    ]
