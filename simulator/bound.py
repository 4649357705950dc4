"""What the work of a trace costs at the very least, whoever schedules it and whatever they know.

Let ``W[r]`` be the work: the sum over all jobs of their seconds times what they take of resource ``r``.  Let ``x[o]``
be the seconds for which a fleet has instances of offer ``o``, each giving ``A[o][r]`` and costing ``p[o]`` a second.
At no moment do the jobs on an instance take more than it gives, so that over the whole time, for every resource,

    sum over o of A[o][r] * x[o]  >=  W[r],                                                             (1)

whenever the jobs run, in which order, and however long they wait.  The bill is at least the sum of ``p[o] * x[o]``:
booting, idling, draining and the rounding up of hours only add to it.  Now take any worth ``y[r] >= 0`` of a second of
each resource for which no offer gives more than it costs, ``sum over r of A[o][r] * y[r] <= p[o]``.  Then

    bill  >=  sum p[o] x[o]  >=  sum x[o] A[o][r] y[r]  >=  sum W[r] y[r],                              (2)

and the best such ``y`` gives the bound.  It is found by the simplex method; that ``y`` is feasible can be checked in
one line, which is all that the proof needs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from autoscaler.core.model import FleetPolicy, World
from autoscaler.core.offers import expected_shape
from simulator import amounts
from simulator.amounts import RESOURCES, Amounts
from simulator.settings import Setup
from simulator.trace import Job

HOUR: Final = 3600.0
_TINY: Final = 1e-12


@dataclass(frozen=True)
class Bound:
    """The least that the work can cost."""

    euros: float
    worth: dict[str, float]
    """Euro that an hour of one unit of each resource is worth, in the best proof."""


def lower_bound(jobs: Sequence[Job], setup: Setup, policy: FleetPolicy) -> Bound:
    """The bound for these jobs under these pools and prices."""
    work = amounts.ZERO
    for job in jobs:
        work = amounts.plus(work, job.needs, job.seconds / HOUR)
    gives, prices = _sold(setup, policy)
    given = [any(row[place] > 0 for row in gives) for place in range(len(RESOURCES))]
    # What nobody sells can be had at no price; a worth of zero leaves the proof whole.
    wanted = tuple(amount if is_given else 0.0 for amount, is_given in zip(work, given, strict=True))
    worth = best_worth(gives, prices, wanted)
    euros = sum(each * amount for each, amount in zip(worth, wanted, strict=True))
    return Bound(euros, dict(zip(RESOURCES, worth, strict=True)))


def _sold(setup: Setup, policy: FleetPolicy) -> tuple[list[Amounts], list[float]]:
    """What every pool may buy gives to jobs, and its price an hour."""
    gives: list[Amounts] = []
    prices: list[float] = []
    for pool in policy.pools:
        for offer in setup.simulation.providers[pool.provider].offers:
            if pool.offers and (offer.type, offer.location) not in {(key.type, key.location) for key in pool.offers}:
                continue
            shape = expected_shape(World(), pool, offer.offer())
            gives.append(amounts.of_node(pool, shape, setup.simulation.builds_per_node))
            prices.append(float(offer.price))
    return gives, prices


def best_worth(gives: Sequence[Amounts], prices: Sequence[float], work: Amounts) -> Amounts:
    """The ``y >= 0`` with ``gives . y <= prices`` under which ``work`` is worth the most.

    The simplex method from the origin, which is feasible as prices are positive.  Bland's rule, so that it ends.
    Every resource of which there is work must be given by some offer.
    """
    count, offers = len(work), len(gives)
    # Scaled by the largest amount of each resource, so that bytes and cores are numbers of one size.
    scale = [max((row[place] for row in gives), default=0.0) or 1.0 for place in range(count)]
    table = [
        [
            *(row[place] / scale[place] for place in range(count)),
            *(float(o == each) for o in range(offers)),
            prices[each],
        ]
        for each, row in enumerate(gives)
    ]
    goal = [-work[place] / scale[place] for place in range(count)] + [0.0] * (offers + 1)
    basis = [count + each for each in range(offers)]
    while (enters := next((at for at, value in enumerate(goal[:-1]) if value < -_TINY), None)) is not None:
        ratios = [(row[-1] / row[enters], basis[at], at) for at, row in enumerate(table) if row[enters] > _TINY]
        if not ratios:
            raise ValueError("there is work of a resource that no offer gives")
        leaves = min(ratios)[2]
        _pivot(table, goal, leaves, enters)
        basis[leaves] = enters
    found = [0.0] * count
    for at, variable in enumerate(basis):
        if variable < count:
            found[variable] = table[at][-1] / scale[variable]
    return tuple(found)


def _pivot(table: list[list[float]], goal: list[float], leaves: int, enters: int) -> None:
    pivot = table[leaves][enters]
    table[leaves] = [value / pivot for value in table[leaves]]
    for at, row in enumerate(table):
        if at != leaves and row[enters]:
            factor = row[enters]
            table[at] = [value - factor * base for value, base in zip(row, table[leaves], strict=True)]
    factor = goal[enters]
    goal[:] = [value - factor * base for value, base in zip(goal, table[leaves], strict=True)]
