"""The simulated gateway: it places sandboxes as the real one does, and builds on open builders."""

import random
from datetime import UTC, datetime, timedelta

import pytest

from autoscaler.core.pools import PoolPolicy
from gateway.core.model import Node
from gateway.core.placement import NodeRoom, Placed, Requirements, place
from gateway.wire.nodes import NodeRecord
from gateway.wire.resources import Shape
from simulator.gateway import SimulatedGateway, WorkLostError
from simulator.trace import JobBatch, Spread, Trace, TraceJob

START = datetime(2030, 1, 1, tzinfo=UTC)
CPU = PoolPolicy(name="cpu", provider="p", role="sandbox", min=0, max=9)
BUILDERS = PoolPolicy(name="builder", provider="p", role="builder", min=0, max=9)
MINUTE = Spread(median=60)


def a_gateway(started: list[str]) -> SimulatedGateway:
    return SimulatedGateway(
        at=lambda seconds: START + timedelta(seconds=seconds),
        heartbeat_seconds=5.0,
        builds_per_node=2,
        on_start=lambda job: started.append(job.id),
    )


def jobs_of(*batches: JobBatch) -> list[TraceJob]:
    return list(Trace("t", 1, batches).jobs())


def some_jobs(count: int, chance: random.Random) -> list[TraceJob]:
    return jobs_of(
        *(
            JobBatch(
                seconds=MINUTE,
                cpus=chance.choice([0.5, 1, 2, 4]),
                memory_mb=chance.choice([512, 1024, 3000, 8192]),
                disk_mb=chance.choice([1024, 20_000]),
            )
            for _ in range(count)
        )
    )


def sandboxes_by_node(gateway: SimulatedGateway) -> dict[str, int]:
    return {record.id: record.sandboxes for record in gateway.nodes()}


@pytest.mark.parametrize("seed", range(20))
def test_sandboxes_are_placed_where_the_gateway_would_place_them(seed: int) -> None:
    chance = random.Random(seed)
    simulated = a_gateway([])
    for number in range(4):
        cpus, disk = chance.choice([4, 8, 16]), chance.choice([40_000, 80_000])
        gpus = int(number == 0 and seed % 2)
        total = Shape(cpus=cpus, memory_mb=16_384, disk_mb=disk, gpus=gpus, slots=9)
        simulated.register(f"vm{number}", f"op{number}", CPU, total)
    for job in some_jobs(40, chance):
        rooms = [NodeRoom(_node(record), record.reserved) for record in simulated.nodes()]
        real = place(Requirements(job.shape), rooms)
        before = sandboxes_by_node(simulated)
        simulated.submit([job])
        grown = [node for node, count in sandboxes_by_node(simulated).items() if count > before[node]]
        assert grown == ([real.node_id] if isinstance(real, Placed) else [])


def _node(record: NodeRecord) -> Node:
    known = set(Node.__dataclass_fields__) & set(type(record).model_fields)
    return Node(**{name: getattr(record, name) for name in known} | {"runtimes": tuple(record.runtimes)})


def test_the_oldest_is_placed_first_and_what_does_not_fit_holds_up_no_other_kind() -> None:
    started: list[str] = []
    gateway = a_gateway(started)
    large, small, later = jobs_of(
        JobBatch(seconds=MINUTE, cpus=9), JobBatch(seconds=MINUTE, cpus=3), JobBatch(seconds=MINUTE, cpus=3)
    )
    gateway.submit([large, small, later])
    gateway.register("vm", "op", CPU, Shape(cpus=4, memory_mb=9000, disk_mb=90_000, slots=9))
    assert started == [small.id]
    gateway.finish(small)
    assert started == [small.id, later.id]
    assert [waiting.sandbox_id for waiting in gateway.demand().waiting] == [large.id]


def test_builds_fill_one_builder_before_the_next_and_leave_closed_ones_alone() -> None:
    started: list[str] = []
    gateway = a_gateway(started)
    for number in range(3):
        gateway.register(f"vm{number}", f"op{number}", BUILDERS, Shape(cpus=4, slots=9))
    gateway.drain("node-000001")
    builds = jobs_of(JobBatch(seconds=MINUTE, kind="build", count=5))
    gateway.submit(builds)
    assert sandboxes_by_node(gateway) == {"node-000001": 0, "node-000002": 2, "node-000003": 2}
    assert gateway.demand().prepared_builder_count == 3
    gateway.finish(builds[0])
    assert started == [build.id for build in builds]
    assert gateway.demand().prepared_builder_count == 2


def test_a_sandbox_claims_a_prepared_unit_of_its_kind() -> None:
    gateway = a_gateway([])
    (job,) = jobs_of(JobBatch(seconds=MINUTE, cpus=2))
    gateway.prepare(job, 2, expires_at=100.0)
    gateway.submit([job])
    assert [units.count for units in gateway.demand().prepared] == [1]
    gateway.now = 101.0
    assert gateway.demand().prepared == []


def test_a_deleted_instance_with_work_ends_the_run() -> None:
    gateway = a_gateway([])
    gateway.register("vm", "op", CPU, Shape(cpus=4, memory_mb=9000, disk_mb=90_000, slots=9))
    gateway.submit(jobs_of(JobBatch(seconds=MINUTE)))
    with pytest.raises(WorkLostError):
        gateway.vanish("vm")
