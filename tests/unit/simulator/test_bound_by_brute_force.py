"""Both lower bounds against the cheapest of all schedules, found by trying every one, on tiny instances.

Time comes in thirds of an hour.  A schedule says when each job starts, which jobs share an instance, and what offer
that is; an instance is there while it is needed, and gone in between where that is cheaper.
"""

import itertools
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import settings as setups
from simulator.bound import hourly_bound, lower_bound
from simulator.settings import Setup
from simulator.trace import JobBatch, Spread, Trace, TraceJob

EXAMPLES = int(os.environ.get("SANDBOXES_SOAK_EXAMPLES", "300"))
THIRD = 1200
HOUR = 3
CONFIG = """
[[pools]]
name = "cpu"
provider = "cloud"
cpu_overcommit = 1.0
reserve_memory_mb = 0
reserve_disk_mb = 0
[simulation.providers.cloud]
offers = [
    { type = "two", location = "here", cpus = 2, memory_mb = 100, disk_mb = 9999, price = "1.0" },
    { type = "three", location = "here", cpus = 3, memory_mb = 300, disk_mb = 9999, price = "1.6" },
]
"""


@dataclass(frozen=True)
class Tiny:
    """A job in thirds of an hour."""

    at: int
    length: int
    cpus: int
    memory: int


tiny = st.builds(Tiny, st.integers(0, 5), st.integers(1, 4), st.integers(1, 2), st.sampled_from([10, 100]))
OFFERS = ((2, 100, 1.0), (3, 300, 1.6))


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    path: Path = tmp_path_factory.mktemp("brute") / "c.toml"
    path.write_text(CONFIG)
    return setups.load(path)


def as_jobs(tinies: Sequence[Tiny]) -> tuple[TraceJob, ...]:
    batches = [
        JobBatch(at=each.at * THIRD, seconds=Spread(median=each.length * THIRD), cpus=each.cpus, memory_mb=each.memory)
        for each in tinies
    ]
    return Trace("t", 1, tuple(batch.model_copy(update={"disk_mb": 1}) for batch in batches)).jobs()


def partitions(things: Sequence[int]) -> Iterator[list[list[int]]]:
    """Every way to share things out."""
    if not things:
        yield []
        return
    for rest in partitions(things[1:]):
        yield [[things[0]], *rest]
        for at, part in enumerate(rest):
            yield [*rest[:at], [things[0], *part], *rest[at + 1 :]]


def cheapest(tinies: Sequence[Tiny], longest: int, *, hourly: bool) -> float:
    """The cost of the best schedule in which no job waits longer than so many thirds of an hour."""
    waits = itertools.product(range(longest + 1), repeat=len(tinies))
    return min(
        sum(_instance([tinies[n] for n in part], [tinies[n].at + wait[n] for n in part], hourly) for part in parts)
        for wait in waits
        for parts in partitions(range(len(tinies)))
    )


def _instance(jobs: Sequence[Tiny], starts: Sequence[int], hourly: bool) -> float:
    """What it costs to run these on one instance of the best offer; without end if none takes them."""
    load: dict[int, tuple[int, int]] = {}
    for job, start in zip(jobs, starts, strict=True):
        for moment in range(start, start + job.length):
            cpus, memory = load.get(moment, (0, 0))
            load[moment] = (cpus + job.cpus, memory + job.memory)
    paid = _hours(sorted(load)) if hourly else len(load) / HOUR
    return min(
        (price * paid for cpus, memory, price in OFFERS if all(c <= cpus and m <= memory for c, m in load.values())),
        default=math.inf,
    )


def _hours(busy: Sequence[int]) -> int:
    """The fewest whole hours that cover these moments."""
    hours, paid_until = 0, -1
    for moment in busy:
        if moment >= paid_until:
            hours, paid_until = hours + 1, moment + HOUR
    return hours


@settings(max_examples=60, deadline=None)
@given(tinies=st.lists(tiny, min_size=1, max_size=4), longest=st.integers(0, 2))
def test_no_schedule_is_cheaper_than_the_bounds(setup: Setup, tinies: list[Tiny], longest: int) -> None:
    jobs = as_jobs(tinies)
    bound = lower_bound(jobs, setup, setup.autoscaler.policy())
    by_the_hour = hourly_bound(jobs, longest * THIRD, bound.worth)
    assert bound.euros <= cheapest(tinies, longest, hourly=False) + 1e-9
    least = cheapest(tinies, longest, hourly=True)
    assert max(bound.euros, by_the_hour) <= least + 1e-9


@pytest.mark.soak
@pytest.mark.timeout(1800)
@settings(max_examples=EXAMPLES, deadline=None)
@given(tinies=st.lists(tiny, min_size=5, max_size=5), longest=st.integers(0, 2))
def test_no_schedule_of_five_jobs_is_cheaper_either(setup: Setup, tinies: list[Tiny], longest: int) -> None:
    test_no_schedule_is_cheaper_than_the_bounds.hypothesis.inner_test(setup, tinies, longest)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("tinies", "longest", "by_the_second", "by_the_hour"),
    [
        # A full small node for an hour: nobody can do better, however it is paid.
        ([Tiny(0, 3, 2, 100)], 0, 1.0, 1.0),
        # Twenty minutes of it cost a third by the second, and the whole hour by the hour.
        ([Tiny(0, 1, 2, 100)], 0, 1 / 3, 1.0),
        # Twice twenty minutes, an hour apart: two hours; if the first may wait for the second, they share one.
        ([Tiny(0, 1, 2, 100), Tiny(3, 1, 2, 100)], 0, 2 / 3, 2.0),
        ([Tiny(0, 1, 2, 100), Tiny(3, 1, 2, 100)], 1, 2 / 3, 1.0),
    ],
)
def test_the_bounds_are_reached(
    setup: Setup, tinies: list[Tiny], longest: int, by_the_second: float, by_the_hour: float
) -> None:
    jobs = as_jobs(tinies)
    bound = lower_bound(jobs, setup, setup.autoscaler.policy())
    assert bound.euros == pytest.approx(cheapest(tinies, longest, hourly=False)) == pytest.approx(by_the_second)
    assert cheapest(tinies, longest, hourly=True) == pytest.approx(by_the_hour)
    found = hourly_bound(jobs, longest * THIRD, bound.worth)
    # A job that may wait as long as it runs is not sure to run at any moment.
    surely = any(each.length > longest for each in tinies)
    assert found == (pytest.approx(by_the_hour) if surely else 0.0)
