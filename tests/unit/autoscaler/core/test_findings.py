"""Findings: what listings and nodes prove about rows."""

from dataclasses import replace
from typing import Any

import pytest

from autoscaler.core import naming
from autoscaler.core.actions import Adopt, BootExtended, BootStarted, Learn, Move, Stop, WaitKind
from autoscaler.core.findings import applied
from autoscaler.core.states import IntentState
from autoscaler.core.world import DETAIL_LENGTH, DemandItem, Intent, World, last_words
from gateway.wire.states import NodeState
from providers.base import Phase
from tests.unit.autoscaler.builders import (
    GPU_ONE,
    NOW,
    acts,
    an_intent,
    at,
    boots,
    finds,
    instance_of,
    moves,
    node_of,
    waits,
    world,
)

S = IntentState

# -- creates ----------------------------------------------------------------------------------------------------------


def test_a_listed_instance_settles_a_create_without_an_answer() -> None:
    row = an_intent(S.CALLING, instance_id=None)
    assert finds(world(row, instances=(instance_of(row),))) == (Move("op1", S.BOOTING, "", instance_id="vm-op1"),)


def test_a_create_past_its_deadline_is_given_up_for_good() -> None:
    late = an_intent(S.CALLING, deadline=NOW - 1)
    assert moves(world(late)) == [S.ABANDONED]
    assert moves(world(late, clock_settled=False)) == []
    assert moves(world(an_intent(S.PLANNED, deadline=NOW - 1))) == [S.GONE]


# -- boots ------------------------------------------------------------------------------------------------------------

LATE = an_intent(S.BOOTING, created_at=NOW - 301, deadline=NOW - 1)


def booting(row: Intent, *, ago: float | None, phase: Phase = Phase.BOOTING, **changes: Any) -> World:
    """Return a world in which the provider reported a step so many seconds ago."""
    made = instance_of(row, phase, progress_at=at(-ago) if ago is not None else None, detail="QUEUED: disk is copied")
    return world(row, instances=(made,), **changes)


def test_a_registered_node_that_sent_a_heartbeat_makes_its_row_ready() -> None:
    row = an_intent(S.BOOTING, running_at=NOW - 5)
    node = node_of(row)
    assert finds(world(row, nodes=(node,))) == (
        Move("op1", S.READY, "", node_id="node-op1"),
        Learn("cpu", "small", "", node.total),
    )
    assert moves(world(row, nodes=(node_of(row, state=NodeState.UNREACHABLE),))) == [S.READY]
    assert moves(world(row, nodes=(node_of(row, heartbeat_at=None),))) == []


def test_an_instance_that_runs_gives_its_node_time_to_register() -> None:
    assert finds(world(an_intent(S.BOOTING))) == (BootStarted("op1", NOW + 300, ""),)


def test_a_late_boot_that_made_progress_gets_more_time_and_its_room_counts_again() -> None:
    seen = booting(LATE, ago=100)
    (found,) = finds(seen)
    assert found == BootExtended("op1", NOW + 300, "")
    after = applied(seen, (found,), NOW)
    assert (after.intents[0].extended_at, after.intents[0].deadline) == (NOW, NOW + 300)
    assert acts(after) == ()
    assert acts(replace(after, waiting=world(waiting=4).waiting)) == ()


def test_more_time_is_given_once() -> None:
    seen = booting(replace(LATE, extended_at=NOW - 300), ago=1)
    assert finds(seen) == ()
    assert acts(seen) == (Stop("op1", "", boot_failed=True),)


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
def test_without_recent_progress_no_time_is_given(
    ago: float | None, rules: dict[str, float], changes: dict[str, bool]
) -> None:
    assert finds(booting(LATE, ago=ago, **changes), **rules) == ()


def test_a_boot_in_time_gets_nothing_and_a_running_one_has_its_own_clock() -> None:
    assert finds(booting(replace(LATE, deadline=NOW), ago=1)) == ()
    assert finds(booting(LATE, ago=1, phase=Phase.RUNNING)) == (BootStarted("op1", NOW + 300, ""),)


# -- losses -----------------------------------------------------------------------------------------------------------


def test_absence_takes_two_complete_listings() -> None:
    row = an_intent(S.READY)
    seen = world(row, nodes=(node_of(row),), instances=())
    assert moves(seen) == []
    assert moves(replace(seen, missing_before=frozenset({row.sighting}))) == [S.LOST]
    blind = world(row, nodes=(node_of(row),), instances=None, missing_before=frozenset({row.sighting}))
    assert moves(blind) == []


@pytest.mark.parametrize(("phase", "state"), [(Phase.LOST, S.LOST), (Phase.STOPPING, S.DELETING)])
def test_the_providers_word_about_an_instance_is_taken(phase: Phase, state: IntentState) -> None:
    row = an_intent(S.READY)
    assert moves(world(row, nodes=(node_of(row),), instances=(instance_of(row, phase),))) == [state]


def test_a_machine_lost_after_its_node_registered_keeps_the_node() -> None:
    row = an_intent(S.BOOTING)
    seen = world(row, nodes=(node_of(row),), instances=(instance_of(row, Phase.LOST),))
    assert finds(seen)[:1] == (Move("op1", S.LOST, "", node_id="node-op1"),)


# -- nodes that the gateway has forgotten -----------------------------------------------------------------------------


def forgetful(unknown: int, known: int = 0, lasting: float = 2.0) -> World:
    """Return a world whose gateway does not know so many of its nodes, and has not for so many seconds."""
    rows = [an_intent(S.READY, number) for number in range(unknown + known)]
    nodes = tuple(node_of(row) for row in rows[unknown:])
    marks = {row.operation_id: lasting for row in rows[:unknown]}
    return world(*rows, nodes=nodes, unknown_nodes_before=marks)


def test_a_forgotten_node_takes_two_looks() -> None:
    row = an_intent(S.READY)
    assert moves(world(row)) == []
    assert moves(world(row, unknown_nodes_before={"op1": 2.0})) == [S.LOST]
    assert moves(replace(world(row, unknown_nodes_before={"op1": 2.0}), nodes=None)) == []


def test_single_forgotten_nodes_are_lost() -> None:
    assert moves(forgetful(3)) == [S.LOST] * 3
    assert moves(forgetful(4, known=5)) == [S.LOST] * 4
    assert "fleet" not in waits(forgetful(3))


def test_a_gateway_that_knows_hardly_any_node_is_not_believed_for_a_while() -> None:
    assert moves(forgetful(4, known=4)) == []
    assert waits(forgetful(4, known=4))["fleet"] is WaitKind.GATEWAY_AMNESIA


def test_after_a_long_time_it_is_believed() -> None:
    assert moves(forgetful(4, lasting=1799.0)) == []
    late = forgetful(4, lasting=1800.0)
    assert moves(late) == [S.LOST] * 4
    assert "fleet" not in waits(late)


# -- nodes without a row, and what nodes really have ------------------------------------------------------------------


def adopted(seen: World) -> list[Intent]:
    return [finding.intent for finding in finds(seen) if isinstance(finding, Adopt)]


def test_a_working_node_without_a_row_is_adopted() -> None:
    lost = an_intent(S.READY)
    (row,) = adopted(world(instances=(instance_of(lost),), nodes=(node_of(lost),)))
    assert (row.operation_id, row.state, row.node_id) == ("op1", S.READY, "node-op1")
    closed = world(instances=(instance_of(lost),), nodes=(node_of(lost, state=NodeState.DRAINING),))
    assert [row.state for row in adopted(closed)] == [S.DRAINING]


def test_an_instance_that_went_lately_is_not_adopted() -> None:
    lost = an_intent(S.READY)
    assert not adopted(world(instances=(instance_of(lost),), nodes=(node_of(lost),), gone=frozenset({lost.name})))


def test_a_second_instance_of_a_name_that_a_row_has_is_not_adopted() -> None:
    row = an_intent(S.BOOTING)
    other = instance_of(row, id="vm-other", labels=naming.labels("test", "cpu", "sandbox", "older"))
    seen = world(row, instances=(instance_of(row, Phase.BOOTING), other), nodes=(node_of(row, operation_id="older"),))
    assert not adopted(seen)
    twin = instance_of(row, id="vm-twin", labels=naming.labels("test", "cpu", "sandbox", "another"))
    assert [each.operation_id for each in adopted(world(instances=(other, twin), nodes=(node_of(row),)))] == ["older"]


def test_the_shape_of_a_node_is_learned_once() -> None:
    row = an_intent(S.READY)
    node = node_of(row)
    assert finds(world(row, nodes=(node,))) == (Learn("cpu", "small", "", node.total),)
    nearly = node.total.model_copy(update={"disk_mb": 69_000})
    assert finds(world(row, nodes=(node,), learned={("cpu", "small", ""): nearly})) == ()


def test_a_new_node_without_its_gpu_is_learned_before_a_second_one_is_bought() -> None:
    row = an_intent(S.BOOTING, type="gpu", running_at=NOW - 5)
    seen = world(row, nodes=(node_of(row),), waiting=[DemandItem(GPU_ONE)])
    found = finds(seen)
    assert [type(finding) for finding in found] == [Move, Learn]
    assert boots(acts(applied(seen, found, NOW))) == []


# -- sentences --------------------------------------------------------------------------------------------------------


def test_reasons_carry_what_the_provider_reports() -> None:
    reports = "; the provider reports: QUEUED: disk is copied"
    progress = "it is late, but made progress 100 s ago; it gets 300 s more, once"
    assert [getattr(each, "reason", "") for each in finds(booting(LATE, ago=100))] == [progress + reports]
    lost = finds(booting(LATE, ago=None, phase=Phase.LOST))
    assert [getattr(each, "reason", "") for each in lost] == ["the provider has lost it" + reports]
    ended = instance_of(LATE, Phase.GONE, detail="FAILURE: the disk is full")
    missing = finds(world(LATE, instances=(ended,), missing_before=frozenset({LATE.sighting})))
    assert [getattr(each, "reason", "") for each in missing] == [
        "missing from two consecutive provider listings; the provider reports: FAILURE: the disk is full"
    ]
    (stop,) = acts(booting(replace(LATE, extended_at=NOW - 300), ago=1))
    assert getattr(stop, "reason", "") == "it did not run within 300 s, more time included" + reports
    ran = replace(LATE, extended_at=NOW - 700, running_at=NOW - 601)
    (stop,) = acts(booting(ran, ago=None, phase=Phase.RUNNING))
    assert getattr(stop, "reason", "") == "it ran, but its node did not register within 600 s" + reports


def test_a_long_report_is_cut_visibly_and_stays_on_one_line() -> None:
    made = instance_of(LATE, detail="a\n b" + "x" * DETAIL_LENGTH)
    assert last_words(made).startswith("; the provider reports: a bxxx")
    assert last_words(made).endswith("x …")
    assert last_words(replace(made, detail="")) == last_words(None) == ""
