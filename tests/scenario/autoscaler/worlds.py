"""Random worlds: two clouds, three pools, caps in euro, and an audit that knows the truth at every commit and call."""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import ClassVar

from autoscaler.core import naming
from autoscaler.core.model import FleetPolicy, Intent, OfferKey, Order
from autoscaler.simulator.journal import MemoryJournal
from autoscaler.store.journal import Journal
from gateway.wire.resources import Shape
from gateway.wire.states import NodeState
from providers.base import Applied, Billing, Caps, Create, Deleted, ErrorKind, Instance, Ref, Scope
from providers.testing.fake import FakeCloud, FakeProvider, SimulatedCrash
from tests.scenario.autoscaler.fleet import DEPLOYMENT, SMALL, Fleet, Watched, pool

METHODS = ("create", "delete", "list", "get", "offers")
KINDS, APPLIED = tuple(ErrorKind), tuple(Applied)
BIG = Shape(cpus=3, memory_mb=6000, disk_mb=2048, slots=1)
START, BOOT, ORPHAN = 90.0, 60.0, 300.0
PATIENCE = 2500
"""Ticks of 20 s within which a world comes to rest: longer than every deadline and back-off together."""
Happening = tuple[str, object]
Mutation = Callable[[FleetPolicy], FleetPolicy]

POOLS = (
    pool(
        name="cpu", provider="east", min=0, max=3, start_seconds=START, boot_seconds=BOOT, idle_seconds=20.0,
        offers=(OfferKey("small", "here"), OfferKey("small", "there")), max_hourly=Decimal("0.04"), max_in_flight=3,
    ),
    pool(
        name="more", provider="west", min=1, max=2, start_seconds=START, boot_seconds=BOOT, idle_seconds=20.0,
        offers=(OfferKey("small", "there"), OfferKey("small", "here")), order=Order.PRICE, max_in_flight=2,
    ),
    pool(
        name="build", provider="east", role="builder", min=0, max=1, start_seconds=START, boot_seconds=BOOT,
        idle_seconds=20.0, offers=(OfferKey("small", "here"),),
    ),
)  # fmt: skip
TRUTH = FleetPolicy(
    DEPLOYMENT,
    POOLS,
    max=4,
    max_hourly=Decimal("0.06"),
    creates_per_tick=3,
    stops_per_tick=2,
    orphan_seconds=ORPHAN,
    silent_seconds=400.0,
)


class AuditedProvider(FakeProvider):
    """Looks at every delete and create before it happens."""

    audit: "Audit"

    def create(self, want: Create) -> Instance:
        self.audit.creates(want)
        return super().create(want)

    def delete(self, ref: Ref) -> Deleted:
        machine = self._find(ref)
        if machine is not None and machine.gone_at is None:
            self.audit.deletes(self.cloud, machine.instance, machine.lost)
        return super().delete(ref)


class HourlyProvider(AuditedProvider):
    """Charges started hours."""

    caps: ClassVar[Caps] = replace(FakeProvider.caps, billing=Billing.HOURLY_ROUND_UP)


class WatchedMemory(Watched, MemoryJournal):
    """The journal in memory, watched."""


class Audited(Fleet):
    """A fleet whose clouds are audited; ``mutate`` is what its own code takes for the policy."""

    def __init__(self, directory: Path, mutate: Mutation = lambda policy: policy) -> None:
        self.audit = Audit(self)
        self.memory = WatchedMemory()
        policy = mutate(TRUTH)
        rules = {key: value for key, value in vars(policy).items() if key not in ("deployment", "pools")}
        super().__init__(directory, *policy.pools, **rules)

    def open_journal(self) -> Journal:
        """Thousands of worlds need thousands of journals; that one in memory is like the other has its own test."""
        return self.memory

    def make_provider(self, name: str, cloud: FakeCloud) -> FakeProvider:
        made = (HourlyProvider if name == "west" else AuditedProvider)(cloud, DEPLOYMENT)
        made.audit = self.audit
        return made

    def check(self) -> None:
        self.audit.limits()


class Violation(BaseException):
    """An invariant is broken.  No handler in the code under test may swallow it."""


def must(holds: bool, words: str) -> None:
    """Raises `Violation` with ``words`` unless it holds."""
    if not holds:
        raise Violation(words)


@dataclass
class Audit:
    """The invariants, held against the truth of clouds, gateway and journal and not against what the code believes."""

    fleet: Audited
    step: Callable[[str], None] | None = None
    """Where the process dies next."""

    def __post_init__(self) -> None:
        self.born: dict[str, datetime] = {}
        self.deleted: list[str] = []
        self.strays: set[str] = set()

    def __call__(self, name: str) -> None:
        """At every commit and call, before and after it."""
        if name.startswith("after "):
            self.limits()
        if self.step is not None:
            self.step(name)

    def limits(self) -> None:
        """Rows and money within their caps, intents not yet called included; one machine an operation."""
        rows = self.fleet.journal.open_intents()
        assert TRUTH.max is not None
        assert TRUTH.max_hourly is not None
        must(len(rows) <= TRUTH.max, f"the fleet has {len(rows)} rows")
        must(_rate(rows) <= TRUTH.max_hourly, f"the fleet costs {_rate(rows)}")
        for each in POOLS:
            mine = [row for row in rows if row.pool == each.name]
            must(len(mine) <= each.max, f"{each.name} has {len(mine)} rows")
            must(each.max_hourly is None or _rate(mine) <= each.max_hourly, f"{each.name} costs {_rate(mine)}")
        names = {row.name for row in rows}
        for cloud in self.fleet.clouds.values():
            for operation, machines in cloud.by_operation().items():
                must(bool(operation), f"{machines} carry no operation")
                must(len(machines) == 1, f"operation {operation} has {machines}")
            for name, machine in cloud.machines.items():
                must(machine.gone_at is not None or name in names | self.strays, f"{name} has no row")

    def creates(self, want: Create) -> None:
        """The row is there before the call, under the same name."""
        row = self.fleet.journal.intent(want.operation_id)
        must((row.name, row.state) == (want.name, "calling"), f"{row}")
        self.born.setdefault(want.name, self.fleet.cloud.now)

    def deletes(self, cloud: FakeCloud, instance: Instance, is_lost: bool) -> None:
        """Only what is proved idle, late, lost or nobody's."""
        self.deleted.append(instance.name)
        rows = {row.name: row for row in self.fleet.journal.open_intents()}
        gateway = self.fleet.gateway
        record = next((r for r in gateway.records.values() if r.instance == instance.name), None)
        if instance.name not in rows:
            age = (cloud.now - instance.created_at).total_seconds()
            must(age >= ORPHAN, f"{instance.name} is no orphan at {age} s")
        elif record is not None and record.state is not NodeState.LOST and not is_lost:
            must(record.id in gateway.closed, f"{record.id} is open")
            must(not [s for s, (node, _) in gateway.placed.items() if node == record.id], f"{record.id} has work")
            mark = gateway.closed[record.id]
            assert record.heartbeat_at is not None
            must(mark is None or record.heartbeat_at > mark, f"{record.id} has not been heard of since it was closed")
        elif record is None and not is_lost:
            waited = (self.fleet.cloud.now - self.born[instance.name]).total_seconds()
            must(waited >= min(START, BOOT), f"{instance.name} was given up after {waited} s")
        elif record is not None and record.state is NodeState.LOST and not is_lost:
            silent = (cloud.now - (record.heartbeat_at or record.registered_at)).total_seconds()
            must(silent >= 300, f"{record.id} was silent for {silent} s only")


def _rate(rows: Iterable[Intent]) -> Decimal:
    return sum((row.price for row in rows if row.price is not None), Decimal(0))


class World:
    """Applies happenings to a fleet, one after the other."""

    def __init__(self, fleet: Audited) -> None:
        self.fleet = fleet
        fleet.watch(fleet.audit)

    def apply(self, kind: str, value: object) -> None:
        getattr(self, f"do_{kind}")(value)
        self.tick()

    def tick(self, seconds: float = 4.0) -> None:
        if self.fleet.crashing_tick(seconds):
            self.fleet.audit.step = None

    def do_wait(self, ticks: int) -> None:
        for _ in range(ticks):
            self.tick()

    def do_ask(self, count: int) -> None:
        self.fleet.ask(count, BIG if count % 2 else SMALL)

    def do_builders(self, count: int) -> None:
        self.fleet.gateway.builders = count

    def do_finish(self, number: int) -> None:
        for sandbox in [*self.fleet.gateway.placed][: number + 1]:
            self.fleet.gateway.finish(sandbox)

    def do_leave(self, _value: object) -> None:
        for sandbox in [*self.fleet.gateway.waiting, *self.fleet.gateway.placed]:
            self.fleet.gateway.finish(sandbox)

    def do_late(self, number: int) -> None:
        """Work is placed on a node just before it is closed, or while it boots its way back."""
        nodes = [n for n, r in self.fleet.gateway.records.items() if r.state is NodeState.READY]
        if number < len(nodes):
            self.fleet.gateway.late = nodes[number]

    def do_crash(self, steps: int) -> None:
        left = steps

        def step(name: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                self.fleet.audit.step = None
                raise SimulatedCrash(name)

        self.fleet.audit.step = step

    def do_fault(self, fault: tuple[str, str, ErrorKind, Applied]) -> None:
        cloud, method, kind, applied = fault
        self.fleet.clouds[cloud].fail_next(method, kind, applied, scope=Scope.OFFER)

    def do_lose(self, where: tuple[str, str]) -> None:
        cloud, method = where
        self.fleet.clouds[cloud].lose_answer(method)

    def do_stray(self, cloud: str) -> None:
        """An instance of ours that no row knows, as a lost journal leaves it."""
        operation = f"stray{len(self.fleet.audit.strays):07d}"
        name = naming.instance_name(DEPLOYMENT, "cpu", operation)
        labels = naming.labels(DEPLOYMENT, "cpu", "sandbox", operation)
        self.fleet.audit.strays.add(name)
        want = Create(name, operation, DEPLOYMENT, "cpu", "small", "here", "image", "", labels)
        FakeProvider(self.fleet.clouds[cloud], DEPLOYMENT)._create(want)

    def do_vanish(self, number: int) -> None:
        if (found := self.nth(number)) is not None:
            found[0].vanish(found[1])

    def do_break(self, number: int) -> None:
        if (found := self.nth(number)) is not None:
            found[0].lose(found[1])

    def do_silence(self, number: int) -> None:
        if (found := self.nth(number)) is not None:
            self.fleet.gateway.silent ^= {found[1]}

    def do_stuck(self, where: tuple[str, bool]) -> None:
        self.fleet.clouds[where[0]].stuck_booting = where[1]

    def do_dark(self, where: tuple[str, bool]) -> None:
        self.fleet.clouds[where[0]].rate_exhausted = where[1]

    def do_outage(self, outage: bool) -> None:
        self.fleet.gateway.unreachable = outage

    def do_skew(self, seconds: int) -> None:
        # A process that dies before it has seen the jump leaves nobody who knows of it.
        self.fleet.audit.step = None
        self.fleet.clock.skew = float(seconds)

    def nth(self, number: int) -> tuple[FakeCloud, str] | None:
        machines = [(cloud, name) for cloud in self.fleet.clouds.values() for name in cloud.machines]
        return machines[number] if number < len(machines) else None

    def calm(self) -> None:
        """Everything works again, and nobody wants anything."""
        self.fleet.audit.step = None
        gateway = self.fleet.gateway
        gateway.unreachable = False
        gateway.silent.clear()
        gateway.builders, gateway.late = 0, None
        for cloud in self.fleet.clouds.values():
            cloud.stuck_booting = cloud.rate_exhausted = False
            cloud._faults.clear()
        self.do_leave(None)

    def is_at_rest(self) -> bool:
        """One node, of the pool that keeps one, and nothing else anywhere."""
        gateway, rows = self.fleet.gateway, self.fleet.journal.open_intents()
        machines = [name for cloud in self.fleet.clouds.values() for name in cloud.running()]
        everything = sum(len(cloud.machines) for cloud in self.fleet.clouds.values())
        return (
            everything == 1
            and [(row.pool, row.state.value) for row in rows] == [("more", "ready")]
            and machines == [rows[0].name]
            and [record.state for record in gateway.records.values()] == [NodeState.READY]
        )

    def rest(self, patience: int) -> None:
        """Longer than every deadline and back-off, in longer steps; then nothing moves any more."""
        for _ in range(patience):
            if self.is_at_rest():
                break
            self.tick(20.0)
        assert self.is_at_rest(), (self.fleet.journal.open_intents(), self.fleet.clouds, self.fleet.gateway.records)
        created = [len(cloud.created) for cloud in self.fleet.clouds.values()]
        for _ in range(40):
            self.tick(30.0)
        assert self.is_at_rest()
        assert created == [len(cloud.created) for cloud in self.fleet.clouds.values()], "it does not stay at rest"


def play(
    directory: Path,
    happenings: list[Happening],
    mutate: Mutation = lambda policy: policy,
    *,
    patience: int = PATIENCE,
) -> None:
    """One whole world, from empty to rest."""
    fleet = Audited(directory, mutate)
    try:
        world = World(fleet)
        for kind, value in happenings:
            world.apply(kind, value)
        world.calm()
        world.rest(patience)
    finally:
        fleet.journal.close()


def invented(seed: int, length: int = 25) -> list[Happening]:
    """Happenings by chance, under more demand than there may be room for."""
    chance = random.Random(seed)
    clouds = ("east", "west")
    makers: list[Callable[[], Happening]] = [
        lambda: ("wait", chance.randint(1, 12)),
        lambda: ("wait", chance.randint(10, 40)),
        lambda: ("ask", chance.randint(1, 25)),
        lambda: ("ask", chance.randint(1, 25)),
        lambda: ("finish", chance.randint(0, 5)),
        lambda: ("leave", None),
        lambda: ("late", chance.randint(0, 3)),
        lambda: ("builders", chance.randint(0, 2)),
        lambda: ("crash", chance.randint(0, 30)),
        lambda: ("crash", chance.randint(0, 30)),
        lambda: ("fault", (chance.choice(clouds), chance.choice(METHODS), chance.choice(KINDS), chance.choice(APPLIED))),  # noqa: E501 - one maker a line
        lambda: ("fault", (chance.choice(clouds), "create", ErrorKind.CAPACITY, Applied.NO)),
        lambda: ("lose", (chance.choice(clouds), chance.choice(METHODS))),
        lambda: ("stray", chance.choice(clouds)),
        lambda: ("vanish", chance.randint(0, 3)),
        lambda: ("break", chance.randint(0, 3)),
        lambda: ("silence", chance.randint(0, 3)),
        lambda: ("stuck", (chance.choice(clouds), chance.random() < 0.5)),
        lambda: ("dark", (chance.choice(clouds), chance.random() < 0.3)),
        lambda: ("outage", chance.random() < 0.3),
        lambda: ("skew", chance.randint(-4000, 4000)),
    ]  # fmt: skip
    return [chance.choice(makers)() for _ in range(length)]
