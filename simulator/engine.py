"""The run: events in the order of their time, and a tick of the real autoscaler every so many seconds."""

import heapq
import itertools
import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from autoscaler.clock import Clock, ClockGuard
from autoscaler.core.model import FleetPolicy, RefusalKind, World
from autoscaler.core.offers import expected_shape
from autoscaler.core.states import IntentState
from autoscaler.executor import Executor, Preparation
from autoscaler.instances import Chances
from autoscaler.observe import Observer
from autoscaler.reconcile import Reconciler, Report
from providers.testing.fake import EPOCH
from simulator import cloud as clouds
from simulator.amounts import Amounts
from simulator.cloud import Machine, SimulatedProvider
from simulator.gateway import PREPARED_SECONDS, SimulatedGateway
from simulator.journal import MemoryJournal
from simulator.settings import Setup
from simulator.trace import Batch, Job, Trace

MONOTONIC_START: Final = 1000.0
CALM_SECONDS: Final = 60.0
"""Ticks are left out for so long at most while nothing can come of them: every node is ready and has work, nothing
waits, no floor has to be kept, and nothing has happened since the last one but the end of some job among others."""
_NUMBER: Final = re.compile(r"\d+(\.\d+)?")


@dataclass(frozen=True)
class Sample:
    """The fleet at one tick."""

    at: float
    waiting: int
    running: int
    wanted: Amounts
    """What the waiting jobs need."""
    used: Amounts
    capacity: Amounts
    """Of the nodes that have registered."""
    nodes: int
    instances: int
    """All that are paid for."""
    hourly: float
    """Euro an hour that they cost."""


@dataclass(frozen=True)
class Progress:
    """How far a run is."""

    at: float
    """Seconds of the trace that have been played."""
    ended: int
    jobs: int


@dataclass(frozen=True)
class Outcome:
    """Everything that a run has shown."""

    jobs: tuple[Job, ...]
    waits: dict[str, float]
    """Seconds from asked for to started, by job; what never started is missing."""
    providers: dict[str, SimulatedProvider]
    samples: tuple[Sample, ...]
    held: dict[str, float]
    """For how many seconds which reason has kept waiting jobs from new nodes."""
    moves: Counter[str]
    """How many intents have come to each state."""
    ended_at: float
    ticks: int

    @property
    def machines(self) -> list[Machine]:
        """Every instance that was made."""
        return [machine for provider in self.providers.values() for machine in provider.machines]


class VirtualClock(Clock):
    """Both clocks, at the simulation's time."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        """Seconds since the epoch, UTC."""
        return EPOCH.timestamp() + self.seconds

    def monotonic(self) -> float:
        """Seconds that only ever grow."""
        return MONOTONIC_START + self.seconds


class Simulation:
    """One run of a trace.  `run` may be called once."""

    def __init__(self, trace: Trace, setup: Setup) -> None:
        self.jobs = trace.jobs()
        self.policy: FleetPolicy = setup.autoscaler.policy()
        self._setup = setup
        self._pools = {pool.name: pool for pool in self.policy.pools}
        self._clock = VirtualClock()
        chance = random.Random(setup.simulation.seed)  # noqa: S311 - it has to be repeatable
        deployment = setup.autoscaler.deployment
        self._providers = {
            name: clouds.build(each, deployment, chance) for name, each in setup.simulation.providers.items()
        }
        self._gateway = SimulatedGateway(
            at=next(iter(self._providers.values())).at,
            heartbeat_seconds=setup.simulation.heartbeat_seconds,
            builds_per_node=setup.simulation.builds_per_node,
            on_start=self._started,
        )
        self._journal = MemoryJournal()
        self._reconciler = self._assembled(chance)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._known: Counter[str] = Counter()
        self._asked_at: dict[str, float] = {}
        self._waits: dict[str, float] = {}
        self._after: dict[str, list[Job]] = {}
        self._held: Counter[str] = Counter()
        self._samples: list[Sample] = []
        self._left = len(self.jobs)
        self._moved_at = 0.0
        self._has_floors = any(pool.min or pool.warm for pool in self.policy.pools)
        self._is_calm = False
        self._looked_at = 0.0

    def run(self, on_look: Callable[[Progress], None] = lambda _progress: None) -> Outcome:
        """Plays until the work is done and the fleet is back at its minimum, or nothing moves any more.

        Args:
            on_look: is told after every tick how far the run is.

        Raises:
            WorkLostError: the autoscaler deleted an instance with work on it.
        """
        self._schedule_jobs()
        tick = self._setup.autoscaler.tick_seconds
        ticks = 0
        while True:
            self._play(ticks * tick)
            ticks += 1
            if self._is_calm and not self._gateway.has_changed and self._looked_at + CALM_SECONDS > self._clock.seconds:
                self._sample()
                continue
            self._look(tick)
            on_look(Progress(self._clock.seconds, len(self.jobs) - self._left, len(self.jobs)))
            if self._is_over():
                break
        return Outcome(
            jobs=self.jobs,
            waits=self._waits,
            providers=self._providers,
            samples=tuple(self._samples),
            held=dict(self._held),
            moves=self._journal.moves,
            ended_at=self._clock.seconds,
            ticks=ticks,
        )

    def _look(self, tick: float) -> None:
        """One tick of the autoscaler."""
        self._gateway.has_changed = False
        self._looked_at = self._clock.seconds
        report = self._reconciler.tick()
        self._follow()
        self._note(report, tick)
        self._sample()
        self._is_calm = (
            not self._has_floors
            and not (report.plan.actions or report.findings)
            and self._gateway.is_calm()
            and all(intent.state is IntentState.READY for intent in report.world.intents)
        )

    # -- events -------------------------------------------------------------------------------------------------------

    def _schedule_jobs(self) -> None:
        together: dict[float, list[Job]] = {}
        for job in self.jobs:
            if job.batch.after:
                self._after.setdefault(job.batch.after, []).append(job)
            else:
                together.setdefault(job.at, []).append(job)
        for at, jobs in together.items():
            self._at(at, lambda jobs=jobs: self._submit(jobs))  # type: ignore[misc]  # binds the present value
        first: dict[Batch, Job] = {}
        for job in self.jobs:
            if job.batch.ahead:
                first.setdefault(job.batch, job)
        for batch, job in first.items():
            self._at(max(0.0, batch.at - batch.ahead), lambda b=batch, j=job: self._prepare(b, j))  # type: ignore[misc]

    def _at(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (seconds, next(self._order), event))

    def _play(self, until: float) -> None:
        """Everything that happens up to a moment."""
        while self._events and self._events[0][0] <= until:
            at, _, event = heapq.heappop(self._events)
            self._clock.seconds = self._gateway.now = at
            event()
        self._clock.seconds = self._gateway.now = until
        for provider in self._providers.values():
            provider.cloud.advance((EPOCH - provider.cloud.now).total_seconds() + until)

    def _submit(self, jobs: list[Job]) -> None:
        self._moved_at = self._clock.seconds
        self._asked_at |= dict.fromkeys((job.id for job in jobs), self._clock.seconds)
        self._gateway.submit(jobs)

    def _prepare(self, batch: Batch, job: Job) -> None:
        self._gateway.prepare(job, batch.count, batch.at + batch.over + PREPARED_SECONDS)

    def _started(self, job: Job) -> None:
        now = self._clock.seconds
        self._waits[job.id] = now - self._asked_at[job.id]
        self._moved_at = now
        self._at(now + job.seconds, lambda: self._ended(job))

    def _ended(self, job: Job) -> None:
        self._moved_at = self._clock.seconds
        self._left -= 1
        self._gateway.finish(job)
        for other in self._after.pop(job.batch.name, []) if job.batch.name else []:
            self._at(self._clock.seconds + other.at, lambda each=other: self._submit([each]))  # type: ignore[misc]

    def _join(self, machine: Machine) -> None:
        if machine.deleted_at is None:
            pool = self._pools[machine.pool]
            gives = expected_shape(World(), pool, machine.offer.offer())
            self._gateway.register(machine.name, machine.operation_id, pool, gives)

    # -- the autoscaler -----------------------------------------------------------------------------------------------

    def _assembled(self, chance: random.Random) -> Reconciler:
        ids = (f"op{number:010d}" for number in itertools.count(1))
        providers = dict(self._providers)
        preparations = {name: Preparation("image", lambda _name, _token: "") for name in self._pools}
        guard = ClockGuard(self._clock, 0.0, lambda _jump: None)
        return Reconciler(
            observer=Observer(providers, self._gateway, self._journal, self._clock, guard, policy=self.policy),
            journal=self._journal,
            gateway=self._gateway,
            policy=self.policy,
            clock=self._clock,
            executor=Executor(
                self._journal,
                providers,
                self._gateway,
                self.policy,
                preparations,
                self._clock,
                Chances(lambda: next(ids), chance.random),
            ),
        )

    def _follow(self) -> None:
        """What came of the orders of one tick: nodes that will join, nodes that are no more."""
        for name, provider in self._providers.items():
            for machine in provider.machines[self._known[name] :]:
                if machine.registers_at is not None:
                    self._at(machine.registers_at, lambda m=machine: self._join(m))  # type: ignore[misc]
            self._known[name] = len(provider.machines)
            for machine in provider.alive():
                if machine.deleted_at is not None:
                    self._gateway.vanish(machine.name)
            provider.forget_gone()

    def _note(self, report: Report, tick: float) -> None:
        """Keeps what has stood in the way of those who wait."""
        if self._gateway.tally.waiting:
            refused = [wait for wait in report.plan.waits if isinstance(wait.kind, RefusalKind)]
            reasons = {f"{wait.subject}: {_NUMBER.sub('#', wait.reason)}" for wait in refused}
            self._held.update(dict.fromkeys(reasons, tick))

    def _sample(self) -> None:
        tally = self._gateway.tally
        alive = [machine for provider in self._providers.values() for machine in provider.alive()]
        self._samples.append(
            Sample(
                at=self._clock.seconds,
                waiting=tally.waiting,
                running=tally.running,
                wanted=tally.wanted,
                used=tally.used,
                capacity=tally.capacity,
                nodes=len(self._gateway.hosts),
                instances=len(alive),
                hourly=sum(float(machine.offer.price) for machine in alive),
            )
        )

    def _is_over(self) -> bool:
        if self._clock.seconds - self._moved_at > self._setup.simulation.tail_seconds and not self._is_to_come():
            return True
        floor = sum(pool.min for pool in self.policy.pools)
        return self._left == 0 and len(self._journal.open_intents()) <= floor

    def _is_to_come(self) -> bool:
        """Whether something will still happen without the autoscaler's doing."""
        return bool(self._events)
