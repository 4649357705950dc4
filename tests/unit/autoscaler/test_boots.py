"""Boots that are late or failed: more time once, the provider reports, and creates that may still come through."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from autoscaler.core.actions import BootExtended, BootStarted, Finding, Stop
from autoscaler.core.findings import applied, settle
from autoscaler.core.plan import plan
from autoscaler.core.pools import FleetPolicy
from autoscaler.core.states import IntentState
from autoscaler.core.world import DETAIL_LENGTH, Intent, World, last_words
from gateway.wire.states import NodeState
from providers.base import Phase
from tests.unit.autoscaler.test_policy import NOW, a_pool, acts, an_intent, instance_of, node_of, reasons, world

S = IntentState
LATE = an_intent(S.BOOTING, created_at=NOW - 301, deadline=NOW - 1)


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(NOW + seconds, UTC)


def booting(row: Intent, *, ago: float | None, phase: Phase = Phase.BOOTING, **changes: Any) -> World:
    made = instance_of(row, phase, progress_at=at(-ago) if ago is not None else None, detail="QUEUED: disk is copied")
    return world(row, instances=(made,), **changes)


def finds(seen: World, **rules: Any) -> tuple[Finding, ...]:
    return settle(seen, FleetPolicy("test", (a_pool(**rules),)), NOW)


# -- more time --------------------------------------------------------------------------------------------------------


def test_a_late_boot_that_came_nearer_gets_more_time_and_is_not_stopped() -> None:
    seen = booting(LATE, ago=100)
    (found,) = finds(seen)
    assert found == BootExtended(
        "op1",
        NOW + 300,
        "it is late, but made progress 100 s ago; it gets 300 s more, once"
        "; the provider reports: QUEUED: disk is copied",
    )
    after = applied(seen, (found,), NOW)
    assert (after.intents[0].extended_at, after.intents[0].deadline) == (NOW, NOW + 300)
    assert acts(after) == ()
    assert acts(replace(after, waiting=world(waiting=4).waiting)) == ()  # its room counts again


def test_more_time_is_given_once() -> None:
    again = replace(LATE, extended_at=NOW - 300)
    seen = booting(again, ago=1)
    assert finds(seen) == ()
    (stop,) = acts(seen)
    assert isinstance(stop, Stop)
    assert stop.reason.startswith("it did not run within 300 s, more time included; the provider reports: QUEUED")


@pytest.mark.parametrize(
    ("ago", "rules", "changes"),
    [
        (None, {}, {}),
        (301, {}, {}),
        (50, {"extend_seconds": 40.0}, {}),
        (0, {"extend_seconds": 0.0}, {}),
        (1, {}, {"clock_settled": False}),
    ],
)
def test_without_a_step_lately_no_time_is_given(
    ago: float | None, rules: dict[str, float], changes: dict[str, bool]
) -> None:
    assert finds(booting(LATE, ago=ago, **changes), **rules) == ()


def test_a_boot_in_time_gets_nothing_and_a_running_one_has_its_own_clock() -> None:
    assert finds(booting(replace(LATE, deadline=NOW), ago=1)) == ()
    (found,) = finds(booting(LATE, ago=1, phase=Phase.RUNNING))
    assert isinstance(found, BootStarted)


def test_time_that_was_given_before_it_ran_is_not_told_of_its_registration() -> None:
    row = replace(LATE, extended_at=NOW - 700, running_at=NOW - 601, deadline=NOW - 1)
    (stop,) = acts(booting(row, ago=None, phase=Phase.RUNNING))
    assert isinstance(stop, Stop)
    assert stop.reason.startswith("it ran, but its node did not register within 600 s; the provider reports")


# -- evidence ---------------------------------------------------------------------------------------------------------


def test_the_reason_of_a_failed_boot_has_the_providers_last_word() -> None:
    (stop,) = acts(booting(LATE, ago=None))
    assert stop == Stop(
        "op1", "it did not run within 300 s; the provider reports: QUEUED: disk is copied", boot_failed=True
    )
    (lost,) = finds(booting(LATE, ago=None, phase=Phase.LOST))
    assert getattr(lost, "reason", "") == ("the provider has lost it; the provider reports: QUEUED: disk is copied")


def test_the_last_word_of_what_has_ended_is_told_where_it_stays_listed() -> None:
    ended = instance_of(LATE, Phase.GONE, detail="FAILURE: the disk is full")
    (lost,) = finds(world(LATE, instances=(ended,), missing_before=frozenset({LATE.sighting})))
    assert getattr(lost, "reason", "") == (
        "missing from two consecutive provider listings; the provider reports: FAILURE: the disk is full"
    )


def test_long_words_are_cut_visibly_and_stay_on_one_line() -> None:
    made = instance_of(LATE, detail="a\n b" + "x" * DETAIL_LENGTH)
    assert last_words(made).startswith("; the provider reports: a bxxx")
    assert last_words(made).endswith("x …")
    assert last_words(replace(made, detail="")) == last_words(None) == ""


# -- what may still come ----------------------------------------------------------------------------------------------


def test_a_given_up_create_counts_until_it_can_come_through_no_more() -> None:
    row = an_intent(S.ABANDONED, detail="given up", next_try_at=NOW + 60)
    absent = world(row, instances=())
    assert acts(absent) == ()
    assert "its last create may still come through" in reasons(absent)[row.name]
    assert acts(world(replace(row, next_try_at=NOW), instances=())) == (Stop("op1", "given up", boot_failed=True),)
    there = world(row, instances=(instance_of(row, Phase.BOOTING),))
    assert acts(there) == (Stop("op1", "given up", boot_failed=True),)


@pytest.mark.parametrize("state", [NodeState.UNREACHABLE, NodeState.LOST])
def test_a_node_that_was_heard_of_is_never_stopped_as_a_failed_boot(state: NodeState) -> None:
    seen = world(LATE, nodes=(node_of(LATE, state=state, sandboxes=3, idle_since=None),))
    findings = finds(seen)
    assert plan(applied(seen, findings, NOW), FleetPolicy("test", (a_pool(),)), NOW).actions == ()


def test_a_node_that_registered_and_was_never_heard_of_is_a_failed_boot() -> None:
    ran = replace(LATE, running_at=NOW - 301)
    seen = world(ran, nodes=(node_of(ran, heartbeat_at=None),))
    (stop,) = plan(applied(seen, finds(seen), NOW), FleetPolicy("test", (a_pool(),)), NOW).actions
    assert isinstance(stop, Stop)
    assert stop.boot_failed
