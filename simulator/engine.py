"""The run: events in the order of their time, and a tick of the real autoscaler every so many seconds."""

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from autoscaler.clock import ClockGuard, DaemonClock
from autoscaler.core.actions import RefusalKind
from autoscaler.core.offers import expected_shape
from autoscaler.core.pools import FleetPolicy
from autoscaler.core.states import IntentState
from autoscaler.core.world import World
from autoscaler.executor import Executor
from autoscaler.instances import Randomness
from autoscaler.observe import Observer
from autoscaler.reconcile import Reconciler, TickReport
from autoscaler.user_data import LaunchTemplate
from providers.testing.fake import EPOCH
from simulator.cloud import SimulatedInstance, SimulatedProvider, simulated_provider
from simulator.gateway import PREPARED_SECONDS, SimulatedGateway
from simulator.journal import MemoryJournal
from simulator.settings import Setup
from simulator.trace import Amounts, JobBatch, Trace, TraceJob

MONOTONIC_START: Final = 1000.0
CALM_SECONDS: Final = 60.0
"""Ticks are skipped for so long at most while nothing can come of them: every node is ready and has work, nothing
waits, no floor has to be kept, and nothing has happened since the last one but the end of some job among others."""


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
class RunResult:
    """Everything that a run has shown."""

    jobs: tuple[TraceJob, ...]
    waits: dict[str, float]
    """Seconds from request to start, by job; what never started is missing."""
    providers: dict[str, SimulatedProvider]
    samples: tuple[Sample, ...]
    held: dict[tuple[str, RefusalKind], float]
    """For how many seconds what was refused (a pool, or all demand) for which kind of reason, while jobs waited."""
    moves: Counter[str]
    """How many intents have entered each state."""
    ended_at: float
    ticks: int

    @property
    def instances(self) -> list[SimulatedInstance]:
        """Every instance that was made."""
        return [instance for provider in self.providers.values() for instance in provider.instances]


class VirtualClock(DaemonClock):
    """Both clocks, at the simulation's time."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        """Return seconds since the epoch, UTC."""
        return EPOCH.timestamp() + self.seconds

    def monotonic(self) -> float:
        """Return seconds that only ever grow."""
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
            name: simulated_provider(each, deployment, chance) for name, each in setup.simulation.providers.items()
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
        self._requested_at: dict[str, float] = {}
        self._waits: dict[str, float] = {}
        self._after: dict[str, list[TraceJob]] = {}
        self._held: Counter[tuple[str, RefusalKind]] = Counter()
        self._samples: list[Sample] = []
        self._left = len(self.jobs)
        self._moved_at = 0.0
        self._has_floors = any(pool.min or pool.warm for pool in self.policy.pools)
        self._is_calm = False
        self._ticked_at = 0.0

    def run(self, on_tick: Callable[[Progress], None] = lambda _progress: None) -> RunResult:
        """Play until the work is done and the fleet is back at its minimum, or nothing moves any more.

        Args:
            on_tick: is called after every tick with how far the run is.

        Raises:
            WorkLostError: the autoscaler deleted an instance with work on it.
        """
        self._schedule_jobs()
        tick = self._setup.autoscaler.tick_seconds
        ticks = 0
        while True:
            self._play(ticks * tick)
            ticks += 1
            if self._is_calm and not self._gateway.has_changed and self._ticked_at + CALM_SECONDS > self._clock.seconds:
                self._sample()
                continue
            self._tick(tick)
            on_tick(Progress(self._clock.seconds, len(self.jobs) - self._left, len(self.jobs)))
            if self._is_over():
                break
        return RunResult(
            jobs=self.jobs,
            waits=self._waits,
            providers=self._providers,
            samples=tuple(self._samples),
            held=dict(self._held),
            moves=self._journal.moves,
            ended_at=self._clock.seconds,
            ticks=ticks,
        )

    def _tick(self, tick: float) -> None:
        """Let the autoscaler tick once."""
        self._gateway.has_changed = False
        self._ticked_at = self._clock.seconds
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
        together: dict[float, list[TraceJob]] = {}
        for job in self.jobs:
            if job.batch.after:
                self._after.setdefault(job.batch.after, []).append(job)
            else:
                together.setdefault(job.at, []).append(job)
        for at, jobs in together.items():
            self._at(at, lambda jobs=jobs: self._submit(jobs))  # type: ignore[misc]  # binds the present value
        first: dict[JobBatch, TraceJob] = {}
        for job in self.jobs:
            if job.batch.ahead:
                first.setdefault(job.batch, job)
        for batch, job in first.items():
            self._at(max(0.0, batch.at - batch.ahead), lambda b=batch, j=job: self._prepare(b, j))  # type: ignore[misc]

    def _at(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (seconds, next(self._order), event))

    def _play(self, until: float) -> None:
        """Let everything happen that is due up to a moment."""
        while self._events and self._events[0][0] <= until:
            at, _, event = heapq.heappop(self._events)
            self._clock.seconds = self._gateway.now = at
            event()
        self._clock.seconds = self._gateway.now = until
        for provider in self._providers.values():
            provider.cloud.advance((EPOCH - provider.cloud.now).total_seconds() + until)

    def _submit(self, jobs: list[TraceJob]) -> None:
        self._moved_at = self._clock.seconds
        self._requested_at |= dict.fromkeys((job.id for job in jobs), self._clock.seconds)
        self._gateway.submit(jobs)

    def _prepare(self, batch: JobBatch, job: TraceJob) -> None:
        self._gateway.prepare(job, batch.count, batch.at + batch.over + PREPARED_SECONDS)

    def _started(self, job: TraceJob) -> None:
        now = self._clock.seconds
        self._waits[job.id] = now - self._requested_at[job.id]
        self._moved_at = now
        self._at(now + job.seconds, lambda: self._ended(job))

    def _ended(self, job: TraceJob) -> None:
        self._moved_at = self._clock.seconds
        self._left -= 1
        self._gateway.finish(job)
        for other in self._after.pop(job.batch.name, []) if job.batch.name else []:
            self._at(self._clock.seconds + other.at, lambda each=other: self._submit([each]))  # type: ignore[misc]

    def _join(self, instance: SimulatedInstance) -> None:
        if instance.deleted_at is None:
            pool = self._pools[instance.pool]
            total = expected_shape(World(), pool, instance.offer.offer())
            self._gateway.register(instance.name, instance.operation_id, pool, total)

    # -- the autoscaler -----------------------------------------------------------------------------------------------

    def _assembled(self, chance: random.Random) -> Reconciler:
        ids = (f"op{number:010d}" for number in itertools.count(1))
        providers = dict(self._providers)
        templates = {name: LaunchTemplate("image", lambda _name, _token: "") for name in self._pools}
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
                templates,
                self._clock,
                Randomness(lambda: next(ids), chance.random),
            ),
        )

    def _follow(self) -> None:
        """Schedule the nodes that will join after one tick, and drop those whose instance was deleted."""
        for name, provider in self._providers.items():
            for instance in provider.instances[self._known[name] :]:
                if instance.registers_at is not None:
                    self._at(instance.registers_at, lambda each=instance: self._join(each))  # type: ignore[misc]
            self._known[name] = len(provider.instances)
            for instance in provider.alive():
                if instance.deleted_at is not None:
                    self._gateway.vanish(instance.name)
            provider.forget_gone()

    def _note(self, report: TickReport, tick: float) -> None:
        """Count what stands in the way of waiting jobs."""
        if self._gateway.tally.waiting:
            refused = {(wait.subject, wait.kind) for wait in report.plan.waits if isinstance(wait.kind, RefusalKind)}
            self._held.update(dict.fromkeys(refused, tick))

    def _sample(self) -> None:
        tally = self._gateway.tally
        alive = [instance for provider in self._providers.values() for instance in provider.alive()]
        self._samples.append(
            Sample(
                at=self._clock.seconds,
                waiting=tally.waiting,
                running=tally.running,
                wanted=tally.wanted,
                used=tally.used,
                capacity=tally.capacity,
                nodes=len(self._gateway.fleet),
                instances=len(alive),
                hourly=sum(float(instance.offer.price) for instance in alive),
            )
        )

    def _is_over(self) -> bool:
        if self._clock.seconds - self._moved_at > self._setup.simulation.tail_seconds and not self._events:
            return True
        floor = sum(pool.min for pool in self.policy.pools)
        return self._left == 0 and len(self._journal.open_intents()) <= floor
