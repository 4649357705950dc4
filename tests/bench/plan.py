"""Time of one plan: 1,000 nodes, 10,000 waiting sandboxes, 5 pools; and how it grows over a factor of ten.

``python -m tests.bench.plan`` prints it; `measure` is for the whole bench.
"""

import json
import random
import statistics
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal

from autoscaler.core import naming
from autoscaler.core.lifecycle import IntentState
from autoscaler.core.model import FleetPolicy, Intent, Node, OfferKey, PoolPolicy, ProviderView, Waiting, World
from autoscaler.core.policy import plan
from gateway.wire.resources import Shape
from gateway.wire.states import NodeState
from providers.base import Billing, Caps, Instance, Offer, Phase, Resources

NOW = 1_900_000_000.0
POOLS = 5
SHAPES = ((1, 1024), (1, 2048), (2, 4096), (4, 8192), (0.5, 512))
CAPS = Caps(
    unique_names=True,
    list_is_atomic=True,
    deleted_vanish=True,
    billing=Billing.HOURLY_ROUND_UP,
    max_user_data=None,
    calls_per_hour=None,
    has_gpu=False,
)
OFFERS = tuple(
    Offer(f"type{size}", place, Resources(4 * size, 8192 * size, 80_000 * size), Decimal(size) / 100, available=True)
    for size in (1, 2, 4)
    for place in ("here", "there")
)


def fleet() -> FleetPolicy:
    """Five pools with caps in euro, so that every rule has to be asked."""
    pools = tuple(
        PoolPolicy(
            name=f"pool{number}",
            provider="cloud",
            role="sandbox",
            min=1,
            max=2000,
            offers=tuple(OfferKey(offer.type, offer.location) for offer in OFFERS),
            max_hourly=Decimal(100),
            spec="now",
            max_in_flight=20,
        )
        for number in range(POOLS)
    )
    return FleetPolicy("bench", pools, creates_per_tick=20, max_hourly=Decimal(500), max_monthly=Decimal(100_000))


def world(nodes: int, waiting: int, *, distinct: bool = False) -> World:
    """A busy fleet: most nodes are nearly full, a few are empty.

    Args:
        nodes: how many.
        waiting: how many sandboxes.
        distinct: whether hardly any two of them have the same shape.
    """
    chance = random.Random(1)
    rows, records, instances = [], [], []
    for number in range(nodes):
        offer = chance.choice(OFFERS)
        operation, pool = f"op{number:010d}", f"pool{number % POOLS}"
        name = naming.instance_name("bench", pool, operation)
        rows.append(_row(operation, pool, name, offer))
        records.append(_node(operation, pool, name, offer, chance))
        labels = naming.labels("bench", pool, "sandbox", operation, "now")
        made = datetime.fromtimestamp(NOW - 5000 - number, UTC)
        instances.append(Instance(f"vm-{number}", name, labels, Phase.RUNNING, offer.type, offer.location, made))
    items = [_item(chance, distinct=distinct) for _ in range(waiting)]
    view = ProviderView(CAPS, tuple(instances), taken_at=NOW, offers=OFFERS)
    return World(tuple(rows), providers={"cloud": view}, nodes=tuple(records), waiting=tuple(items))


def _row(operation: str, pool: str, name: str, offer: Offer) -> Intent:
    return Intent(
        operation_id=operation,
        pool=pool,
        provider="cloud",
        name=name,
        type=offer.type,
        location=offer.location,
        state=IntentState.READY,
        created_at=NOW - 5000,
        changed_at=NOW - 4000,
        deadline=NOW,
        node_id=f"node-{operation}",
        instance_id=operation,
        price=offer.price_per_hour,
        spec="now",
    )


def _node(operation: str, pool: str, name: str, offer: Offer, chance: random.Random) -> Node:
    has, free = offer.resources, chance.choice((0.0, 0.0, 0.1, 0.3, 1.0))
    total = Shape(cpus=has.cpus, memory_mb=has.memory_mb, disk_mb=has.disk_mb, slots=250)
    taken = Shape(cpus=has.cpus * (1 - free), memory_mb=int(has.memory_mb * (1 - free)), slots=int(250 * (1 - free)))
    return Node(
        id=f"node-{operation}",
        instance=name,
        pool=pool,
        state=NodeState.READY,
        total=total,
        reserved=taken,
        sandboxes=taken.slots,
        runtimes=frozenset({"runsc"}),
        isolations=frozenset({"gvisor"}),
        heartbeat_at=NOW - 3,
        idle_since=NOW - 2000 if free == 1.0 else None,
    )


def _item(chance: random.Random, *, distinct: bool) -> Waiting:
    cpus, memory = chance.choice(SHAPES)
    if distinct:
        cpus, memory = chance.randint(1, 400) / 100, chance.randint(256, 8000)
    return Waiting(Shape(cpus=cpus, memory_mb=memory, disk_mb=2048, slots=1), since=NOW - 60)


def seconds(seen: World, policy: FleetPolicy, times: int = 11) -> float:
    """The median of several plans: processor time, for a plan waits for nothing and the machine may have others."""
    taken: list[float] = []
    for _ in range(times):
        began = time.process_time()
        plan(seen, policy, NOW)
        taken.append(time.process_time() - began)
    return statistics.median(taken)


def measure(times: int = 11) -> dict[str, float]:
    """Milliseconds at the median, and growth over ten times the size."""
    policy = fleet()
    whole = seconds(world(1000, 10_000), policy, times)
    tenth = seconds(world(100, 1000), policy, times)
    distinct = seconds(world(1000, 10_000, distinct=True), policy, times)
    return {
        "plan_ms": round(whole * 1000, 1),
        "plan_tenth_ms": round(tenth * 1000, 1),
        "plan_growth": round(whole / tenth, 1),
        "plan_distinct_ms": round(distinct * 1000, 1),
    }


def main(_arguments: Sequence[str] = ()) -> None:
    """Prints the figures as JSON."""
    print(json.dumps(measure(), indent=2))


if __name__ == "__main__":
    main()
