"""Deletes that no demand can stop: failed boots, lost and drained nodes, and orphans."""

from dataclasses import replace
from typing import Any

import pytest

from autoscaler.core import backoff
from autoscaler.core.actions import Forget, Stop, Sweep, WaitKind
from autoscaler.core.findings import applied
from autoscaler.core.states import IntentState
from autoscaler.core.world import DRIFT, World
from gateway.wire.states import NodeState
from providers.base import Phase
from tests.unit.autoscaler.builders import (
    NOW,
    a_pool,
    acts,
    an_intent,
    at,
    finds,
    held_back,
    instance_of,
    node_of,
    waits,
    world,
)

S = IntentState
W = WaitKind
LATE = an_intent(S.BOOTING, created_at=NOW - 301, deadline=NOW - 1)
FAILED = Stop("op1", "", boot_failed=True)

# -- boots that failed ------------------------------------------------------------------------------------------------


def test_a_boot_past_its_deadline_is_deleted_and_its_pool_backs_off() -> None:
    assert acts(world(LATE)) == (FAILED,)


def test_a_late_boot_is_kept_while_ages_or_registrations_are_not_known() -> None:
    assert acts(world(LATE, clock_settled=False)) == ()
    assert waits(world(LATE, clock_settled=False))[LATE.name] is W.CLOCK_JUMP
    assert acts(replace(world(LATE), nodes=None)) == ()
    assert waits(replace(world(LATE), nodes=None))[LATE.name] is W.NO_GATEWAY


@pytest.mark.parametrize("state", [NodeState.UNREACHABLE, NodeState.LOST])
def test_a_node_that_sent_a_heartbeat_is_never_deleted_as_a_failed_boot(state: NodeState) -> None:
    seen = world(LATE, nodes=(node_of(LATE, state=state, sandboxes=3, idle_since=None),))
    assert acts(applied(seen, finds(seen), NOW)) == ()


def test_a_node_that_registered_and_never_sent_a_heartbeat_is_a_failed_boot() -> None:
    ran = replace(LATE, running_at=NOW - 301)
    seen = world(ran, nodes=(node_of(ran, heartbeat_at=None),))
    assert acts(applied(seen, finds(seen), NOW)) == (FAILED,)


def test_the_node_of_another_order_of_the_same_name_saves_no_late_boot() -> None:
    assert acts(world(LATE, nodes=(node_of(LATE, operation_id="another"),))) == (FAILED,)


# -- rows that were given up ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [S.LOST, S.ABANDONED])
def test_what_was_given_up_is_deleted(state: IntentState) -> None:
    assert acts(world(an_intent(state), instances=())) == (FAILED,)


def test_a_machine_lost_after_its_node_registered_is_no_failed_boot() -> None:
    assert acts(world(an_intent(S.LOST, node_id="node-op1"), instances=())) == (Stop("op1", ""),)


def test_a_given_up_create_counts_until_it_can_come_through_no_more() -> None:
    row = an_intent(S.ABANDONED, next_try_at=NOW + 60)
    assert acts(world(row, instances=())) == ()
    assert waits(world(row, instances=())) == {row.name: W.LATE_CREATE}
    assert acts(world(replace(row, next_try_at=NOW), instances=())) == (FAILED,)
    assert acts(world(row, instances=(instance_of(row, Phase.BOOTING),))) == (FAILED,)


def test_after_a_jump_of_the_clock_a_given_up_create_may_still_come_through() -> None:
    seen = world(an_intent(S.ABANDONED), instances=(), clock_settled=False)
    assert acts(seen) == ()
    assert acts(replace(seen, clock_settled=True)) == (FAILED,)


def test_a_delete_is_repeated_while_it_shows_nothing_and_confirmed_once_absent() -> None:
    again = (Stop("op1", ""),)
    young = world(an_intent(S.DELETING, changed_at=NOW - 10))
    assert acts(young) == ()
    assert waits(young) == {"test-cpu-op1": W.DELETING}
    assert acts(world(an_intent(S.DELETING, changed_at=NOW - 60))) == again
    assert acts(world(an_intent(S.DELETING, changed_at=NOW), instances=())) == again


# -- drained and silent nodes -----------------------------------------------------------------------------------------


def drained(**node: Any) -> World:
    row = an_intent(S.DRAINING, drain_mark=NOW - 10)
    return world(row, nodes=(node_of(row, state=NodeState.DRAINING, **node),))


def test_a_closed_empty_node_is_deleted_after_its_next_heartbeat() -> None:
    assert acts(drained()) == (Stop("op1", "", drained=True),)
    unproved = drained(heartbeat_at=NOW - 10)
    assert acts(unproved) == ()
    assert waits(unproved) == {"test-cpu-op1": W.UNPROVED_DRAIN}


def test_a_node_that_does_not_become_empty_is_pointed_out_and_lives() -> None:
    row = an_intent(S.DRAINING, changed_at=NOW - 1801, cause=DRIFT, spec="old", drain_mark=NOW - 1700)
    seen = world(row, nodes=(node_of(row, state=NodeState.DRAINING, sandboxes=1),))
    assert acts(seen, a_pool(spec="new")) == ()
    assert waits(seen, a_pool(spec="new")) == {row.name: W.STUCK_DRAIN}


def test_a_lost_node_is_deleted_after_long_silence_only() -> None:
    row = an_intent(S.READY)
    fresh = world(row, nodes=(node_of(row, state=NodeState.LOST, heartbeat_at=NOW - 400),))
    assert acts(fresh) == ()
    assert waits(fresh) == {row.name: W.SILENT_NODE}
    old = world(row, nodes=(node_of(row, state=NodeState.LOST, heartbeat_at=NOW - 1800),))
    assert acts(old) == (Stop("op1", ""),)
    assert acts(replace(old, clock_settled=False)) == ()


# -- orphans ----------------------------------------------------------------------------------------------------------

ORPHAN = an_intent(S.READY)
SEEN = frozenset({"vm-op1"})
SWEPT = (Sweep("cloud", "vm-op1", ""),)


def orphaned(age: float, **changes: Any) -> World:
    return world(instances=(instance_of(ORPHAN, created_at=at(-age)),), **changes)


def test_an_old_orphan_is_deleted_at_its_second_sighting() -> None:
    assert acts(orphaned(1000)) == ()
    assert acts(orphaned(1000, orphans_before=SEEN)) == SWEPT


@pytest.mark.parametrize(
    "kept",
    [
        orphaned(800, orphans_before=SEEN),
        orphaned(1000, orphans_before=SEEN, clock_settled=False),
        replace(orphaned(1000, orphans_before=SEEN), nodes=None),
    ],
    ids=["young", "the clock jumped", "no gateway"],
)
def test_an_orphan_is_kept_while_it_may_be_somebodys(kept: World) -> None:
    assert acts(kept) == ()
    assert waits(kept)[ORPHAN.name] is W.ORPHAN_YOUNG


def test_an_orphan_whose_node_works_is_kept_but_not_for_the_node_of_another_order() -> None:
    seen = orphaned(1000, orphans_before=SEEN, nodes=(node_of(ORPHAN, operation_id="another"),))
    assert acts(seen) == SWEPT
    own = replace(seen, nodes=(node_of(ORPHAN, operation_id="op1"),))
    assert acts(own) == ()
    assert waits(own) == {ORPHAN.name: W.ORPHAN_AT_WORK}


def test_an_orphan_keeps_a_working_node_beside_a_lost_one_of_its_name() -> None:
    lost = node_of(ORPHAN, id="older", state=NodeState.LOST)
    seen = orphaned(1000, orphans_before=SEEN, nodes=(node_of(ORPHAN), lost))
    assert waits(seen)[ORPHAN.name] is W.ORPHAN_AT_WORK


def test_an_orphan_whose_delete_was_sent_gets_the_time_for_it() -> None:
    seen, key = orphaned(1000, orphans_before=SEEN), backoff.sweep_key("cloud", "vm-op1")
    assert acts(held_back(seen, key)) == ()
    assert waits(held_back(seen, key)) == {ORPHAN.name: W.BACKOFF}
    assert acts(held_back(seen, key, seconds=0)) == SWEPT


def test_of_two_instances_of_one_operation_the_younger_is_an_orphan() -> None:
    row = an_intent(S.BOOTING)
    older = instance_of(row, created_at=at(-2000))
    twin = instance_of(row, id="vm-twin", created_at=at(-1000))
    seen = world(row, instances=(twin, older), orphans_before=frozenset({"vm-twin"}))
    assert acts(seen) == (Sweep("cloud", "vm-twin", ""),)


def test_a_leftover_is_deleted_once_it_has_lasted() -> None:
    seen = world()
    seen = replace(seen, providers={"cloud": replace(seen.providers["cloud"], leftovers=("ip-1",))})
    assert acts(seen) == ()
    assert waits(seen) == {"ip-1": W.ORPHAN_YOUNG}
    lasting = replace(seen, leftovers_before=frozenset({"ip-1"}))
    assert acts(lasting) == (Sweep("cloud", "ip-1", ""),)
    assert acts(held_back(lasting, backoff.sweep_key("cloud", "ip-1"))) == ()


def test_a_node_whose_instance_is_gone_is_forgotten() -> None:
    node = node_of(ORPHAN)
    assert acts(world(nodes=(node,), gone=frozenset({node.instance}))) == (Forget("node-op1", ""),)
