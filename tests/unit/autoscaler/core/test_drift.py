"""Drift and paid time that ends: a stand-in first, one at a time, and nothing is killed."""

from dataclasses import replace
from typing import Any

from autoscaler.core import backoff
from autoscaler.core.actions import Action, Boot, Drain, WaitKind
from autoscaler.core.states import IntentState
from autoscaler.core.world import DRIFT, Intent
from gateway.wire.states import NodeState
from providers.base import Instance
from tests.unit.autoscaler.builders import (
    CHEAP_FAR,
    NOW,
    SMALL,
    a_pool,
    acts,
    an_intent,
    at,
    boots,
    busy,
    drains,
    held_back,
    instance_of,
    node_of,
    waits,
    world,
)

S = IntentState
OLD = an_intent(S.READY, 1, spec="old")
ENDING = replace(SMALL, gone_after=at(86_400))


def replaced(actions: tuple[Action, ...]) -> list[str]:
    """Return the operations for whose instances a stand-in is booted."""
    return [
        action.reason.split(" ")[0].removeprefix("test-cpu-")
        for action in actions
        if isinstance(action, Boot) and action.item is None
    ]


# -- out of date ------------------------------------------------------------------------------------------------------


def test_an_outdated_node_gets_a_stand_in_before_it_is_closed() -> None:
    pool = a_pool(min=1, spec="new")
    assert replaced(acts(world(OLD, nodes=(busy(OLD),)), pool)) == ["op1"]
    fresh = an_intent(S.READY, 2, spec="new")
    (drain,) = acts(world(OLD, fresh, nodes=(busy(OLD), node_of(fresh))), pool)
    assert isinstance(drain, Drain)
    assert (drain.operation_id, drain.cause) == ("op1", DRIFT)


def test_a_stand_in_that_has_work_of_its_own_lets_nothing_go() -> None:
    fresh = an_intent(S.READY, 2, spec="new")
    assert acts(world(OLD, fresh, nodes=(busy(OLD), busy(fresh))), a_pool(min=1, max=2, spec="new")) == ()


def test_one_replacement_at_a_time() -> None:
    olds = [an_intent(S.READY, number, spec="old") for number in (1, 2)]
    coming = an_intent(S.BOOTING, 3, spec="new")
    seen, pool = world(*olds, coming, nodes=tuple(busy(old) for old in olds)), a_pool(spec="new", max=9)
    assert acts(seen, pool) == ()
    assert waits(seen, pool) == {"pool cpu": WaitKind.REPLACING}


def test_at_the_maximum_of_pool_or_fleet_an_idle_outdated_node_goes_first() -> None:
    idle, full = world(OLD, nodes=(node_of(OLD),)), world(OLD, nodes=(busy(OLD),))
    assert drains(idle, a_pool(min=1, max=1, spec="new")) == ["op1"]
    assert drains(full, a_pool(min=1, max=1, spec="new")) == []
    assert drains(idle, a_pool(min=1, spec="new"), max=1) == ["op1"]


def test_a_node_of_an_offer_that_ends_is_outdated() -> None:
    old = an_intent(S.READY, 1)
    seen = world(old, nodes=(busy(old),), offers=(ENDING, CHEAP_FAR))
    assert boots(acts(seen, a_pool(min=1))) == ["small@there"]


def test_where_replacement_is_off_nodes_are_left_as_they_are() -> None:
    seen = world(OLD, nodes=(busy(OLD),), offers=(ENDING, CHEAP_FAR))
    assert replaced(acts(seen, a_pool(spec="new"))) == ["op1"]
    assert acts(seen, a_pool(spec="new", replaces=False)) == ()


def test_an_older_node_bundle_is_drift_where_nodes_install_it() -> None:
    old = an_intent(S.READY, 1, spec="s-1111")
    seen = world(old, nodes=(busy(old),), bundle="2222")
    (boot,) = acts(seen, a_pool(spec="s", installs=True))
    assert isinstance(boot, Boot)
    assert boot.spec == "s-2222"
    assert acts(seen, a_pool(spec="s")) == ()
    assert acts(replace(seen, bundle="1111"), a_pool(spec="s", installs=True)) == ()


def test_an_unknown_bundle_makes_nothing_outdated() -> None:
    rows = an_intent(S.READY, 1, spec="s-1111"), an_intent(S.READY, 2, spec="s")
    seen = world(*rows, nodes=tuple(busy(row) for row in rows))
    assert acts(seen, a_pool(spec="s", installs=True)) == ()
    assert acts(world(rows[1], nodes=(busy(rows[1]),), bundle="2222"), a_pool(spec="s", installs=True)) == ()


def test_an_outdated_node_that_is_unreachable_holds_up_no_other() -> None:
    silent, old = replace(OLD, created_at=NOW - 900), an_intent(S.READY, 2, spec="old")
    nodes = (node_of(silent, state=NodeState.UNREACHABLE), busy(old))
    assert replaced(acts(world(silent, old, nodes=nodes), a_pool(min=2, spec="new"))) == ["op2"]


def test_a_replaced_node_that_does_not_become_empty_holds_up_no_other_for_ever() -> None:
    stuck = an_intent(S.DRAINING, 1, changed_at=NOW - 1800, cause=DRIFT, spec="old", drain_mark=NOW)
    fresh, old = an_intent(S.READY, 2, spec="new"), an_intent(S.READY, 3, spec="old")
    nodes = (node_of(stuck, state=NodeState.DRAINING, sandboxes=1), node_of(fresh), busy(old))
    seen, pool = world(stuck, fresh, old, nodes=nodes), a_pool(max=9, spec="new")
    assert drains(seen, pool) == []
    assert waits(seen, pool)["pool cpu"] is WaitKind.REPLACING
    assert drains(replace(seen, intents=(replace(stuck, changed_at=NOW - 1801), fresh, old)), pool) == ["op3"]


def test_after_a_failed_delete_no_outdated_node_is_closed() -> None:
    fresh = an_intent(S.READY, 2, spec="new")
    seen, pool = world(OLD, fresh, nodes=(busy(OLD), node_of(fresh))), a_pool(min=2, spec="new")
    assert drains(seen, pool) == ["op1"]
    held = held_back(seen, backoff.closing_key("cpu"))
    assert drains(held, pool) == []
    assert waits(held, pool) == {"pool cpu": WaitKind.BACKOFF}


# -- paid time --------------------------------------------------------------------------------------------------------
# A boot and a drain of this pool take at most 300 + 300 + 1800 s.


def paid(row: Intent, left: float, *, whole: float = 30 * 86_400.0) -> Instance:
    """Return the instance of a row that is paid for so many seconds more, of so many in all."""
    return instance_of(row, expires_at=at(left), created_at=at(left - whole))


def until(left: float, **changes: Any) -> tuple[Action, ...]:
    """Return what is done about one busy node whose paid time ends in so many seconds."""
    row = an_intent(S.READY)
    whole = changes.pop("whole", 30 * 86_400.0)
    return acts(world(row, nodes=(busy(row),), instances=(paid(row, left, whole=whole),)), a_pool(**changes))


def test_a_node_gets_a_stand_in_before_its_paid_time_ends() -> None:
    assert until(2401) == ()
    assert replaced(until(2400)) == ["op1"]
    assert replaced(until(2400, replaces=False)) == ["op1"]


def test_what_ends_before_a_drain_could_takes_nothing_new_even_at_the_maximum() -> None:
    (drain,) = until(1800, max=1)
    assert isinstance(drain, Drain)
    assert drain.cause == DRIFT


def test_what_was_closed_for_its_paid_time_is_not_opened_again() -> None:
    closed = an_intent(S.DRAINING, cause=DRIFT, drain_mark=NOW - 10)
    node = node_of(closed, state=NodeState.DRAINING, sandboxes=3)
    assert acts(world(closed, nodes=(node,), waiting=1, instances=(paid(closed, 900),)), a_pool(max=1)) == ()


def test_several_that_end_together_are_all_closed() -> None:
    rows = [an_intent(S.READY, number) for number in (1, 2)]
    ends = tuple(paid(row, 900 - n, whole=86_400) for n, row in enumerate(rows))
    assert drains(world(*rows, nodes=tuple(busy(row) for row in rows), instances=ends), a_pool(max=9)) == ["op1", "op2"]


def test_of_several_that_end_the_first_to_end_is_replaced_first() -> None:
    rows = [an_intent(S.READY, number) for number in (1, 2)]
    ends = tuple(paid(row, 2300 - n, whole=86_400) for n, row in enumerate(rows))
    seen = world(*rows, nodes=tuple(busy(row) for row in rows), instances=ends)
    assert replaced(acts(seen, a_pool(max=9))) == ["op2"]


def test_what_is_paid_for_a_short_time_is_not_outdated_as_soon_as_it_comes() -> None:
    assert until(1300, whole=2400) == ()
    assert len(until(1200, whole=2400)) == 1
