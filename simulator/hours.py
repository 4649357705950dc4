"""What whole hours add to the lower bound, for whoever lets nobody wait longer than so many seconds.

Where every started hour is paid, work that may wait for ever costs no more than by the second: it can be saved up until
it fills whole hours.  So a better bound needs a promise about waiting.  Let a job be asked for at ``a``, run for ``d``
seconds and wait for ``w`` at most: then it runs, whoever schedules it, at every moment from ``a + w`` up to ``a + d``
(if ``w < d``).  Let ``g(t)`` be the worth, in the prices ``y`` of `simulator.bound`, of all that surely runs
at ``t``.  The instances that are there at ``t`` cost at least ``g(t)`` an hour, since none is worth more than it costs.

Take moments ``t1 < t2 < …`` that lie at least an hour apart.  A paid hour of an instance ends before it comes to a
second one of them.  So the hours that are paid for different moments are different hours, and

    bill  >=  g(t1) + g(t2) + …                                                                         (3)

The best such moments are found from left to right; only multiples of `STEP` are tried, which can make the bound
smaller and never wrong.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Final

from simulator.amounts import RESOURCES
from simulator.bound import HOUR
from simulator.trace import Job, earliest

STEP: Final = 10.0
"""Seconds between the moments that are tried."""


def hourly_bound(jobs: Sequence[Job], longest: float, worth: Mapping[str, float]) -> float:
    """The least, in euro, that these jobs cost where every started hour is paid.

    Args:
        jobs: all of them; with a job that comes after a build, the build too.
        longest: seconds that none of them waits longer than.
        worth: euro that an hour of one unit of each resource is worth (`Bound.worth`).
    """
    rates = tuple(worth[name] for name in RESOURCES)
    changes: dict[int, float] = {}
    for job, (first, last) in zip(jobs, _starts(jobs, longest), strict=True):
        begins, ends = math.ceil(last / STEP), math.ceil((first + job.seconds) / STEP)
        if begins < ends:
            value = sum(rate * need for rate, need in zip(rates, job.needs, strict=True))
            changes[begins] = changes.get(begins, 0.0) + value
            changes[ends] = changes.get(ends, 0.0) - value
    moments = range(max(changes, default=0))
    surely = list(itertools.accumulate(changes.get(moment, 0.0) for moment in moments))
    return _best(surely, math.ceil(HOUR / STEP))


def _starts(jobs: Sequence[Job], longest: float) -> list[tuple[float, float]]:
    """When each job may start: at the earliest, and at the latest.  A build that waits keeps waiting what follows."""
    return [(first, first + longest * (builds + 1)) for first, builds in earliest(jobs)]


def _best(values: Sequence[float], apart: int) -> float:
    """The greatest sum of values of which any two lie at least so many places apart."""
    best = [0.0] * (len(values) + 1)
    for place, value in enumerate(values):
        best[place + 1] = max(best[place], value + best[max(0, place + 1 - apart)])
    return best[-1]
