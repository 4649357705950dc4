"""What has become clear since the rows were written: rows against listings and nodes."""

from collections.abc import Iterator
from dataclasses import replace

from autoscaler.core import naming
from autoscaler.core.amnesia import forgotten
from autoscaler.core.lookup import Listed, listed, node_of, nodes_by_instance, said
from autoscaler.core.model import (
    Adopt,
    Extended,
    Finding,
    FleetPolicy,
    Intent,
    Learn,
    LessonKey,
    Move,
    Node,
    PoolPolicy,
    ProviderView,
    Started,
    World,
)
from autoscaler.core.states import IntentState
from gateway.wire.resources import Shape
from gateway.wire.states import NodeState
from providers.base import POOL_LABEL, SPEC_LABEL, Instance, Phase

S = IntentState
_WITH_NODE = frozenset({S.READY, S.DRAINING})
_WITH_INSTANCE = frozenset({S.BOOTING, S.READY, S.DRAINING})


def settle(world: World, policy: FleetPolicy, now: float) -> tuple[Finding, ...]:
    """Every change of a row that the world proves.

    A blind provider proves nothing about its instances, and a silent gateway nothing about nodes.  That an instance
    is absent takes two complete listings in a row; that the gateway has forgotten a node, two looks, and that it has
    forgotten many, a long time.
    """
    findings: list[Finding] = []
    nodes, seen = nodes_by_instance(world), listed(world)
    pools = {pool.name: pool for pool in policy.pools}
    lost = forgotten(world, policy)
    for intent in world.intents:
        if intent.provider not in seen:
            continue
        here = seen[intent.provider]
        instance = here.first(intent.operation_id)
        found: Move | Started | Extended | None = _finding(intent, here, node_of(intent, nodes), world, now, lost)
        if found is None and intent.pool in pools:
            pool = pools[intent.pool]
            found = _started(intent, instance, pool, now) or _extended(intent, instance, pool, world, now)
        if found is not None:
            findings.append(found)
    for pool in policy.pools:
        findings += _adoptions(world, pool, nodes, now)
    # From the rows as they will be: what a node lacks must not be bought again in the very tick that shows it.
    findings += _lessons(applied(world, tuple(findings), now), pools, nodes)
    return tuple(findings)


def applied(world: World, findings: tuple[Finding, ...], now: float) -> World:
    """The world with its rows changed as found."""
    intents = {intent.operation_id: intent for intent in world.intents}
    learned = dict(world.learned)
    for finding in findings:
        match finding:
            case Move():
                intents[finding.operation_id] = moved(intents[finding.operation_id], finding, now)
            case Started():
                intents[finding.operation_id] = started(intents[finding.operation_id], finding, now)
            case Extended():
                intents[finding.operation_id] = extended(intents[finding.operation_id], finding, now)
            case Adopt():
                intents[finding.intent.operation_id] = finding.intent
            case Learn():
                learned[finding.key] = finding.shape
    kept = tuple(intent for intent in intents.values() if intent.state is not S.GONE)
    return replace(world, intents=kept, learned=learned)


def moved(intent: Intent, move: Move, now: float) -> Intent:
    """The row after a move; a field that the move leaves out stays."""
    return replace(
        intent,
        state=move.to,
        changed_at=now,
        detail=move.reason,
        instance_id=move.instance_id or intent.instance_id,
        node_id=move.node_id or intent.node_id,
    )


def started(intent: Intent, found: Started, now: float) -> Intent:
    """The row once its instance runs."""
    return replace(intent, running_at=now, deadline=found.deadline, detail=found.reason)


def extended(intent: Intent, found: Extended, now: float) -> Intent:
    """The row once its boot was given more time."""
    return replace(intent, extended_at=now, deadline=found.deadline, detail=found.reason)


def _extended(intent: Intent, instance: Instance | None, pool: PoolPolicy, world: World, now: float) -> Extended | None:
    """Slow is not stuck: what has just come a step nearer may go on, but not without end."""
    if intent.state is not S.BOOTING or now <= intent.deadline or intent.extended_at is not None:
        return None
    if instance is None or instance.progress_at is None or not world.clock_settled or pool.extend_seconds <= 0:
        return None
    ago = max(0.0, world.providers[intent.provider].taken_at - instance.progress_at.timestamp())
    if ago > pool.extend_seconds:
        return None
    reason = f"it is late, but came a step nearer {ago:.0f} s ago; it gets {pool.extend_seconds:.0f} s more, once"
    return Extended(intent.operation_id, now + pool.extend_seconds, reason + said(instance))


def _started(intent: Intent, instance: Instance | None, pool: PoolPolicy, now: float) -> Started | None:
    if intent.state is not S.BOOTING or intent.running_at is not None:
        return None
    if instance is None or instance.phase is not Phase.RUNNING:
        return None
    return Started(intent.operation_id, now + pool.boot_seconds, "the provider says that it runs")


def _finding(
    intent: Intent, here: Listed, node: Node | None, world: World, now: float, lost: frozenset[str]
) -> Move | None:
    if intent.state is S.PLANNED and now > intent.deadline:
        return Move(intent.operation_id, S.GONE, "its create was never sent, and its time is over")
    if intent.state is S.CALLING:
        return _after_call(intent, here.first(intent.operation_id), world, now)
    if intent.state not in _WITH_INSTANCE:
        return None
    return _loss(intent, here, node, world) or _registration(intent, node, world, lost)


def _after_call(intent: Intent, instance: Instance | None, world: World, now: float) -> Move | None:
    if instance is not None:
        # The time to start began with the call, so the deadline stays.
        return Move(intent.operation_id, S.BOOTING, "the provider lists it", instance_id=instance.id)
    if now > intent.deadline and world.clock_settled:
        return Move(intent.operation_id, S.ABANDONED, "no instance came of it in time; it is not asked for again")
    return None


def _loss(intent: Intent, here: Listed, node: Node | None, world: World) -> Move | None:
    instance = here.first(intent.operation_id)
    # That its node did register is kept: then it is no failed boot.
    node_id = node.id if node is not None else None
    if instance is None:
        if intent.sighting not in world.missing_before:
            return None
        reason = f"the provider has listed it no more, twice{said(here.ended(intent.operation_id))}"
        return Move(intent.operation_id, S.LOST, reason, node_id=node_id)
    if instance.phase is Phase.LOST:
        reason = f"the provider says that it is lost{said(instance)}"
        return Move(intent.operation_id, S.LOST, reason, node_id=node_id)
    if instance.phase is Phase.STOPPING:
        return Move(intent.operation_id, S.DELETING, "somebody else deletes it")
    return None


def _registration(intent: Intent, node: Node | None, world: World, lost: frozenset[str]) -> Move | None:
    if world.nodes is None:
        return None
    # Whatever it is now, work may be there since its first heartbeat, so the boot's deadline is over for it.
    if intent.state is S.BOOTING and node is not None and node.heartbeat_at is not None:
        return Move(intent.operation_id, S.READY, f"node {node.id} has registered", node_id=node.id)
    if intent.operation_id in lost:
        return Move(intent.operation_id, S.LOST, f"the gateway has forgotten node {intent.node_id}")
    return None


def _adoptions(world: World, pool: PoolPolicy, nodes: dict[str, Node], now: float) -> Iterator[Adopt]:
    """Rows for working nodes of ours that have none."""
    view = world.providers.get(pool.provider)
    if view is None or view.instances is None:
        return
    known = {intent.operation_id for intent in world.intents}
    # A second instance of a name that a row has is no lost row: somebody else made it.
    names = world.gone | {intent.name for intent in world.intents}
    for instance in view.instances:
        operation_id, node = naming.operation_of(instance), nodes.get(instance.name)
        if operation_id is None or operation_id in known or instance.name in names:
            continue
        if instance.labels.get(POOL_LABEL) != pool.name or node is None or not _works(instance, node, operation_id):
            continue
        known.add(operation_id)
        names |= {instance.name}
        yield _adopt(instance, operation_id, node, pool, view, now)


def _works(instance: Instance, node: Node, operation_id: str) -> bool:
    """Whether an instance runs and this is its node, at work."""
    is_its_own = node.operation_id in (None, operation_id)
    return is_its_own and instance.phase is Phase.RUNNING and node.state in (NodeState.READY, NodeState.DRAINING)


def _adopt(
    instance: Instance, operation_id: str, node: Node, pool: PoolPolicy, view: ProviderView, now: float
) -> Adopt:
    reason = f"node {node.id} works and no row knows its instance"
    prices = {(offer.type, offer.location): offer.price_per_hour for offer in view.offers}
    intent = Intent(
        operation_id=operation_id,
        pool=pool.name,
        provider=pool.provider,
        name=instance.name,
        type=instance.type,
        location=instance.location,
        state=S.READY if node.state is NodeState.READY else S.DRAINING,
        created_at=min(now, instance.created_at.timestamp()),
        changed_at=now,
        deadline=now + pool.boot_seconds,
        instance_id=instance.id,
        node_id=node.id,
        detail=reason,
        price=prices.get((instance.type, instance.location)),
        spec=instance.labels.get(SPEC_LABEL, ""),
        running_at=now,
    )
    return Adopt(intent, reason)


def _lessons(world: World, pools: dict[str, PoolPolicy], nodes: dict[str, Node]) -> Iterator[Learn]:
    """What types really give under the present settings: the least that any of their nodes reports now."""
    seen: dict[LessonKey, Node] = {}
    for intent in world.intents:
        node, pool = nodes.get(intent.name), pools.get(intent.pool)
        if node is None or pool is None or intent.state not in _WITH_NODE or intent.base != pool.spec:
            continue
        key = (intent.pool, intent.type, pool.spec)
        least = seen.get(key)
        if least is None or node.total.memory_mb < least.total.memory_mb:
            seen[key] = node
    for key, node in sorted(seen.items()):
        if _differs(world.learned.get(key), node.total):
            yield Learn(*key, node.total)


def _differs(known: Shape | None, seen: Shape) -> bool:
    """By more than one part in twenty; free disk changes a little all the time."""
    if known is None:
        return True
    pairs = ((getattr(known, name), getattr(seen, name)) for name in Shape.model_fields)
    return any(abs(before - after) > before / 20 for before, after in pairs)
