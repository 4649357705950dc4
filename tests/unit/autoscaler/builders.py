"""Small worlds for the rules of `autoscaler.core`: one cloud, one pool, one kind of node, unless a test says more."""

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from autoscaler.core import naming
from autoscaler.core.actions import Action, Boot, Drain, Finding, Move, Plan, RefusalKind, WaitKind
from autoscaler.core.findings import settle
from autoscaler.core.plan import plan
from autoscaler.core.pools import FleetPolicy, PoolPolicy
from autoscaler.core.states import IntentState
from autoscaler.core.world import BackOff, BackOffKey, BackOffKind, DemandItem, Intent, NodeView, ProviderView, World
from gateway.wire.resources import Shape
from gateway.wire.states import NodeState
from providers.base import Billing, Caps, Instance, Offer, Phase, Resources

S = IntentState
NOW = 1_900_000_000.0
CAPS = Caps(
    unique_names=True,
    list_is_atomic=True,
    deleted_vanish=True,
    billing=Billing.PER_SECOND,
    max_user_data=None,
    calls_per_hour=None,
    has_gpu=True,
)
SMALL = Offer("small", "here", Resources(4, 8192, 80_000), Decimal("0.01"), available=True)
CHEAP_FAR = Offer("small", "there", Resources(4, 8192, 80_000), Decimal("0.005"), available=True)
GPU = Offer("gpu", "here", Resources(16, 65536, 80_000, gpus=1), Decimal("1"), available=True)
ONE = Shape(cpus=1, memory_mb=1024, disk_mb=1024, slots=1)
GPU_ONE = Shape(cpus=1, memory_mb=1024, disk_mb=1024, gpus=1, slots=1)
FULL = Shape(cpus=4, memory_mb=7680, disk_mb=70_000, slots=10)
"""What a small node has for sandboxes."""


def at(seconds: float) -> datetime:
    """Return the moment so many seconds from now."""
    return datetime.fromtimestamp(NOW + seconds, UTC)


def a_pool(**changes: Any) -> PoolPolicy:
    """Return a pool of at most three nodes, without a hold after growth and without overcommit."""
    values: dict[str, Any] = {"name": "cpu", "provider": "cloud", "role": "sandbox", "min": 0, "max": 3}
    values |= {"idle_seconds": 100.0, "boot_seconds": 300.0, "cpu_overcommit": 1.0, "hold_seconds": 0.0}
    return PoolPolicy(**(values | changes))


def an_intent(state: IntentState, number: int = 1, **changes: Any) -> Intent:
    """Return a row of 50 s of age, of the operation ``op<number>``."""
    operation = f"op{number}"
    intent = Intent(
        operation_id=operation,
        pool="cpu",
        provider="cloud",
        name=f"test-cpu-{operation}",
        type="small",
        location="here",
        state=state,
        created_at=NOW - 50,
        changed_at=NOW - 50,
        deadline=NOW + 250,
        instance_id=f"vm-{operation}",
        node_id=f"node-{operation}" if state in (S.READY, S.DRAINING) else None,
    )
    return replace(intent, **changes)


def instance_of(intent: Intent, phase: Phase = Phase.RUNNING, **changes: Any) -> Instance:
    """Return the instance of a row."""
    made = Instance(
        id=f"vm-{intent.operation_id}",
        name=intent.name,
        labels=naming.labels("test", intent.pool, "sandbox", intent.operation_id),
        phase=phase,
        type=intent.type,
        location=intent.location,
        created_at=at(-50),
    )
    return replace(made, **changes)


def node_of(intent: Intent, **changes: Any) -> NodeView:
    """Return the empty node of a row, which has been idle for 10 s."""
    node = NodeView(
        id=f"node-{intent.operation_id}",
        instance=intent.name,
        pool=intent.pool,
        state=NodeState.READY,
        total=FULL,
        reserved=Shape(),
        sandboxes=0,
        engines=frozenset({("runsc", "gvisor")}),
        heartbeat_at=NOW - 1,
        idle_since=NOW - 10,
    )
    return replace(node, **changes)


def busy(intent: Intent, **changes: Any) -> NodeView:
    """Return the node of a row without any free room."""
    return node_of(intent, reserved=FULL, sandboxes=3, idle_since=None, **changes)


def world(
    *intents: Intent, nodes: tuple[NodeView, ...] = (), waiting: int | list[DemandItem] = 0, **changes: Any
) -> World:
    """Return a world of rows whose instances all run, unless ``instances`` says otherwise."""
    listed = changes.pop("instances", tuple(instance_of(i) for i in intents if i.state not in (S.PLANNED, S.CALLING)))
    offers = changes.pop("offers", (SMALL, CHEAP_FAR, GPU))
    view = ProviderView(changes.pop("caps", CAPS), listed, taken_at=NOW, offers=offers, problem="it is asleep")
    items = [DemandItem(ONE)] * waiting if isinstance(waiting, int) else waiting
    return replace(World(intents, providers={"cloud": view}, nodes=nodes, waiting=tuple(items)), **changes)


def held_back(seen: World, *keys: BackOffKey, seconds: float = 60.0) -> World:
    """Return the world in which these keys are held back since now, for so many seconds."""
    return replace(seen, backoffs={key: BackOff(key, NOW + seconds, 1, NOW, "it failed") for key in keys})


def offer_key(offer: str) -> BackOffKey:
    """Return the key of one offer of the cloud, such as ``small@here``."""
    return BackOffKey(BackOffKind.OFFER, "cloud", offer)


# -- what is decided --------------------------------------------------------------------------------------------------


def decide(seen: World, *pools: PoolPolicy, **rules: Any) -> Plan:
    """Return the plan for a fleet of these pools, by default of one."""
    return plan(seen, FleetPolicy("test", pools or (a_pool(),), **rules), NOW)


def acts(seen: World, *pools: PoolPolicy, **rules: Any) -> tuple[Action, ...]:
    """Return what is done."""
    return decide(seen, *pools, **rules).actions


def waits(seen: World, *pools: PoolPolicy, **rules: Any) -> dict[str, WaitKind | RefusalKind]:
    """Return why what is not done is put off, by its subject."""
    return {wait.subject: wait.kind for wait in decide(seen, *pools, **rules).waits}


def boots(actions: tuple[Action, ...]) -> list[str]:
    """Return the offers that are bought."""
    return [str(action.offer) for action in actions if isinstance(action, Boot)]


def drains(seen: World, *pools: PoolPolicy, **rules: Any) -> list[str]:
    """Return the operations whose nodes are closed."""
    return [action.operation_id for action in acts(seen, *pools, **rules) if isinstance(action, Drain)]


def finds(seen: World, **changes: Any) -> tuple[Finding, ...]:
    """Return what the world proves of a fleet of one pool."""
    return settle(seen, FleetPolicy("test", (a_pool(**changes),)), NOW)


def moves(seen: World) -> list[IntentState]:
    """Return the states that rows come to."""
    return [finding.to for finding in finds(seen) if isinstance(finding, Move)]
