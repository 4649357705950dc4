"""The figures of a run: cost, waiting, utilisation, churn, and how far it is from the least possible."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Final

from autoscaler.core.offers import expected_shape
from autoscaler.core.pools import FleetPolicy
from autoscaler.core.world import World
from providers.base import Billing
from simulator.bound import CostBound, hourly_bound, lower_bound
from simulator.engine import RunResult
from simulator.settings import Setup
from simulator.trace import NOTHING, RESOURCES, TraceJob, amounts_of_node, plus

COST_GOAL: Final = 1.3
"""Times the lower bound."""
WAIT_GOAL: Final = 1.2
"""Times the boot time, at the 95th percentile."""
MOST_HELD: Final = 8
"""Kinds of refusals that a summary names."""


@dataclass(frozen=True)
class WaitTimes:
    """Percentiles of the seconds from request to start."""

    p50: float
    p95: float
    p99: float
    most: float


@dataclass(frozen=True)
class RunSummary:
    """The figures of one run.  Times are seconds, money is euro, net."""

    trace: str
    jobs: int
    unserved: int
    """Jobs that never found room."""
    hours: float
    """From the first moment until the fleet was back at its minimum."""
    cost: float
    bound: float
    """The least that the work can cost (`simulator.bound`)."""
    cost_ratio: float
    hourly_bound: float | None
    """The least that it can cost where every started hour is paid and no job waits longer than in this run;
    ``None`` where some provider charges by the second."""
    wait: WaitTimes
    """Of sandboxes and builds together, without those that are ``unserved``."""
    boot: float
    """Median time from an order to its node, of the instances of this run."""
    wait_ratio: float
    """The 95th percentile of waiting over the boot time."""
    utilisation: dict[str, float]
    """Work over what was paid for, by resource."""
    boots: int
    deletes: int
    refusals: int
    """Creates that the cloud refused."""
    failed_boots: int
    most_nodes: int
    most_waiting: int
    held: dict[str, float]
    """For how many seconds which kind of refusal has kept waiting jobs from new nodes, the longest first."""
    ticks: int

    @property
    def hourly_ratio(self) -> float | None:
        """The cost over the bound of those who pay whole hours and keep waiting as short."""
        return self.cost / self.hourly_bound if self.hourly_bound else None

    @property
    def is_reached(self) -> bool:
        """Whether both goals are met and nothing was left waiting."""
        return not self.unserved and self.cost_ratio <= COST_GOAL and self.wait_ratio <= WAIT_GOAL

    def as_dict(self) -> dict[str, object]:
        """Return the figures for JSON."""
        return {**asdict(self), "hourly_ratio": self.hourly_ratio, "is_reached": self.is_reached}


def summarise(name: str, run: RunResult, setup: Setup, policy: FleetPolicy) -> RunSummary:
    """Return the figures of a run of the trace ``name``."""
    waits = sorted(run.waits.values())
    cost = sum(
        instance.cost(provider.settings.billing, run.ended_at)
        for provider in run.providers.values()
        for instance in provider.instances
    )
    served = [job for job in run.jobs if job.id in run.waits]
    bound = lower_bound(served, setup, policy)
    boots = [each.registers_at - each.created_at for each in run.instances if each.registers_at is not None]
    boot = median(boots) if boots else 0.0
    wait = WaitTimes(*(percentile(waits, share) for share in (0.5, 0.95, 0.99, 1.0)))
    return RunSummary(
        trace=name,
        jobs=len(run.jobs),
        unserved=len(run.jobs) - len(waits),
        hours=run.ended_at / 3600,
        cost=cost,
        bound=bound.euros,
        cost_ratio=cost / bound.euros if bound.euros else math.inf,
        hourly_bound=_hourly_bound(served, max(waits, default=0.0), bound, setup),
        wait=wait,
        boot=boot,
        wait_ratio=wait.p95 / boot if boot else 0.0,
        utilisation=_utilisation(run, policy, setup.simulation.builds_per_node),
        boots=len(run.instances),
        deletes=sum(1 for each in run.instances if each.deleted_at is not None),
        refusals=sum(provider.refused for provider in run.providers.values()),
        failed_boots=sum(1 for each in run.instances if each.registers_at is None),
        most_nodes=max(sample.instances for sample in run.samples),
        most_waiting=max(sample.waiting for sample in run.samples),
        held=_longest_held(run),
        ticks=run.ticks,
    )


def _longest_held(run: RunResult) -> dict[str, float]:
    longest = sorted(run.held.items(), key=lambda each: -each[1])[:MOST_HELD]
    return {f"{subject}: {kind.value.replace('_', ' ')}": seconds for (subject, kind), seconds in longest}


def _hourly_bound(served: Sequence[TraceJob], longest: float, bound: CostBound, setup: Setup) -> float | None:
    """Return the greater bound; ``None`` where a pool pays by the second, for which the hourly one is wrong."""
    used = {setup.simulation.providers[pool.provider].billing for pool in setup.autoscaler.pools}
    if used != {Billing.HOURLY_ROUND_UP}:
        return None
    return max(bound.euros, hourly_bound(served, longest, bound.worth))


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value that so large a share does not exceed (nearest rank); 0 of nothing."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


def _utilisation(run: RunResult, policy: FleetPolicy, builds: int) -> dict[str, float]:
    pools = {pool.name: pool for pool in policy.pools}
    work, paid = NOTHING, NOTHING
    for job in run.jobs:
        if job.id in run.waits:
            work = plus(work, job.needs, job.seconds)
    for instance in run.instances:
        pool = pools[instance.pool]
        gives = amounts_of_node(pool, expected_shape(World(), pool, instance.offer.offer()), builds)
        paid = plus(paid, gives, max(0.0, instance.seconds(run.ended_at)))
    return {name: done / had for name, done, had in zip(RESOURCES, work, paid, strict=True) if had}
