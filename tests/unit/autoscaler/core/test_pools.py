"""What the operator asks for: warm floors with hours, and pools that could never work."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from autoscaler.core.pools import PoolPolicy, WarmFloor, misfits
from tests.unit.autoscaler.builders import CAPS, GPU_ONE, ONE, a_pool

NO_GPU = replace(CAPS, has_gpu=False)


@pytest.mark.parametrize(
    ("hour", "day", "holds"), [(7, 0, False), (8, 0, True), (17, 4, True), (18, 0, False), (9, 5, False)]
)
def test_a_warm_floor_may_have_hours(hour: int, day: int, holds: bool) -> None:
    floor = WarmFloor(ONE, 1, days=frozenset(range(5)), start=8 * 60, end=18 * 60)
    monday = datetime(2030, 5, 6, hour, tzinfo=UTC).timestamp()
    assert floor.holds(monday + day * 86_400) is holds


def test_a_window_over_midnight_belongs_to_the_day_on_which_it_began() -> None:
    floor = WarmFloor(ONE, 1, days=frozenset({0}), start=22 * 60, end=6 * 60)
    monday = datetime(2030, 5, 6, tzinfo=UTC).timestamp()
    assert [floor.holds(monday + hour * 3600) for hour in (5, 21, 23, 29, 31)] == [False, False, True, True, False]


@pytest.mark.parametrize(
    "pool",
    [a_pool(name="gpu", gpus=2), a_pool(name="gpu", warm=(WarmFloor(ONE, 1), WarmFloor(GPU_ONE, 1)))],
    ids=["gpus", "gpus in the warm room"],
)
def test_gpus_at_a_provider_without_any_are_a_misfit(pool: PoolPolicy) -> None:
    (sentence,) = misfits([a_pool(), pool], {"cloud": NO_GPU})
    assert sentence.startswith("pool gpu: ")
    assert misfits([a_pool(), pool], {"cloud": CAPS}) == []


def test_gpus_without_the_runtime_that_hands_them_on_are_a_misfit() -> None:
    (sentence,) = misfits([a_pool(gpus=1, runtimes=frozenset({"runsc"}))], {"cloud": CAPS})
    assert "add docker" in sentence


def test_an_unknown_provider_is_not_judged() -> None:
    assert misfits([a_pool(gpus=1)], {}) == []
