"""The parts of a simulation, each held against the real thing that it stands for."""

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from autoscaler.core.model import BackOff, BackOffKey, BackOffKind, Intent, Learn, Move, Started
from autoscaler.core.pools import PoolPolicy
from autoscaler.core.states import IntentState as S
from autoscaler.store.journal import Journal
from gateway.core.model import Node
from gateway.core.placement import NodeRoom, Placed, Requirements, place
from gateway.wire.resources import Shape
from gateway.wire.settings import ConfigurationError
from providers.base import OPERATION_LABEL, POOL_LABEL, Applied, Billing, Create, ErrorKind, ProviderError, Ref
from providers.testing.fake import EPOCH
from simulator import settings
from simulator.cloud import build
from simulator.gateway import SimulatedGateway
from simulator.journal import MemoryJournal
from simulator.metrics import percentile
from simulator.settings import CloudSettings
from simulator.trace import Batch, Job, Spread, Trace

START = datetime(2030, 1, 1, tzinfo=UTC)


def a_gateway(started: list[str]) -> SimulatedGateway:
    return SimulatedGateway(
        at=lambda seconds: START + timedelta(seconds=seconds),
        heartbeat_seconds=5.0,
        builds_per_node=2,
        on_start=lambda job: started.append(job.id),
    )


def some_jobs(count: int, chance: random.Random) -> list[Job]:
    batches = tuple(
        Batch(
            seconds=Spread(median=60),
            cpus=chance.choice([0.5, 1, 2, 4]),
            memory_mb=chance.choice([512, 1024, 3000, 8192]),
            disk_mb=chance.choice([1024, 20_000]),
        )
        for _ in range(count)
    )
    return list(Trace("t", 1, batches).jobs())


@pytest.mark.parametrize("seed", range(20))
def test_sandboxes_are_placed_where_the_gateway_would_place_them(seed: int) -> None:
    chance = random.Random(seed)
    pool = PoolPolicy(name="cpu", provider="p", role="sandbox", min=0, max=9)
    fake = a_gateway([])
    for number in range(4):
        shape = Shape(
            cpus=chance.choice([4, 8, 16]), memory_mb=16_384, disk_mb=chance.choice([40_000, 80_000]), slots=9
        )
        fake.register(f"vm{number}", f"op{number}", pool, shape)
    for job in some_jobs(40, chance):
        rooms = [NodeRoom(_node(record), record.reserved) for record in fake.nodes()]
        real = place(Requirements(job.shape), rooms)
        before = {record.id: record.sandboxes for record in fake.nodes()}
        fake.submit([job])
        grown = [record.id for record in fake.nodes() if record.sandboxes > before[record.id]]
        assert grown == ([real.node_id] if isinstance(real, Placed) else [])


def _node(record: object) -> Node:
    values = record.model_dump()  # type: ignore[attr-defined]
    fields = {name: values[name] for name in Node.__dataclass_fields__ if name in values}
    for name in ("total", "runtimes", "pressure"):
        if name in fields:
            fields[name] = getattr(record, name)
    return Node(**fields)


def test_both_journals_keep_the_same_rows() -> None:
    real, memory = Journal.open("sqlite://"), MemoryJournal()
    for journal in (real, memory):
        rows = [
            Intent(f"op{n}", "cpu", "p", f"vm{n}", "t", "l", S.PLANNED, float(n), float(n), 500.0) for n in range(3)
        ]
        journal.add(rows)
        journal.move("op0", S.CALLING, now=5.0, reason="", attempts=1)
        journal.move("op0", S.BOOTING, now=6.0, reason="made", instance_id="i0")
        journal.settle([Started("op0", 900.0, "runs"), Move("op0", S.READY, "registered", node_id="n0")], 7.0)
        journal.settle([Learn("cpu", "t", "s", Shape(cpus=4, memory_mb=5))], 8.0)
        journal.amend("op1", now=9.0, reason="note", next_try_at=11.0)
        journal.move("op2", S.GONE, now=10.0, reason="refused")
        journal.hold_back(BackOff(BackOffKey(BackOffKind.POOL, "cpu"), 99.0, 1, 9.0, "no"))
        journal.hold_back(BackOff(BackOffKey(BackOffKind.OFFER, "cloud", "small@here"), 99.0, 1, 9.0, "no"))
        journal.release([BackOffKey(BackOffKind.OFFER, "cloud", "small@here")])
        journal.record(12.0, "s", "k", "d")
    assert memory.open_intents() == real.open_intents()
    assert memory.gone_names() == real.gone_names() == {"vm2"}
    assert memory.backoffs() == real.backoffs()
    assert memory.learned() == real.learned()
    assert memory.spent(20.0) == real.spent(20.0)
    assert memory.events(100) == real.events(100)
    real.close()


def a_cloud(**changes: object) -> CloudSettings:
    offer = {"type": "t", "location": "l", "cpus": 4, "memory_mb": 8192, "disk_mb": 80_000, "price": "0.5"}
    return CloudSettings.model_validate({"offers": [{**offer, **changes.pop("offer", {})}], **changes})  # type: ignore[dict-item]


def order(name: str) -> Create:
    labels = {OPERATION_LABEL: name, POOL_LABEL: "cpu"}
    return Create(name, name, "d", "cpu", "t", "l", "image", "", labels)


@pytest.mark.parametrize(
    ("billing", "euros"), [(Billing.PER_SECOND, 0.5 * 4000 / 3600), (Billing.HOURLY_ROUND_UP, 1.0)]
)
def test_the_bill_follows_the_billing_of_the_cloud(billing: Billing, euros: float) -> None:
    provider = build(a_cloud(billing=billing.value, delete_seconds=0), "d", random.Random(1))
    provider.create(order("vm1"))
    provider.cloud.advance(4000.0)
    provider.delete(Ref(name="vm1"))
    provider.cloud.advance(9000.0)
    assert provider.machines[0].cost(billing, 13_000.0) == pytest.approx(euros)
    assert provider.caps.billing is billing


def test_what_is_out_of_stock_is_refused_until_one_is_gone() -> None:
    provider = build(a_cloud(offer={"stock": 1}), "d", random.Random(1))
    provider.create(order("vm1"))
    provider.create(order("vm1"))  # the same order again is no second one
    with pytest.raises(ProviderError) as refused:
        provider.create(order("vm2"))
    assert (refused.value.kind, refused.value.applied) == (ErrorKind.CAPACITY, Applied.NO)
    provider.delete(Ref(name="vm1"))
    provider.cloud.advance(60.0)
    provider.create(order("vm2"))
    assert [machine.name for machine in provider.machines] == ["vm1", "vm2"]
    assert provider.at(60.0) == EPOCH + timedelta(seconds=60)


def test_percentiles_are_of_the_nearest_rank() -> None:
    values = [float(value) for value in range(1, 101)]
    assert [percentile(values, share) for share in (0.5, 0.95, 0.99, 1.0)] == [50, 95, 99, 100]
    assert percentile([], 0.5) == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[pools]]\nname = "cpu"\nprovider = "cloud"', "names the provider 'cloud'"),
        (
            '[providers.cloud]\n[[pools]]\nname = "cpu"\nprovider = "cloud"',
            r"\[simulation.providers.cloud\] is missing",
        ),
        ("[simulation.providers.cloud]\noffers = []", "offers"),
        ("tick_second = 1", "the key 'tick_second' is unknown"),
        (
            "tick_second = 1\n[simulation.providers.cloud]\nbiling = 1",
            "'tick_second' is unknown; .*the key 'simulation.providers.cloud.biling' is unknown",
        ),
        ("tick_seconds = 1.0", "no pool"),
        ('[simulation.providers.cloud]\nbilling = "prepaid"', "choose per_second or hourly_round_up"),
        ("[[", "configuration file"),
    ],
)
def test_a_configuration_that_cannot_be_played_is_refused_in_words(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "c.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=words):
        settings.load(path)
