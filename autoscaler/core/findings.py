"""Findings: what listings and nodes prove about rows since these were written.

Nodes that the gateway has forgotten are lost, one by one.  Many at once say that the gateway itself has lost something:
one that was started over an empty database knows no node, and if it were believed at once, the whole fleet would be
deleted before anybody could put the right database back.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from autoscaler.core import naming
from autoscaler.core.actions import Adopt, BootExtended, BootStarted, Finding, Learn, Move, Wait, WaitKind
from autoscaler.core.doubts import Doubt, unclear_amounts
from autoscaler.core.pools import FleetPolicy, PoolPolicy
from autoscaler.core.states import WITH_INSTANCE, WITH_NODE, IntentState, next_state
from autoscaler.core.world import Intent, LearnedKey, NodeView, ProviderView, World, last_words
from gateway.wire.resources import Shape
from gateway.wire.states import NodeState
from providers.base import POOL_LABEL, SPEC_LABEL, Instance, Phase

S = IntentState
FORGOTTEN_COUNT: Final = 3
"""So many forgotten nodes are still taken for single ones; the cluster autoscaler's bounds for an unhealthy cluster."""
FORGOTTEN_SHARE: Final = 0.45
"""Part of all nodes that may be forgotten at once."""


def settle(world: World, policy: FleetPolicy, now: float) -> tuple[Finding, ...]:
    """Return every change of a row that the world proves.

    A blind provider proves nothing about its instances, and a silent gateway nothing about nodes.  That an instance
    is absent takes two complete listings in a row; that the gateway has forgotten a node, two looks, and that it has
    forgotten many, a long time.
    """
    findings: list[Finding] = []
    pools = {pool.name: pool for pool in policy.pools}
    lost = _forgotten(world, policy)
    for intent in world.intents:
        if intent.provider not in world.listed:
            continue
        rule = partial(_of_row, intent, pools.get(intent.pool), world, now, lost)
        findings += _attempt(intent.name, intent.pool, rule)
    for pool in policy.pools:
        findings += _attempt(f"pool {pool.name}", pool.name, partial(_adoptions, world, pool, now))
    # From the rows as they will be: what a node lacks must not be bought again in the very tick that shows it.
    settled = applied(world, tuple(findings), now)
    findings += _attempt("what nodes have", None, partial(_lessons, settled, pools))
    return tuple(findings)


# -- rows after a finding ---------------------------------------------------------------------------------------------


def applied(world: World, findings: tuple[Finding, ...], now: float) -> World:
    """Return the world with its rows changed as found."""
    intents = {intent.operation_id: intent for intent in world.intents}
    learned, doubts = dict(world.learned), list(world.doubts)
    for finding in findings:
        match finding:
            case Move() | BootStarted() | BootExtended():
                intents[finding.operation_id] = changed(intents[finding.operation_id], finding, now)
            case Adopt():
                intents[finding.intent.operation_id] = finding.intent
            case Learn():
                learned[finding.key] = finding.shape
            case Doubt():
                doubts.append(finding)
    kept = tuple(intent for intent in intents.values() if intent.state is not S.GONE)
    return replace(world, intents=kept, learned=learned, doubts=tuple(doubts))


def changed(intent: Intent, finding: Move | BootStarted | BootExtended, now: float) -> Intent:
    """Return a row after a finding about it; a field that the finding leaves out stays.

    Raises:
        IntentTransitionError: The table of states does not hold that move.
    """
    match finding:
        case Move():
            return replace(
                intent,
                state=next_state(intent.state, finding.to),
                changed_at=now,
                detail=finding.reason,
                instance_id=finding.instance_id or intent.instance_id,
                node_id=finding.node_id or intent.node_id,
            )
        case BootStarted():
            return replace(intent, running_at=now, deadline=finding.deadline, detail=finding.reason)
        case BootExtended():
            return replace(intent, extended_at=now, deadline=finding.deadline, detail=finding.reason)


# -- one row ----------------------------------------------------------------------------------------------------------


def _attempt(subject: str, pool: str | None, rule: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """Return what a rule finds about one thing, or a doubt: whatever breaks it must not hide what the others prove."""
    try:
        return list(rule())
    except Exception as error:  # noqa: BLE001 - see above
        return [Doubt.of(subject, error, pool)]


def _of_row(
    intent: Intent, pool: PoolPolicy | None, world: World, now: float, lost: frozenset[str]
) -> Iterator[Finding]:
    found: Finding | None = _move(intent, world, now, lost)
    if found is None and pool is not None:
        found = _started(intent, pool, world, now) or _extended(intent, pool, world, now)
    if found is not None:
        yield found


def _move(intent: Intent, world: World, now: float, lost: frozenset[str]) -> Move | None:
    if intent.state is S.PLANNED and now > intent.deadline:
        return Move(intent.operation_id, S.GONE, "its create was not sent before its deadline")
    if intent.state is S.CALLING:
        return _after_call(intent, world, now)
    if intent.state not in WITH_INSTANCE:
        return None
    return _loss(intent, world) or _registration(intent, world, lost)


def _after_call(intent: Intent, world: World, now: float) -> Move | None:
    instance = world.listed[intent.provider].first(intent.operation_id)
    if instance is not None:
        # The time to start began with the call, so the deadline stays.
        return Move(intent.operation_id, S.BOOTING, "the provider lists it", instance_id=instance.id)
    if now > intent.deadline and world.clock_settled:
        return Move(intent.operation_id, S.ABANDONED, "no instance was made in time; its create is not sent again")
    return None


def _loss(intent: Intent, world: World) -> Move | None:
    index, node = world.listed[intent.provider], world.node_of(intent)
    instance = index.first(intent.operation_id)
    # That its node did register is kept: then it is no failed boot.
    node_id = node.id if node is not None else None
    if instance is None:
        if intent.sighting not in world.missing_before:
            return None
        reason = f"missing from two consecutive provider listings{last_words(index.ended(intent.operation_id))}"
        return Move(intent.operation_id, S.LOST, reason, node_id=node_id)
    if instance.phase is Phase.LOST:
        reason = f"the provider has lost it{last_words(instance)}"
        return Move(intent.operation_id, S.LOST, reason, node_id=node_id)
    if instance.phase is Phase.STOPPING:
        return Move(intent.operation_id, S.DELETING, "somebody else deletes it")
    return None


def _registration(intent: Intent, world: World, lost: frozenset[str]) -> Move | None:
    if world.nodes is None:
        return None
    node = world.node_of(intent)
    # Whatever it is now, work may be there since its first heartbeat, so the boot's deadline is over for it.
    if intent.state is S.BOOTING and node is not None and node.heartbeat_at is not None:
        return Move(intent.operation_id, S.READY, f"node {node.id} has registered", node_id=node.id)
    if intent.operation_id in lost:
        return Move(intent.operation_id, S.LOST, f"the gateway has forgotten node {intent.node_id}")
    return None


def _started(intent: Intent, pool: PoolPolicy, world: World, now: float) -> BootStarted | None:
    instance = world.listed[intent.provider].first(intent.operation_id)
    if intent.state is not S.BOOTING or intent.running_at is not None:
        return None
    if instance is None or instance.phase is not Phase.RUNNING:
        return None
    return BootStarted(intent.operation_id, now + pool.boot_seconds, "the provider reports it running")


def _extended(intent: Intent, pool: PoolPolicy, world: World, now: float) -> BootExtended | None:
    """Give more time to what has just come a step nearer, for slow is not stuck; but not without end."""
    instance = world.listed[intent.provider].first(intent.operation_id)
    if intent.state is not S.BOOTING or now <= intent.deadline or intent.extended_at is not None:
        return None
    if instance is None or instance.progress_at is None or not world.clock_settled or pool.extend_seconds <= 0:
        return None
    ago = max(0.0, world.providers[intent.provider].taken_at - instance.progress_at.timestamp())
    if ago > pool.extend_seconds:
        return None
    reason = f"it is late, but made progress {ago:.0f} s ago; it gets {pool.extend_seconds:.0f} s more, once"
    return BootExtended(intent.operation_id, now + pool.extend_seconds, reason + last_words(instance))


# -- nodes that the gateway has forgotten -----------------------------------------------------------------------------


def amnesia_warning(world: World, policy: FleetPolicy) -> Wait | None:
    """Return what a person should look at while the gateway is not believed."""
    unknown = _unknown(world)
    if not _are_too_many(world, unknown) or not unknown - _forgotten(world, policy):
        return None
    why = (
        f"the gateway does not know {len(unknown)} nodes any more, so it may have lost its database; "
        f"their instances are kept for {policy.silent_seconds:.0f} s; look at the gateway"
    )
    return Wait("fleet", WaitKind.GATEWAY_AMNESIA, why)


def _forgotten(world: World, policy: FleetPolicy) -> frozenset[str]:
    """Return operations whose node is taken for lost because the gateway does not know it, twice in a row.

    Of many at once, only those that it has not known for `FleetPolicy.silent_seconds`.
    """
    unknown = _unknown(world)
    if not _are_too_many(world, unknown):
        return unknown
    return frozenset(each for each in unknown if world.unknown_nodes_before[each] >= policy.silent_seconds)


def _unknown(world: World) -> frozenset[str]:
    if world.nodes is None or not world.unknown_nodes_before:
        return frozenset()
    return frozenset(
        intent.operation_id
        for intent in world.intents
        if intent.state in WITH_NODE
        and intent.operation_id in world.unknown_nodes_before
        and world.node_of(intent) is None
    )


def _are_too_many(world: World, unknown: frozenset[str]) -> bool:
    every = sum(1 for intent in world.intents if intent.state in WITH_NODE)
    return len(unknown) > FORGOTTEN_COUNT and len(unknown) > FORGOTTEN_SHARE * every


# -- nodes without a row, and what nodes really have ------------------------------------------------------------------


def _adoptions(world: World, pool: PoolPolicy, now: float) -> Iterator[Adopt]:
    """Yield rows for working nodes of ours that have none."""
    view = world.providers.get(pool.provider)
    if view is None or view.instances is None:
        return
    known = {intent.operation_id for intent in world.intents}
    # A second instance with the name of a row is not a lost row: somebody else made it.
    names = world.gone | {intent.name for intent in world.intents}
    for instance in view.instances:
        operation_id, node = naming.operation_of(instance), world.nodes_by_instance.get(instance.name)
        if operation_id is None or operation_id in known or instance.name in names:
            continue
        if instance.labels.get(POOL_LABEL) != pool.name or node is None or not _works(instance, node, operation_id):
            continue
        known.add(operation_id)
        names |= {instance.name}
        yield _adopt(instance, operation_id, node, pool, view, now)


def _works(instance: Instance, node: NodeView, operation_id: str) -> bool:
    """Return whether an instance runs and this is its node, at work."""
    is_at_work = instance.phase is Phase.RUNNING and node.state in (NodeState.READY, NodeState.DRAINING)
    return is_at_work and node.belongs_to(operation_id)


def _adopt(
    instance: Instance, operation_id: str, node: NodeView, pool: PoolPolicy, view: ProviderView, now: float
) -> Adopt:
    reason = f"node {node.id} works, and its instance has no row"
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


def _lessons(world: World, pools: dict[str, PoolPolicy]) -> Iterator[Learn]:
    """Yield what types really give under the present settings: the least that any of their nodes reports now."""
    seen: dict[LearnedKey, NodeView] = {}
    for intent in world.intents:
        node, pool = world.nodes_by_instance.get(intent.name), pools.get(intent.pool)
        if node is None or pool is None or intent.state not in WITH_NODE or intent.base != pool.spec:
            continue
        if unclear_amounts(node.total) is not None:
            continue  # the plan tells it
        key = (intent.pool, intent.type, pool.spec)
        least = seen.get(key)
        if least is None or node.total.memory_mb < least.total.memory_mb:
            seen[key] = node
    for key, node in sorted(seen.items()):
        if _differs(world.learned.get(key), node.total):
            yield Learn(*key, node.total)


def _differs(known: Shape | None, seen: Shape) -> bool:
    """Return whether they differ by more than one part in twenty; free disk changes a little all the time."""
    if known is None:
        return True
    pairs = ((getattr(known, name), getattr(seen, name)) for name in Shape.model_fields)
    return any(abs(before - after) > before / 20 for before, after in pairs)
