"""Quotas decided over plain values."""

from datetime import UTC, datetime, timedelta

import pytest

from gateway.core.policy import Quota
from gateway.core.quota import claim_excess, paced, units_excess
from gateway.wire.resources import Shape

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ONE = Shape(cpus=0.1, memory_mb=100, disk_mb=100, slots=1)


def test_a_quota_without_limits_bounds_nothing() -> None:
    assert claim_excess(Quota(), ONE.times(10_000), ONE) is None
    assert units_excess(Quota(), 10_000, 100) is None


def test_a_limit_may_be_reached_and_not_passed() -> None:
    used = sum((ONE for _ in range(9)), start=Shape())  # 0.8999999999999999 cores
    assert claim_excess(Quota(cpus=1.0), used, ONE) is None
    excess = claim_excess(Quota(cpus=1.0), used + ONE, ONE)
    assert excess is not None
    assert (excess.key, excess.limit, excess.asked) == ("cpus", 1.0, 0.1)


def test_a_request_above_the_limit_itself_is_told_from_one_that_comes_too_late() -> None:
    late = claim_excess(Quota(cpus=1.0), Shape(cpus=1), Shape(cpus=1))
    alone = claim_excess(Quota(cpus=1.0), Shape(cpus=0.5), Shape(cpus=2))
    units = units_excess(Quota(prepared_units=1), 0, 2)
    assert [found.alone for found in (late, alone, units) if found is not None] == [False, True, True]


def test_an_amount_agrees_with_its_unit() -> None:
    excess = claim_excess(Quota(sandboxes=1), Shape(slots=1), Shape(slots=1))
    assert excess is not None
    assert (excess.amount(1), excess.amount(2), excess.amount(1e7)) == (
        "1 sandbox",
        "2 sandboxes",
        "10000000 sandboxes",
    )


def test_what_asks_for_nothing_of_a_kind_is_not_refused_for_it() -> None:
    assert claim_excess(Quota(gpus=0, disk_mb=0), Shape(gpus=4, disk_mb=4), Shape(cpus=1)) is None


@pytest.mark.parametrize(("per_second", "at_once"), [(0.1, 1), (1, 1), (5, 5), (2.5, 2)])
def test_creates_keep_the_pace_in_the_long_run(per_second: float, at_once: int) -> None:
    due, begun, now = None, 0, NOW
    for _ in range(1000):
        pace = paced(per_second, due, now)
        if pace.due is not None:
            due, begun = pace.due, begun + 1
        elif begun < at_once:
            raise AssertionError("one second's worth may come at once")
        else:
            now += timedelta(seconds=pace.wait_seconds)
    assert begun <= (now - NOW).total_seconds() * per_second + max(1.0, per_second) + 1e-3
    assert begun >= 490


def test_a_pause_saves_up_no_more_than_one_second() -> None:
    due, begun = NOW - timedelta(hours=1), 0
    while (pace := paced(3, due, NOW)).due is not None:
        due, begun = pace.due, begun + 1
    assert begun == 3
