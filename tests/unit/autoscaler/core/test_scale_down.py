"""Scale down: which idle node is closed, and what speaks against it."""

from dataclasses import replace
from typing import Any

import pytest

from autoscaler.core import backoff
from autoscaler.core.actions import Drain, WaitKind
from autoscaler.core.states import IntentState
from autoscaler.core.world import World
from providers.base import Billing
from tests.unit.autoscaler.builders import (
    CAPS,
    NOW,
    a_pool,
    acts,
    an_intent,
    at,
    drains,
    held_back,
    instance_of,
    node_of,
    waits,
    world,
)

S = IntentState
W = WaitKind
ROW = an_intent(S.READY)


def idle(seconds: float, *, pressed_at: float | None = None, **changes: Any) -> World:
    """Return a world of one node that has been idle for so long."""
    return world(ROW, nodes=(node_of(ROW, idle_since=NOW - seconds, pressed_at=pressed_at),), **changes)


def test_an_idle_node_beyond_the_minimum_is_closed() -> None:
    assert acts(idle(100)) == (Drain("op1", "node-op1", ""),)
    assert acts(idle(1000), a_pool(min=1)) == ()


def test_a_node_that_is_idle_for_a_moment_is_kept() -> None:
    assert acts(idle(99)) == ()
    assert waits(idle(99)) == {ROW.name: W.IDLE_YOUNG}


def test_an_idle_node_that_waiting_work_fits_is_kept() -> None:
    assert acts(idle(1000, waiting=1)) == ()
    assert waits(idle(1000, waiting=1)) == {ROW.name: W.IDLE_WANTED}


def test_after_a_jump_of_the_clock_no_node_is_closed() -> None:
    assert acts(idle(4000, clock_settled=False)) == ()
    assert waits(idle(4000, clock_settled=False)) == {"pool cpu": W.CLOCK_JUMP}


def test_one_node_a_tick_is_closed_the_longest_idle_first() -> None:
    rows = [an_intent(S.READY, number) for number in (1, 2)]
    seen = world(*rows, nodes=(node_of(rows[0], idle_since=NOW - 200), node_of(rows[1], idle_since=NOW - 300)))
    assert drains(seen) == ["op2"]
    assert waits(seen) == {rows[0].name: W.IDLE_QUEUED}


def test_a_tenth_of_a_pool_may_be_on_its_way_out() -> None:
    rows = [an_intent(S.READY, number) for number in range(30)]
    nodes = tuple(node_of(row, idle_since=NOW - 900) for row in rows)
    assert len(drains(world(*rows, nodes=nodes), a_pool(max=99), stops_per_tick=50)) == 3
    going = an_intent(S.DELETING, 99)
    assert len(drains(world(*rows, going, nodes=nodes), a_pool(max=99), stops_per_tick=50)) == 2


def test_nothing_is_closed_soon_after_growth() -> None:
    assert drains(idle(900), a_pool(hold_seconds=60.0)) == []
    assert waits(idle(900), a_pool(hold_seconds=60.0)) == {"pool cpu": W.HOLD}
    assert drains(idle(900), a_pool(hold_seconds=50.0)) == ["op1"]


def test_nothing_is_closed_soon_after_pressure() -> None:
    pressed = idle(900, pressed_at=NOW - 10)
    assert drains(pressed) == []
    assert waits(pressed) == {"pool cpu": W.HOLD}
    assert drains(pressed, a_pool(pressure_hold_seconds=10.0)) == ["op1"]


@pytest.mark.parametrize(("left", "closes"), [(2000, False), (301, False), (300, True), (31, True), (10, False)])
def test_where_started_hours_are_paid_a_node_is_closed_shortly_before_its_next_one(left: float, closes: bool) -> None:
    made = instance_of(ROW, created_at=at(left - 7200))
    seen = idle(900, instances=(made,), caps=replace(CAPS, billing=Billing.HOURLY_ROUND_UP))
    assert bool(drains(seen)) is closes
    assert waits(seen) == ({} if closes else {ROW.name: W.IDLE_PAID})


# -- deletes that are slow, or fail -----------------------------------------------------------------------------------


def test_a_delete_that_takes_long_holds_up_no_other() -> None:
    stuck, other = an_intent(S.DELETING, 1, changed_at=NOW - 300, next_try_at=NOW + 9), an_intent(S.READY, 2)
    seen = world(stuck, other, nodes=(node_of(other, idle_since=NOW - 900),))
    assert drains(seen) == []
    assert drains(replace(seen, intents=(replace(stuck, changed_at=NOW - 301), other))) == ["op2"]


def test_after_a_failed_delete_a_pool_closes_nothing_for_three_minutes() -> None:
    held = backoff.failed_delete("cpu", now=NOW - 179, reason="busy")
    seen = idle(900, backoffs={held.key: held})
    assert drains(seen) == []
    assert waits(seen) == {"pool cpu": W.BACKOFF}
    assert drains(idle(900, backoffs={held.key: replace(held, until=NOW)})) == ["op1"]


def test_a_failed_delete_holds_back_no_other_pool() -> None:
    assert drains(held_back(idle(900), backoff.closing_key("other"))) == ["op1"]
