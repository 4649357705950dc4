"""Time of one plan: 1,000 nodes, 10,000 waiting sandboxes, 5 pools; and how it grows over a factor of ten.

It needs neither root nor engines: ``python -m tests.bench.plan [--json FILE]``.
"""

import argparse
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Final

from autoscaler.core import naming
from autoscaler.core.plan import plan
from autoscaler.core.pools import FleetPolicy, OfferKey, PoolPolicy
from autoscaler.core.states import IntentState
from autoscaler.core.world import DemandItem, Intent, NodeView, ProviderView, World
from gateway.wire.resources import Shape
from gateway.wire.states import NodeState
from providers.base import Billing, Caps, Instance, Offer, Phase, Resources
from tests.bench import report
from tests.bench.figures import PlanTime, Summary

NODES: Final = 1000
WAITING: Final = 10_000
ROUNDS: Final = 15
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


def _node(operation: str, pool: str, name: str, offer: Offer, chance: random.Random) -> NodeView:
    has, free = offer.resources, chance.choice((0.0, 0.0, 0.1, 0.3, 1.0))
    total = Shape(cpus=has.cpus, memory_mb=has.memory_mb, disk_mb=has.disk_mb, slots=250)
    taken = Shape(cpus=has.cpus * (1 - free), memory_mb=int(has.memory_mb * (1 - free)), slots=int(250 * (1 - free)))
    return NodeView(
        id=f"node-{operation}",
        instance=name,
        pool=pool,
        state=NodeState.READY,
        total=total,
        reserved=taken,
        sandboxes=taken.slots,
        engines=frozenset({("runsc", "gvisor")}),
        heartbeat_at=NOW - 3,
        idle_since=NOW - 2000 if free == 1.0 else None,
    )


def _item(chance: random.Random, *, distinct: bool) -> DemandItem:
    cpus, memory = chance.choice(SHAPES)
    if distinct:
        cpus, memory = chance.randint(1, 400) / 100, chance.randint(256, 8000)
    return DemandItem(Shape(cpus=cpus, memory_mb=memory, disk_mb=2048, slots=1), since=NOW - 60)


def scattered(nodes: int, waiting: int) -> World:
    """Unlike shapes, and room everywhere that fits none of them: half the nodes have cores left and hardly any memory,
    half have memory and no core."""
    busy = world(nodes, waiting, distinct=True)
    full = []
    for number, node in enumerate(busy.nodes or ()):
        cpus, memory = (0.005, node.total.memory_mb) if number % 2 else (node.total.cpus, 200)
        taken = Shape(cpus=node.total.cpus - cpus + 0.005, memory_mb=node.total.memory_mb - memory, slots=1)
        full.append(replace(node, reserved=taken, sandboxes=1, idle_since=None))
    return replace(busy, nodes=tuple(full))


def closing(nodes: int, waiting: int) -> World:
    """The same, while every tenth node is closed and might be opened again."""
    busy = scattered(nodes, waiting)
    rows = [
        replace(row, state=IntentState.DRAINING, drain_mark=NOW - 100) if number % 10 == 0 else row
        for number, row in enumerate(busy.intents)
    ]
    return replace(busy, intents=tuple(rows))


CASES: Final[dict[str, Callable[[int, int], World]]] = {
    "five shapes": world,
    "10,000 shapes": lambda nodes, waiting: world(nodes, waiting, distinct=True),
    "10,000 shapes, room that fits none": scattered,
    "the same, a tenth of the nodes closed": closing,
}


def times(seen: World, policy: FleetPolicy, rounds: int) -> tuple[Summary, Summary]:
    """Milliseconds of a plan by the clock on the wall, and of the processor: a plan waits for nothing, so that the
    difference is what the machine did for others."""
    wall: list[float] = []
    cpu: list[float] = []
    for _ in range(rounds):
        began, used = time.perf_counter(), time.process_time()
        plan(seen, policy, NOW)
        wall.append((time.perf_counter() - began) * 1000)
        cpu.append((time.process_time() - used) * 1000)
    return Summary.of(wall), Summary.of(cpu)


def measure(rounds: int = ROUNDS) -> list[PlanTime]:
    """Every case at the full size and at a tenth of it."""
    policy = fleet()
    found: list[PlanTime] = []
    for name, make in CASES.items():
        _, tenth = times(make(NODES // 10, WAITING // 10), policy, rounds)
        wall, cpu = times(make(NODES, WAITING), policy, rounds)
        found.append(PlanTime(name, wall, cpu, tenth))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the figures as a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.plan", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"plans of each case (default: {ROUNDS})")
    options = parser.parse_args(arguments)
    found = measure(options.rounds)
    report.show_plans(found)
    if options.json:
        report.write(options.json, plans=found)


if __name__ == "__main__":
    main()
