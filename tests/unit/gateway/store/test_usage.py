"""Booking what meters report: monotonic, and the same in the end however often and in whatever order it comes."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import permutations
from pathlib import Path

import pytest
from sqlmodel import Session

from gateway.store import usage
from gateway.store.db import Database
from gateway.wire.usage import UsageAmounts, UsageReport

NOW = datetime(2026, 1, 31, 12, 30, tzinfo=UTC)
OLDEST = NOW - timedelta(days=400)


@pytest.fixture(params=["sqlite", "postgresql"])
def session(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Session]:
    on_sqlite = request.param == "sqlite"
    db = Database.open(f"sqlite:///{tmp_path}/db" if on_sqlite else request.getfixturevalue("postgres_url"))
    with Session(db._engine) as session:
        yield session
    db.close()


@pytest.mark.parametrize(
    ("begin", "end", "shares"),
    [
        (-20, -10, {12: 1.0}),
        (-30, 30, {12: 1.0}),
        (20, 40, {12: 0.5, 13: 0.5}),
        (15, 165, {12: 0.1, 13: 0.4, 14: 0.4, 15: 0.1}),
        (10, 10, {12: 1.0}),
        (10, 0, {12: 1.0}),
    ],
)
def test_time_is_divided_among_hours(begin: float, end: float, shares: dict[int, float]) -> None:
    found = usage.shares_of_hours(NOW + timedelta(minutes=begin), NOW + timedelta(minutes=end))
    assert {hour.hour: share for hour, share in found} == pytest.approx(shares)


def report(cpu: float, span: float, *, meter: str = "a", sandbox_id: str = "acme..one", **more: float) -> UsageReport:
    return UsageReport(
        meter_id=meter * 32,
        sandbox_id=sandbox_id,
        generation=1,
        total=UsageAmounts(cpu_seconds=cpu),
        span_seconds=span,
        age_seconds=more.get("age", 0.0),
    )


def book(session: Session, *reports: UsageReport, minutes: float = 0) -> None:
    usage.book(session, reports, NOW + timedelta(minutes=minutes), OLDEST)


def hours(session: Session) -> dict[int, float]:
    """Return the booked processor time by hour of the day."""
    found = usage.page(session, "hour", OLDEST, NOW + timedelta(days=1), None, (), 100)
    return {item.begin.hour: item.amounts.cpu_seconds for _, item in found}


def test_what_came_since_the_last_reading_is_divided_among_its_hours(session: Session) -> None:
    book(session, report(40.0, 3600))
    assert hours(session) == pytest.approx({11: 20.0, 12: 20.0})
    book(session, report(100.0, 7200), minutes=60)
    assert hours(session) == pytest.approx({11: 20.0, 12: 50.0, 13: 30.0})


def test_reports_may_be_repeated_and_come_in_any_order(session: Session) -> None:
    readings = [(10.0, 60.0, 4.0), (20.0, 120.0, 3.0), (30.0, 180.0, 2.0)]
    for number, order in enumerate(permutations(readings)):
        for cpu, span, age in (*order, *order):
            book(session, report(cpu, span, age=age * 60, meter="abcdef"[number], sandbox_id=f"s{number}"))
    sums = usage.page(session, "sandbox", OLDEST, NOW + timedelta(days=1), None, (), 100)
    assert [item.amounts.cpu_seconds for _, item in sums] == pytest.approx([30.0] * 6)


def test_sums_are_paged_and_one_tenants(session: Session) -> None:
    for number, name in enumerate(("acme..one", "acme..two", "plain", "zeta..one")):
        book(session, report(1.0, 60.0, meter="abcd"[number], sandbox_id=name))
    until = NOW + timedelta(days=1)
    first = list(usage.page(session, "sandbox", OLDEST, until, None, (), 3))
    assert [item.sandbox_id for _, item in first] == ["acme..one", "acme..two", "plain"]
    rest = list(usage.page(session, "sandbox", OLDEST, until, None, first[-1][0], 3))
    assert [item.sandbox_id for _, item in rest] == ["zeta..one"]
    tenants = [item for _, item in usage.page(session, "tenant", OLDEST, until, None, (), 9)]
    assert {item.tenant: item.amounts.cpu_seconds for item in tenants} == {"acme": 2.0, "default": 1.0, "zeta": 1.0}
    assert [item.tenant for _, item in usage.page(session, "tenant", OLDEST, until, "acme", (), 9)] == ["acme"]
    last = list(usage.page(session, "hour", OLDEST, until, "acme", (), 9))[-1]
    assert list(usage.page(session, "hour", OLDEST, until, "acme", last[0], 9)) == []


def test_a_meter_outlives_its_old_hours(session: Session) -> None:
    book(session, report(40.0, 60))
    book(session, report(50.0, 7260), minutes=120)
    usage.purge(session, NOW + timedelta(minutes=60))
    book(session, report(60.0, 7320), minutes=121)
    assert sum(hours(session).values()) == pytest.approx(60.0 - 40.0 - 10.0 * 0.75)
