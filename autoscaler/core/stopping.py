"""What is to go, whatever the demand: the failed, the lost, the drained, and what no row knows."""

from collections.abc import Iterator

from autoscaler.core import naming
from autoscaler.core.lifecycle import IntentState
from autoscaler.core.model import FleetPolicy, Forget, Intent, Node, ProviderView, Stop, Sweep, Wait, World
from autoscaler.core.settle import instances_of, nodes_by_instance
from gateway.wire.states import NodeState
from providers.base import Instance, Phase

S = IntentState


def stops(world: World, policy: FleetPolicy, now: float, waits: list[Wait]) -> list[Stop]:
    """Rows whose instance is to be deleted now."""
    nodes = nodes_by_instance(world)
    found: list[Stop] = []
    for intent in world.intents:
        view = world.providers.get(intent.provider)
        if view is None or view.instances is None:
            continue
        stop = _stop(intent, view, nodes.get(intent.name), world, policy, now)
        if isinstance(stop, Stop):
            found.append(stop)
        elif stop is not None:
            waits.append(Wait(intent.name, stop))
    return found


def _stop(
    intent: Intent, view: ProviderView, node: Node | None, world: World, policy: FleetPolicy, now: float
) -> Stop | str | None:
    """The stop of one row; or why it is put off; or nothing."""
    operation = intent.operation_id
    match intent.state:
        case S.ABANDONED:
            return Stop(operation, intent.detail, boot_failed=True)
        case S.LOST:
            return Stop(operation, intent.detail, boot_failed=intent.node_id is None)
        case S.DELETING:
            return _again(intent, view, policy, now)
        case S.BOOTING if now > intent.deadline:
            if not world.clock_settled:
                return "its boot took too long, but the clock has just jumped"
            return Stop(
                operation, f"no node came of it in {intent.deadline - intent.created_at:.0f} s", boot_failed=True
            )
        case S.READY | S.DRAINING if node is not None and node.state is NodeState.LOST:
            return _silent(intent, node, world, policy, now)
        case S.DRAINING if node is not None:
            return _drained(intent, node)
    return None


def _again(intent: Intent, view: ProviderView, policy: FleetPolicy, now: float) -> Stop | str:
    if not instances_of(view, intent.operation_id):
        return Stop(intent.operation_id, "it is listed no more; the provider shall confirm it")
    if now < max(intent.next_try_at, intent.changed_at + policy.delete_retry_seconds):
        return "it is being deleted"
    return Stop(intent.operation_id, "it is still there; asking again")


def _silent(intent: Intent, node: Node, world: World, policy: FleetPolicy, now: float) -> Stop | str:
    silent = now - (node.heartbeat_at or intent.changed_at)
    if not world.clock_settled or silent < policy.silent_seconds:
        return f"node {node.id} is lost; it is stopped after {policy.silent_seconds:.0f} s of silence"
    return Stop(intent.operation_id, f"node {node.id} has been silent for {silent:.0f} s")


def _drained(intent: Intent, node: Node) -> Stop | str | None:
    """Empty, closed, and said so in a heartbeat after it was closed."""
    if not node.is_empty or node.state is not NodeState.DRAINING:
        return None  # `scaling` opens it again or closes it once more
    if node.heartbeat_at is None or intent.drain_mark is None or node.heartbeat_at <= intent.drain_mark:
        return f"node {node.id} is closed; its next heartbeat shall show that it is empty"
    return Stop(intent.operation_id, f"node {node.id} is drained and empty", drained=True)


def sweeps(world: World, policy: FleetPolicy, now: float, waits: list[Wait]) -> list[Sweep]:
    """Instances of ours that no open row knows: old enough, seen twice, and without a node that works."""
    working = {node.instance for node in world.nodes or () if node.state is not NodeState.LOST}
    found: list[Sweep] = []
    for name, view in sorted(world.providers.items()):
        for instance in strays(world, name, view):
            age = view.taken_at - instance.created_at.timestamp()
            if instance.name in working and instance.name not in world.gone:
                waits.append(Wait(instance.name, "no row knows it, but its node works"))
            elif instance.phase is Phase.STOPPING:
                waits.append(Wait(instance.name, "no row knows it; it is being deleted"))
            elif world.nodes is None or not world.clock_settled or age < policy.orphan_seconds:
                waits.append(
                    Wait(instance.name, f"no row knows it; it is deleted at {policy.orphan_seconds:.0f} s of age")
                )
            elif instance.id in world.strays_before:
                found.append(Sweep(name, instance.id, f"{instance.name} has been there for {age:.0f} s without a row"))
    return found


def strays(world: World, provider: str, view: ProviderView) -> Iterator[Instance]:
    """Listed instances that no open row stands for; of several of one operation, all but the oldest."""
    open_ = {intent.operation_id for intent in world.intents if intent.provider == provider}
    for instance in view.instances or ():
        if instance.phase is Phase.GONE:
            continue
        operation = naming.operation_of(instance)
        if operation not in open_ or instances_of(view, operation)[0].id != instance.id:
            yield instance


def forgets(world: World) -> list[Forget]:
    """Nodes whose instance is proved gone."""
    return [
        Forget(node.id, f"its instance {node.instance} is gone")
        for node in world.nodes or ()
        if node.instance in world.gone
    ]
