"""Whole worlds: everything that can go wrong happens to a fleet, and the audit looks on."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final, TypeVar

from autoscaler import lock
from autoscaler.core import naming
from autoscaler.core.pools import FleetPolicy
from autoscaler.errors import LockedError
from autoscaler.provider_polling import Pace
from autoscaler.reconcile import TickReport
from autoscaler.store.journal import Journal
from gateway.wire.nodes import JoinTokenRequest
from gateway.wire.states import NodeState
from providers.base import (
    Applied,
    ComputeProvider,
    Create,
    Deleted,
    ErrorKind,
    Instance,
    Inventory,
    Offer,
    Ref,
    Scope,
)
from providers.rate_limit import Priority, RateLimit
from providers.testing.fake import EPOCH, FakeCloud, Machine, SimulatedCrash
from simulator.journal import MemoryJournal
from tests.scenario.autoscaler.audit import Audit, AuditedProvider, Violation, must
from tests.scenario.autoscaler.fleet import DEPLOYMENT, Fleet, Watched
from tests.scenario.autoscaler.stage import CLOCKS, CLOUDS, OFFERS, SHAPES, TRUTH

TICK, REST_TICK = 4.0, 20.0
PATIENCE: Final = 2500
"""Ticks of `REST_TICK` within which a world comes to rest: longer than every deadline and back-off together."""
ODD: Final[tuple[type[Exception], ...]] = (RuntimeError, KeyError, OSError, ValueError, TimeoutError, AssertionError)
"""What a plugin that breaks raises."""
KEPT_PART: Final = 6
"""One in so many calls of an hour is kept for deletes."""
T = TypeVar("T")
Happening = tuple[str, object]
Mutation = Callable[[FleetPolicy], FleetPolicy]


class RateLimitedProvider(AuditedProvider):
    """Goes by its cloud's bucket of calls, as providers of clouds that count them do."""

    def __init__(self, cloud: FakeCloud, deployment: str, monotonic: Callable[[], float]) -> None:
        super().__init__(cloud, deployment)
        self.rate_limit = RateLimit(self.kept, kind="fake", monotonic=monotonic)

    @property
    def kept(self) -> int:
        """Calls of an hour that are kept for deletes."""
        return (self.caps.calls_per_hour or 0) // KEPT_PART

    def offers(self) -> list[Offer]:
        return self.counted(Priority.OPTIONAL, super().offers)

    def list(self) -> Inventory:
        return self.counted(Priority.CREATE, super().list)

    def get(self, ref: Ref) -> Instance | None:
        return self.counted(Priority.CREATE, lambda: super(RateLimitedProvider, self).get(ref))

    def create(self, want: Create) -> Instance:
        return self.counted(Priority.CREATE, lambda: super(RateLimitedProvider, self).create(want))

    def delete(self, ref: Ref) -> Deleted:
        if self.rate_limit.wait(Priority.DELETE) > 0:
            self.audit.has_no_call_for_a_delete(self.kept)
        return self.counted(Priority.DELETE, lambda: super(RateLimitedProvider, self).delete(ref))

    def counted(self, priority: Priority, call: Callable[[], T]) -> T:
        self.rate_limit.require(priority)
        try:
            return call()
        finally:
            headers = {"RateLimit-Limit": self.caps.calls_per_hour, "RateLimit-Remaining": self.cloud.calls_left()}
            self.rate_limit.note({name: str(value) for name, value in headers.items()})


class WatchedMemory(Watched, MemoryJournal):
    """The journal in memory, watched."""


class Audited(Fleet):
    """A fleet whose clouds are audited; ``mutate`` is what its own code takes for the policy."""

    pace = Pace(heartbeat_seconds=12.0, list_seconds=8.0)

    def __init__(self, directory: Path, mutate: Mutation = lambda policy: policy) -> None:
        self.audit = Audit(self, TRUTH)
        self.memory = WatchedMemory()
        self.jumps = 0.0
        self._lock, self._held = directory / "lock", ExitStack()
        policy = mutate(TRUTH)
        rules = {key: value for key, value in vars(policy).items() if key not in ("deployment", "pools")}
        super().__init__(directory, *policy.pools, **rules)
        self.gateway.on_register = self.audit.registers
        # Longer than a look takes to come, so that a node is seen that has sent no heartbeat since it was closed.
        self.gateway.heartbeat_seconds = 12.0

    def open_journal(self) -> Journal:
        """Return a journal in memory, for thousands of worlds; that it is like the other has its own test."""
        self._held.close()
        self._held.enter_context(lock.held(self._lock))
        return self.memory

    def make_cloud(self, name: str) -> FakeCloud:
        # In the middle of a month, so that no jump of the clock leads into another one.
        begins = EPOCH + timedelta(days=14)
        return FakeCloud(caps=CLOUDS[name], offers=OFFERS, prefix=name, now=begins, clock_off=CLOCKS[name])

    def make_provider(self, name: str, cloud: FakeCloud) -> ComputeProvider:
        made = RateLimitedProvider(cloud, DEPLOYMENT, self.clock.monotonic)
        made.audit = self.audit
        return made

    def reach_providers(self) -> dict[str, ComputeProvider]:
        """Return the providers of a new process, which have yet to hear how many calls are left."""
        for name, cloud in self.clouds.items():
            cloud.refill()  # or the first call might be one too many
            self.providers[name] = self.make_provider(name, cloud)
        return {**self.providers}

    def lose_journal(self) -> None:
        """Restart the process over an empty journal."""
        self.memory = WatchedMemory()
        self.audit.forgets_all()
        self.restart()

    def second(self) -> None:
        """Start another autoscaler beside this one."""
        try:
            with lock.held(self._lock):
                must(1, False, "two autoscalers act at once")
        except LockedError:
            return

    def tick(self, seconds: float = TICK) -> TickReport:
        report = super().tick(seconds)
        self.audit.ticked(report, seconds)
        return report

    def check(self) -> None:
        self.audit.truth()

    def close(self) -> None:
        """Release the lock."""
        self._held.close()


class InvariantError(AssertionError):
    """An invariant was broken in a world that is over now; see `Violation`."""

    def __init__(self, violation: Violation) -> None:
        super().__init__(str(violation))
        self.number = violation.number
        self.may_be_slow = violation.may_be_slow


class World:
    """Applies happenings to a fleet, one after the other."""

    def __init__(self, fleet: Audited) -> None:
        self.fleet = fleet
        fleet.watch(fleet.audit)

    def apply(self, kind: str, value: object) -> None:
        getattr(self, f"do_{kind}")(value)
        self.tick()

    def tick(self, seconds: float = TICK) -> None:
        if self.fleet.crashing_tick(seconds):
            self.fleet.audit.step = None

    # -- what is wanted -----------------------------------------------------------------------------------------------

    def do_wait(self, ticks: int) -> None:
        for _ in range(ticks):
            self.tick()

    def do_ask(self, what: tuple[str, int]) -> None:
        self.fleet.ask(what[1], SHAPES[what[0]])

    def do_prepare(self, what: tuple[str, int, int]) -> None:
        shape, count, seconds = what
        self.fleet.gateway.prepare(f"burst-{shape}", count, SHAPES[shape], seconds)

    def do_builders(self, count: int) -> None:
        self.fleet.gateway.builders = count

    def do_finish(self, number: int) -> None:
        for sandbox in [*self.fleet.gateway.placed][: number + 1]:
            self.fleet.gateway.finish(sandbox)

    def do_leave(self, _value: object) -> None:
        for sandbox in [*self.fleet.gateway.waiting, *self.fleet.gateway.placed]:
            self.fleet.gateway.finish(sandbox)

    def do_late(self, number: int) -> None:
        """Place work on a node just before it is closed, or while it boots its way back."""
        nodes = [n for n, r in self.fleet.gateway.records.items() if r.state is NodeState.READY]
        if number < len(nodes):
            self.fleet.gateway.late = nodes[number]

    # -- the autoscaler's own misfortunes -----------------------------------------------------------------------------

    def do_crash(self, steps: int) -> None:
        left = steps

        def step(name: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                self.fleet.audit.step = None
                raise SimulatedCrash(name)

        self.fleet.audit.step = step

    def do_disk(self, commits: int) -> None:
        """Fill the disk for so many commits."""
        self.fleet.audit.failing = commits

    def do_amnesia(self, _value: object) -> None:
        self.fleet.lose_journal()

    def do_second(self, _value: object) -> None:
        self.fleet.second()

    def do_skew(self, seconds: int) -> None:
        # A process that dies before it has seen the jump leaves nobody who knows of it.
        self.fleet.audit.step = None
        self.fleet.jumps += abs(seconds - self.fleet.clock.skew)
        self.fleet.clock.skew = float(seconds)
        self.fleet.audit.jumped_at, self.fleet.audit.is_bookkept = self.fleet.cloud.now, False

    # -- what calls meet ----------------------------------------------------------------------------------------------

    def do_fault(self, fault: tuple[str, str, ErrorKind, Applied]) -> None:
        cloud, method, kind, applied = fault
        self.fleet.clouds[cloud].fail_next(method, kind, applied, scope=Scope.OFFER)

    def do_lose(self, where: tuple[str, str]) -> None:
        cloud, method = where
        self.fleet.clouds[cloud].lose_answer(method)

    def do_delay(self, seconds: int) -> None:
        """Delay the next create of the cloud without unique names."""
        self.fleet.clouds["north"].delay_order(float(seconds))

    def do_odd(self, what: tuple[str, str, int, bool]) -> None:
        cloud, method, number, effect = what
        self.fleet.clouds[cloud].break_next(method, ODD[number]("odd"), effect=effect)

    def do_hang(self, what: tuple[str, str, int]) -> None:
        cloud, method, seconds = what
        self.fleet.clouds[cloud].hang_next(method, float(seconds))

    def do_down(self, where: tuple[str, int]) -> None:
        """Fail so many listings of a cloud."""
        for _ in range(where[1]):
            self.fleet.clouds[where[0]].fail_next("list", ErrorKind.TRANSIENT, Applied.NO)

    def do_dark(self, where: tuple[str, bool]) -> None:
        self.fleet.clouds[where[0]].rate_exhausted = where[1]

    def do_outage(self, outage: bool) -> None:
        self.fleet.gateway.unreachable = outage

    # -- what becomes of machines -------------------------------------------------------------------------------------

    def do_stuck(self, where: tuple[str, bool]) -> None:
        self.fleet.clouds[where[0]].stuck_booting = where[1]

    def do_leaky(self, where: tuple[str, bool]) -> None:
        self.fleet.clouds[where[0]].leaves_leftovers = where[1]

    def do_hide(self, number: int) -> None:
        if (found := self.nth(number)) is not None:
            found[0].hide_next(found[1])

    def do_vanish(self, number: int) -> None:
        if (found := self.nth(number)) is not None:
            found[0].vanish(found[1])

    def do_break(self, number: int) -> None:
        if (found := self.nth(number)) is not None:
            found[0].lose(found[1])

    def do_silence(self, number: int) -> None:
        if (found := self.nth(number)) is not None:
            self.fleet.gateway.silent ^= {found[0].machines[found[1]].instance.name}

    # -- machines behind its back -------------------------------------------------------------------------------------

    def do_orphan(self, cloud: str) -> None:
        """Make an instance of ours that no row knows, as a lost journal leaves it."""
        operation = f"orphn{len(self.fleet.audit.orphans):07d}"
        self.put(cloud, naming.instance_name(DEPLOYMENT, "cpu", operation), operation, "")

    def do_return(self, number: int) -> None:
        """Bring a machine back whose row was closed, with the token that it was given then."""
        known = {row.operation_id for row in self.fleet.journal.open_intents()}
        gone = [
            (name, machine)
            for name, cloud in self.fleet.clouds.items()
            for machine in cloud.made
            if machine.gone_at is not None
            and machine.operation not in known
            and machine.instance.id.isascii()
            and not any(other.operation == machine.operation for other in cloud.machines.values())
        ]
        if number < len(gone):
            cloud, machine = gone[number]
            self.put(cloud, machine.instance.name, machine.operation, machine.user_data)

    def do_namesake(self, number: int) -> None:
        """Make a machine of an older order with the name of a present one; a node already, unless that one is."""
        gateway = self.fleet.gateway
        rows = [row for row in self.fleet.journal.open_intents() if row.provider == "north"]
        if number < len(rows):
            row, operation = rows[number], f"older{len(self.fleet.audit.orphans):07d}"
            request = JoinTokenRequest(instance=row.name, pool=row.pool, operation_id=operation)
            secret = gateway.grant(request, number=-1)
            machine = self.put("north", row.name, operation, f"{row.name} {secret}")
            if all(record.instance != row.name for record in gateway.records.values()):
                machine.runs_at = self.fleet.cloud.now
                gateway.register(machine, gateway.grants[secret])

    def put(self, cloud: str, name: str, operation: str, user_data: str) -> Machine:
        pool_name = name.split("-")[1]
        labels = naming.labels(DEPLOYMENT, pool_name, "sandbox", operation)
        want = Create(name, operation, DEPLOYMENT, pool_name, "small", "here", "image", user_data, labels)
        machine = self.fleet.clouds[cloud].make(want)
        self.fleet.audit.orphans.add(machine.instance.id)
        self.fleet.audit.rows_over += 1
        return machine

    def nth(self, number: int) -> tuple[FakeCloud, str] | None:
        machines = [(cloud, key) for cloud in self.fleet.clouds.values() for key in cloud.machines]
        return machines[number] if number < len(machines) else None

    # -- the end ------------------------------------------------------------------------------------------------------

    def calm(self) -> None:
        """Let everything work again, and nobody want anything."""
        self.fleet.audit.step, self.fleet.audit.failing = None, 0
        gateway = self.fleet.gateway
        gateway.unreachable = False
        gateway.silent.clear()
        gateway.prepared.clear()
        gateway.builders, gateway.late = 0, None
        for cloud in self.fleet.clouds.values():
            cloud.heal()
        self.do_leave(None)

    def unrest(self) -> str:
        """Return what is left beside one node of the pool that keeps one; empty when nothing is."""
        gateway, rows = self.fleet.gateway, self.fleet.journal.open_intents()
        machines: list[Machine] = [*self.fleet.audit.machines()]
        leftovers = [left for cloud in self.fleet.clouds.values() for left in cloud.leftovers]
        records = [record for record in gateway.records.values() if not self.is_forgotten(record.state)]
        is_calm = (
            [(row.pool, row.state.value) for row in rows] == [("more", "ready")]
            and [(machine.operation, machine.lost) for machine in machines] == [(rows[0].operation_id, False)]
            and [record.state for record in records] == [NodeState.READY]
            and not leftovers
        )
        return "" if is_calm else f"rows {rows}; machines {machines}; nodes {records}; leftovers {leftovers}"

    def is_forgotten(self, state: NodeState) -> bool:
        """Return whether a node is lost, without a row that could know whether its instance is gone."""
        return state is NodeState.LOST and self.fleet.audit.has_forgotten

    def rest(self, patience: int) -> None:
        """Tick in longer steps until all is at rest, and check that nothing moves any more after that."""
        for _ in range(patience):
            if not self.unrest():
                break
            self.tick(REST_TICK)
        else:
            raise Violation(2, f"it does not come to rest: {self.unrest()}", may_be_slow=True)
        made = [len(cloud.made) for cloud in self.fleet.clouds.values()]
        for _ in range(40):
            self.tick(30.0)
        must(7, not self.unrest(), f"it does not stay at rest: {self.unrest()}")
        must(7, made == [len(cloud.made) for cloud in self.fleet.clouds.values()], "it boots what nobody wants")


@contextmanager
def played(directory: Path, mutate: Mutation = lambda policy: policy) -> Iterator[World]:
    """Play a world from its beginning; a broken invariant ends it as an `InvariantError`."""
    fleet = Audited(directory, mutate)
    try:
        yield World(fleet)
    except Violation as violation:
        raise InvariantError(violation) from violation
    finally:
        fleet.close()


def play(
    directory: Path,
    happenings: Sequence[Happening],
    mutate: Mutation = lambda policy: policy,
    *,
    patience: int = PATIENCE,
) -> None:
    """Play one whole world, from empty to rest.

    Raises:
        InvariantError: An invariant was broken.
    """
    with played(directory, mutate) as world:
        for kind, value in happenings:
            world.apply(kind, value)
        world.calm()
        world.rest(patience)
