"""Nodes that are out of date or whose paid time ends, and pools that cannot get rid of what they closed."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from autoscaler.core import backoff
from autoscaler.core.actions import Boot, Drain
from autoscaler.core.states import IntentState
from autoscaler.core.world import BackOff, BackOffKey, Intent, World
from gateway.wire.states import NodeState
from tests.unit.autoscaler.test_policy import (
    CHEAP_FAR,
    NOW,
    SMALL,
    a_pool,
    acts,
    an_intent,
    boots,
    busy,
    drains,
    instance_of,
    node_of,
    reasons,
    world,
)

S = IntentState


# -- replacement ------------------------------------------------------------------------------------------------------


def test_a_dated_node_gets_a_stand_in_before_it_is_closed() -> None:
    old = an_intent(S.READY, 1, spec="old")
    pool = a_pool(min=1, spec="new")
    (boot,) = acts(world(old, nodes=(busy(old),)), pool)
    assert "is to be replaced: it was made from an older spec" in boot.reason  # type: ignore[attr-defined]
    fresh = an_intent(S.READY, 2, spec="new")
    (drain,) = acts(world(old, fresh, nodes=(busy(old), node_of(fresh))), pool)
    assert isinstance(drain, Drain)
    assert (drain.operation_id, drain.cause) == ("op1", "drift")
    assert acts(world(old, fresh, nodes=(busy(old), busy(fresh))), a_pool(min=1, max=2, spec="new")) == ()


def test_one_replacement_at_a_time() -> None:
    olds = [an_intent(S.READY, number, spec="old") for number in (1, 2)]
    coming = an_intent(S.BOOTING, 3, spec="new")
    seen = world(*olds, coming, nodes=tuple(busy(old) for old in olds))
    assert acts(seen, a_pool(spec="new", max=9)) == ()
    assert "what is on its way comes first" in reasons(seen, a_pool(spec="new", max=9))["pool cpu"]


def test_at_the_maximum_an_idle_dated_node_goes_first() -> None:
    old = an_intent(S.READY, 1, spec="old")
    assert drains(world(old, nodes=(node_of(old),)), a_pool(min=1, max=1, spec="new")) == ["op1"]
    assert drains(world(old, nodes=(busy(old),)), a_pool(min=1, max=1, spec="new")) == []


def test_a_node_of_an_offer_that_ends_is_dated() -> None:
    old = an_intent(S.READY, 1)
    ending = replace(SMALL, gone_after=datetime.fromtimestamp(NOW + 86_400, UTC))
    (boot,) = acts(world(old, nodes=(busy(old),), offers=(ending, CHEAP_FAR)), a_pool(min=1))
    assert str(boot.offer) == "small@there"  # type: ignore[attr-defined]


def test_nodes_are_left_as_they_are_where_replacement_is_off() -> None:
    old = an_intent(S.READY, 1, spec="old")
    ending = replace(SMALL, gone_after=datetime.fromtimestamp(NOW + 86_400, UTC))
    seen = world(old, nodes=(busy(old),), offers=(ending, CHEAP_FAR))
    assert len(boots(acts(seen, a_pool(spec="new")))) == 1
    assert acts(seen, a_pool(spec="new", replaces=False)) == ()


def test_an_older_node_bundle_is_drift_where_nodes_install_it() -> None:
    old = an_intent(S.READY, 1, spec="s-1111")
    seen = world(old, nodes=(busy(old),), bundle="2222")
    (boot,) = acts(seen, a_pool(spec="s", installs=True))
    assert isinstance(boot, Boot)
    assert boot.reason.endswith("it was made with an older node bundle")
    assert boot.spec == "s-2222"
    assert acts(seen, a_pool(spec="s")) == ()
    assert acts(replace(seen, bundle="1111"), a_pool(spec="s", installs=True)) == ()


def test_a_bundle_that_is_not_known_makes_nothing_old() -> None:
    rows = an_intent(S.READY, 1, spec="s-1111"), an_intent(S.READY, 2, spec="s")
    seen = world(*rows, nodes=tuple(busy(row) for row in rows))
    assert acts(seen, a_pool(spec="s", installs=True)) == ()
    assert acts(world(rows[1], nodes=(busy(rows[1]),), bundle="2222"), a_pool(spec="s", installs=True)) == ()


def test_at_the_maximum_of_the_fleet_an_idle_dated_node_goes_first_too() -> None:
    old = an_intent(S.READY, 1, spec="old")
    seen = world(old, nodes=(node_of(old),))
    assert drains(seen, a_pool(min=1, spec="new"), max=1) == ["op1"]


def test_a_dated_node_that_does_not_answer_holds_up_no_other() -> None:
    silent, old = an_intent(S.READY, 1, spec="old", created_at=NOW - 900), an_intent(S.READY, 2, spec="old")
    nodes = (node_of(silent, state=NodeState.UNREACHABLE), busy(old))
    (boot,) = acts(world(silent, old, nodes=nodes), a_pool(min=2, spec="new"))
    assert isinstance(boot, Boot)
    assert "test-cpu-op2 is to be replaced" in boot.reason


# -- paid time --------------------------------------------------------------------------------------------------------
# A boot and a drain of this pool take at most 300 + 300 + 1800 s.


def paid(row: Intent, left: float, *, whole: float = 30 * 86_400.0) -> dict[str, Any]:
    expires = datetime.fromtimestamp(NOW + left, UTC)
    created = datetime.fromtimestamp(NOW + left - whole, UTC)
    return {"instances": (instance_of(row, expires_at=expires, created_at=created),)}


def test_what_is_paid_for_long_enough_stays() -> None:
    row = an_intent(S.READY)
    assert acts(world(row, nodes=(busy(row),), **paid(row, 2401))) == ()


def test_a_node_gets_a_stand_in_before_its_paid_time_ends() -> None:
    row = an_intent(S.READY)
    (boot,) = acts(world(row, nodes=(busy(row),), **paid(row, 2400)), a_pool(replaces=False))
    assert isinstance(boot, Boot)
    assert "test-cpu-op1 is to be replaced: its paid time ends at 2030-03-17 18:26:40" in boot.reason


def test_what_ends_before_a_drain_could_takes_nothing_new_even_at_the_maximum() -> None:
    row = an_intent(S.READY)
    seen = world(row, nodes=(busy(row),), **paid(row, 1800))
    (drain,) = acts(seen, a_pool(max=1))
    assert isinstance(drain, Drain)
    assert (drain.cause, drain.reason.rpartition("; ")[2]) == ("drift", "nothing new is to begin there")
    closed = replace(row, state=S.DRAINING, cause="drift", drain_mark=NOW - 10)
    again = world(closed, nodes=(node_of(closed, state=NodeState.DRAINING, sandboxes=3),), waiting=1, **paid(row, 900))
    assert acts(again, a_pool(max=1)) == ()  # it is not opened again


def test_several_that_end_together_are_all_closed_and_the_first_to_end_is_replaced_first() -> None:
    rows = [an_intent(S.READY, number) for number in (1, 2)]
    ends = [instance_of(row, expires_at=datetime.fromtimestamp(NOW + 900 - n, UTC)) for n, row in enumerate(rows)]
    ends = [replace(each, created_at=datetime.fromtimestamp(NOW - 86_400, UTC)) for each in ends]
    seen = world(*rows, nodes=tuple(busy(row) for row in rows), instances=tuple(ends))
    assert drains(seen, a_pool(max=9)) == ["op1", "op2"]
    later = [replace(each, expires_at=datetime.fromtimestamp(NOW + 2300 - n, UTC)) for n, each in enumerate(ends)]
    (boot,) = acts(replace_instances(seen, later), a_pool(max=9))
    assert isinstance(boot, Boot)
    assert "test-cpu-op2 is to be replaced" in boot.reason


def test_what_is_paid_for_a_short_time_is_not_out_of_date_when_it_comes() -> None:
    row = an_intent(S.READY)
    assert acts(world(row, nodes=(busy(row),), **paid(row, 1300, whole=2400))) == ()
    assert len(acts(world(row, nodes=(busy(row),), **paid(row, 1200, whole=2400)))) == 1


def replace_instances(seen: World, instances: list[Any]) -> World:
    return replace(seen, providers={"cloud": replace(seen.providers["cloud"], instances=tuple(instances))})


# -- what does not go away --------------------------------------------------------------------------------------------


def test_a_delete_that_takes_long_holds_up_no_other() -> None:
    stuck, idle = an_intent(S.DELETING, 1, changed_at=NOW - 300, next_try_at=NOW + 9), an_intent(S.READY, 2)
    seen = world(stuck, idle, nodes=(node_of(idle, idle_since=NOW - 900),))
    assert drains(seen) == []
    assert drains(replace(seen, intents=(replace(stuck, changed_at=NOW - 301), idle))) == ["op2"]


def test_a_replaced_node_that_does_not_become_empty_holds_up_no_other() -> None:
    stuck = an_intent(S.DRAINING, 1, changed_at=NOW - 1800, cause="drift", spec="old", drain_mark=NOW)
    fresh, old = an_intent(S.READY, 2, spec="new"), an_intent(S.READY, 3, spec="old")
    nodes = (node_of(stuck, state=NodeState.DRAINING, sandboxes=1), node_of(fresh), busy(old))
    seen, pool = world(stuck, fresh, old, nodes=nodes), a_pool(max=9, spec="new")
    assert drains(seen, pool) == []
    assert "one is on its way out already" in reasons(seen, pool)["pool cpu"]
    assert drains(replace(seen, intents=(replace(stuck, changed_at=NOW - 1801), fresh, old)), pool) == ["op3"]


# -- deletes that fail ------------------------------------------------------------------------------------------------


def test_after_a_failed_delete_a_pool_closes_nothing_for_three_minutes() -> None:
    idle, old = an_intent(S.READY, 1), an_intent(S.READY, 2, spec="old")
    held = backoff.failed_delete("cpu", now=NOW - 179, reason="test-cpu-op9: busy: protected")
    seen = world(idle, old, nodes=(node_of(idle, idle_since=NOW - 900), node_of(old)))
    pool = a_pool(spec="new")
    assert drains(seen, pool) == ["op2"]
    assert drains(replace(seen, backoffs={held.key: held}), pool) == []
    told = reasons(replace(seen, backoffs={held.key: held}), pool)["pool cpu"]
    assert "nothing is closed for 1 s: test-cpu-op9: busy: protected" in told
    over = replace(held, until=NOW)
    assert drains(replace(seen, backoffs={held.key: over}), pool) == ["op2"]


def test_a_failed_delete_holds_back_no_other_pool_and_no_boot() -> None:
    row = an_intent(S.READY, 1)
    held = backoff.failed_delete("other", now=NOW, reason="r")
    seen = world(row, nodes=(node_of(row, idle_since=NOW - 900),), backoffs={held.key: held})
    assert drains(seen) == ["op1"]
    own = backoff.failed_delete("cpu", now=NOW, reason="r")
    assert len(boots(acts(world(waiting=1, backoffs={own.key: own})))) == 1


def test_a_delete_that_goes_on_failing_is_sent_ever_more_rarely() -> None:
    waits = [backoff.delete_again_after(0.0, now, None) for now in (0.0, 60.0, 120.0, 4000.0)]
    assert waits == [2.0, 60.0, 120.0, 300.0]
    assert backoff.delete_again_after(0.0, 60.0, 7.0) == 7.0


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (backoff.CLOCK, "for 60 s: r"),
        (backoff.closing_key("cpu"), "nothing is closed for 60 s: r"),
        (backoff.sweep_key("cloud", "vm-1"), "its delete is not sent again for 60 s: r"),
        (backoff.pool_key("cpu"), "nothing is created for 60 s: r"),
    ],
)
def test_a_back_off_says_what_is_held_back(key: BackOffKey, words: str) -> None:
    assert backoff.describe(BackOff(key, 60.0, 1, 0.0, "r")) == words
