"""What a run comes to: cost, waiting, utilisation, churn, and how far it is from the least possible."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

from autoscaler.core.model import FleetPolicy, World
from autoscaler.core.offers import expected_shape
from providers.base import Billing
from simulator import amounts
from simulator.amounts import RESOURCES
from simulator.bound import Bound, lower_bound
from simulator.engine import Outcome
from simulator.hours import hourly_bound
from simulator.settings import Setup
from simulator.trace import Job

COST_GOAL = 1.3
"""Times the lower bound."""
WAIT_GOAL = 1.2
"""Times the boot time, at the 95th percentile."""


@dataclass(frozen=True)
class Waits:
    """Seconds from asked for to started."""

    p50: float
    p95: float
    p99: float
    most: float


@dataclass(frozen=True)
class Summary:
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
    """The least that it can cost whoever lets nobody wait longer than this run did, where every started hour is paid
    (`simulator.hours`); ``None`` where some provider charges by the second."""
    wait: Waits
    """Of sandboxes and builds together; what never started is left out, see ``unserved``."""
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
    """For how many seconds which reason has kept waiting jobs from new nodes, the longest first."""
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
        """For JSON."""
        return {**asdict(self), "hourly_ratio": self.hourly_ratio, "is_reached": self.is_reached}


def summarise(name: str, outcome: Outcome, setup: Setup, policy: FleetPolicy) -> Summary:
    """The figures of a run."""
    waits = sorted(outcome.waits.values())
    cost = sum(
        machine.cost(provider.settings.billing, outcome.ended_at)
        for provider in outcome.providers.values()
        for machine in provider.machines
    )
    served = [job for job in outcome.jobs if job.id in outcome.waits]
    bound = lower_bound(served, setup, policy)
    boots = [m.registers_at - m.created_at for m in outcome.machines if m.registers_at is not None]
    boot = median(boots) if boots else 0.0
    wait = Waits(*(percentile(waits, share) for share in (0.5, 0.95, 0.99, 1.0)))
    return Summary(
        trace=name,
        jobs=len(outcome.jobs),
        unserved=len(outcome.jobs) - len(waits),
        hours=outcome.ended_at / 3600,
        cost=cost,
        bound=bound.euros,
        cost_ratio=cost / bound.euros if bound.euros else math.inf,
        hourly_bound=_hourly_bound(served, max(waits, default=0.0), bound, setup),
        wait=wait,
        boot=boot,
        wait_ratio=wait.p95 / boot if boot else 0.0,
        utilisation=_utilisation(outcome, policy, setup.simulation.builds_per_node),
        boots=len(outcome.machines),
        deletes=sum(1 for machine in outcome.machines if machine.deleted_at is not None),
        refusals=sum(provider.refused for provider in outcome.providers.values()),
        failed_boots=sum(1 for machine in outcome.machines if machine.registers_at is None),
        most_nodes=max(sample.instances for sample in outcome.samples),
        most_waiting=max(sample.waiting for sample in outcome.samples),
        held=dict(sorted(outcome.held.items(), key=lambda each: -each[1])[:8]),
        ticks=outcome.ticks,
    )


def _hourly_bound(served: Sequence[Job], longest: float, bound: Bound, setup: Setup) -> float | None:
    """The better of both bounds, which hold alike; a pool by the second would make the second one wrong."""
    used = {setup.simulation.providers[pool.provider].billing for pool in setup.autoscaler.pools}
    if used != {Billing.HOURLY_ROUND_UP}:
        return None
    return max(bound.euros, hourly_bound(served, longest, bound.worth))


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value that so large a share does not exceed (nearest rank); 0 of nothing."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


def _utilisation(outcome: Outcome, policy: FleetPolicy, builds: int) -> dict[str, float]:
    pools = {pool.name: pool for pool in policy.pools}
    work, paid = amounts.ZERO, amounts.ZERO
    for job in outcome.jobs:
        if job.id in outcome.waits:
            work = amounts.plus(work, job.needs, job.seconds)
    for machine in outcome.machines:
        pool = pools[machine.pool]
        gives = amounts.of_node(pool, expected_shape(World(), pool, machine.offer.offer()), builds)
        paid = amounts.plus(paid, gives, max(0.0, machine.seconds(outcome.ended_at)))
    return {name: done / had for name, done, had in zip(RESOURCES, work, paid, strict=True) if had}
