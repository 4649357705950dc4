"""The least that the work of a trace costs, whoever schedules it and whatever they know.

Let ``W[r]`` be the work: the sum over all jobs of their seconds times what they take of resource ``r``.  Let ``x[o]``
be the seconds for which a fleet has instances of offer ``o``, each giving ``A[o][r]`` and costing ``p[o]`` a second.
At no moment do the jobs on an instance take more than it gives, so that over the whole time, for every resource,

    sum over o of A[o][r] * x[o]  >=  W[r],                                                             (1)

whenever the jobs run, in which order, and however long they wait.  The bill is at least the sum of ``p[o] * x[o]``:
booting, idling, draining and the rounding up of hours only add to it.  Now take any worth ``y[r] >= 0`` of a second of
each resource for which no offer gives more than it costs, ``sum over r of A[o][r] * y[r] <= p[o]``.  Then

    bill  >=  sum p[o] x[o]  >=  sum x[o] A[o][r] y[r]  >=  sum W[r] y[r],                              (2)

and the best such ``y`` gives the bound.  A solver for linear programmes finds it; that ``y`` is feasible is checked
here in one line, which is all that the proof needs.

**Whole hours.**  Where every started hour is paid, work that may wait for ever costs no more than by the second: it can
be saved up until it fills whole hours.  A better bound needs a promise about waiting.  Let a job be asked for at ``a``,
run for ``d`` seconds and wait for ``w`` at most: then it runs, whoever schedules it, at every moment from ``a + w`` up
to ``a + d`` (if ``w < d``).  Let ``g(t)`` be the worth, in the same ``y``, of all that surely runs at ``t``.  The
instances that are there at ``t`` cost at least ``g(t)`` an hour, since none is worth more than it costs.

Take moments ``t1 < t2 < …`` that lie at least an hour apart.  A paid hour of an instance ends before it comes to a
second one of them.  So the hours that are paid for different moments are different hours, and

    bill  >=  g(t1) + g(t2) + …                                                                         (3)

The best such moments are found from left to right; only multiples of `STEP` are tried, which can make the bound
smaller and never wrong.
"""

import importlib.util
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from autoscaler.core.offers import expected_shape
from autoscaler.core.pools import FleetPolicy
from autoscaler.core.world import World
from simulator.settings import Setup
from simulator.trace import NOTHING, RESOURCES, Amounts, TraceJob, amounts_of_node, earliest_starts, plus

HOUR: Final = 3600.0
STEP: Final = 10.0
"""Seconds between the moments that `hourly_bound` tries."""
SOLVER: Final = "scipy"


class NoSolverError(Exception):
    """The solver for linear programmes is not installed."""

    def __init__(self) -> None:
        super().__init__(
            f"the lower bound needs the Python package {SOLVER!r}, which is not installed here;"
            " install it with: pip install 'sandbox-fleet[simulator]'"
        )


@dataclass(frozen=True)
class CostBound:
    """The least that the work can cost."""

    euros: float
    worth: dict[str, float]
    """Euro that an hour of one unit of each resource is worth, in the best proof."""


def require_solver() -> None:
    """Raise before a long run rather than after it.

    Raises:
        NoSolverError: the solver is not installed.
    """
    if importlib.util.find_spec(SOLVER) is None:
        raise NoSolverError


def lower_bound(jobs: Sequence[TraceJob], setup: Setup, policy: FleetPolicy) -> CostBound:
    """Return the bound for these jobs under these pools and prices.

    Raises:
        NoSolverError: the solver is not installed.
    """
    work = NOTHING
    for job in jobs:
        work = plus(work, job.needs, job.seconds / HOUR)
    gives, prices = _for_sale(setup, policy)
    given = [any(row[place] > 0 for row in gives) for place in range(len(RESOURCES))]
    # What nobody sells can be had at no price; a worth of zero leaves the proof whole.
    wanted = tuple(amount if is_given else 0.0 for amount, is_given in zip(work, given, strict=True))
    worth = best_worth(gives, prices, wanted)
    euros = sum(each * amount for each, amount in zip(worth, wanted, strict=True))
    return CostBound(euros, dict(zip(RESOURCES, worth, strict=True)))


def _for_sale(setup: Setup, policy: FleetPolicy) -> tuple[list[Amounts], list[float]]:
    """Return for each offer that a pool may buy what it gives to jobs, and its price an hour."""
    gives: list[Amounts] = []
    prices: list[float] = []
    for pool in policy.pools:
        for offer in setup.simulation.providers[pool.provider].offers:
            if pool.offers and (offer.type, offer.location) not in {(key.type, key.location) for key in pool.offers}:
                continue
            shape = expected_shape(World(), pool, offer.offer())
            gives.append(amounts_of_node(pool, shape, setup.simulation.builds_per_node))
            prices.append(float(offer.price))
    return gives, prices


def best_worth(gives: Sequence[Amounts], prices: Sequence[float], work: Amounts) -> Amounts:
    """Return the ``y >= 0`` with ``gives . y <= prices`` under which ``work`` is worth the most.

    Raises:
        NoSolverError: the solver is not installed.
        ValueError: there is work of a resource that no offer gives.
    """
    try:
        from scipy.optimize import linprog  # type: ignore[import-untyped]  # it has no annotations
    except ModuleNotFoundError as error:
        raise NoSolverError from error
    # Scaled by the largest amount of each resource, so that bytes and cores are numbers of one size.
    scale = [max((row[place] for row in gives), default=0.0) or 1.0 for place in range(len(work))]
    goal = [amount / by for amount, by in zip(work, scale, strict=True)]
    most = max(goal) or 1.0
    rows = [[amount / by for amount, by in zip(row, scale, strict=True)] for row in gives]
    solved = linprog([-each / most for each in goal], A_ub=rows, b_ub=list(prices), method="highs")
    if not solved.success:
        raise ValueError(f"there is work of a resource that no offer gives: {solved.message}")
    found = [max(0.0, float(value)) / by for value, by in zip(solved.x, scale, strict=True)]
    # A solver keeps to the prices within its tolerance only, and a proof keeps to them.
    worths = (sum(each * amount for each, amount in zip(found, row, strict=True)) for row in gives)
    over = max((worth / price for worth, price in zip(worths, prices, strict=True)), default=1.0)
    return tuple(value / max(1.0, over) for value in found)


def hourly_bound(jobs: Sequence[TraceJob], longest: float, worth: Mapping[str, float]) -> float:
    """Return the least, in euro, that these jobs cost where every started hour is paid.

    Args:
        jobs: all of them; with a job that comes after a build, the build too.
        longest: seconds that none of them waits longer than.
        worth: euro that an hour of one unit of each resource is worth (`CostBound.worth`).
    """
    rates = tuple(worth[name] for name in RESOURCES)
    changes: dict[int, float] = {}
    for job, (start, builds) in zip(jobs, earliest_starts(jobs), strict=True):
        # A build that waits keeps waiting what follows.
        latest = start + longest * (builds + 1)
        begins, ends = math.ceil(latest / STEP), math.ceil((start + job.seconds) / STEP)
        if begins < ends:
            value = sum(rate * need for rate, need in zip(rates, job.needs, strict=True))
            changes[begins] = changes.get(begins, 0.0) + value
            changes[ends] = changes.get(ends, 0.0) - value
    moments = range(max(changes, default=0))
    surely = list(itertools.accumulate(changes.get(moment, 0.0) for moment in moments))
    return _greatest_sum(surely, math.ceil(HOUR / STEP))


def _greatest_sum(values: Sequence[float], apart: int) -> float:
    """Return the greatest sum of values of which any two lie at least so many places apart."""
    best = [0.0] * (len(values) + 1)
    for place, value in enumerate(values):
        best[place + 1] = max(best[place], value + best[max(0, place + 1 - apart)])
    return best[-1]
