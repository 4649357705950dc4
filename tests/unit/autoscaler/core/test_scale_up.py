"""Scale up: demand, room that is there or on its way, warm floors, builders, pressure and the minimum."""

from dataclasses import replace
from typing import Any

import pytest

from autoscaler.core import backoff
from autoscaler.core.actions import Boot, CancelDrain, Drain, RefusalKind, WaitKind
from autoscaler.core.pools import PoolPolicy, WarmFloor
from autoscaler.core.states import IntentState
from autoscaler.core.world import PRESSURE, DemandItem, ProviderView, World
from gateway.wire.resources import Shape
from gateway.wire.states import NodeState
from tests.unit.autoscaler.builders import (
    CAPS,
    GPU_ONE,
    NOW,
    ONE,
    SMALL,
    a_pool,
    acts,
    an_intent,
    boots,
    busy,
    drains,
    held_back,
    node_of,
    waits,
    world,
)

S = IntentState
R = RefusalKind


def pools_of(seen: World, *pools: PoolPolicy, **rules: Any) -> list[str]:
    """Return the pools for which is booted."""
    return [action.pool for action in acts(seen, *pools, **rules) if isinstance(action, Boot)]


# -- demand -----------------------------------------------------------------------------------------------------------


def test_no_demand_means_no_action() -> None:
    assert acts(world()) == ()


def test_waiting_work_boots_a_node_that_has_room_for_it() -> None:
    (boot,) = acts(world(waiting=1))
    assert isinstance(boot, Boot)
    assert (boot.pool, boot.provider, boot.seconds, boot.item) == ("cpu", "cloud", 300.0, DemandItem(ONE))


def test_prepared_units_are_demand() -> None:
    assert len(boots(acts(world(waiting=[DemandItem(ONE, count=8)]), creates_per_tick=5, max=9))) == 2


def test_the_second_pool_is_used_when_the_first_is_full() -> None:
    assert pools_of(world(waiting=1), a_pool(max=0), a_pool(name="more")) == ["more"]


def test_the_second_pool_is_not_used_while_the_first_only_takes_its_time() -> None:
    seen = world(an_intent(S.BOOTING), waiting=9)
    pools = a_pool(max_in_flight=1), a_pool(name="more")
    assert acts(seen, *pools) == ()
    assert waits(seen, *pools) == {"pool cpu": R.IN_FLIGHT}


def test_a_provider_that_rests_moves_no_demand_elsewhere_but_a_blind_one_does() -> None:
    blind = world(waiting=1, instances=None).providers["cloud"]
    pools = (a_pool(), a_pool(name="more", provider="second"))
    for is_resting, booted in ((True, []), (False, ["more"])):
        views = {"cloud": replace(blind, is_resting=is_resting), "second": world().providers["cloud"]}
        assert pools_of(replace(world(waiting=1), providers=views), *pools) == booted


def test_plain_work_leaves_gpus_to_who_needs_them() -> None:
    pools = a_pool(), a_pool(name="gpu", gpus=1)
    assert pools_of(world(waiting=1), *pools) == ["cpu"]
    assert pools_of(world(waiting=1), *reversed(pools)) == ["cpu"]
    assert boots(acts(world(waiting=[DemandItem(GPU_ONE)]), *pools)) == ["gpu@here"]


def test_a_young_burst_is_waited_for_and_nothing_is_closed_meanwhile() -> None:
    row = an_intent(S.READY)
    seen = world(row, nodes=(node_of(row, idle_since=NOW - 900),), waiting=[DemandItem(GPU_ONE, since=NOW - 3)])
    assert acts(seen, young_seconds=5.0) == ()
    assert waits(seen, young_seconds=5.0) == {"demand": R.YOUNG}
    assert boots(acts(seen, young_seconds=2.0)) == ["gpu@here"]


# -- room that is there, or on its way --------------------------------------------------------------------------------


def test_free_room_of_a_node_that_nobody_booted_counts() -> None:
    foreign = node_of(an_intent(S.READY), instance="somebody-elses")
    assert acts(world(nodes=(foreign,), waiting=4)) == ()


@pytest.mark.parametrize("state", [NodeState.DRAINING, NodeState.UNREACHABLE, NodeState.LOST])
def test_room_of_a_node_that_takes_nothing_does_not_count(state: NodeState) -> None:
    row = an_intent(S.READY)
    assert len(boots(acts(world(row, nodes=(node_of(row, state=state),), waiting=1)))) == 1


def test_what_boots_counts_in_full_until_its_deadline_and_not_after() -> None:
    row = an_intent(S.BOOTING)
    assert acts(world(row, waiting=4)) == ()
    assert waits(world(replace(row, deadline=NOW - 1), waiting=4)) == {"pool cpu": R.FAILED_BOOT}


def test_a_node_that_joined_while_its_provider_was_blind_has_no_more_room_than_it_has() -> None:
    row = an_intent(S.BOOTING)
    other = ProviderView(CAPS, (), taken_at=NOW, offers=(SMALL,))
    pools = a_pool(), a_pool(name="other", provider="other")
    full = node_of(row, reserved=Shape(cpus=4, memory_mb=7000, disk_mb=1024, slots=4), sandboxes=4, idle_since=None)
    for node, expected in ((full, ["other"]), (node_of(row), [])):
        seen = world(row, nodes=(node,), waiting=1, instances=None)
        seen = replace(seen, providers={**seen.providers, "other": other})
        assert pools_of(seen, *pools) == expected


def test_the_shape_that_was_seen_replaces_the_expected_one() -> None:
    seen = world(waiting=1, learned={("cpu", "small", ""): Shape(cpus=0.5, memory_mb=100, slots=1)})
    assert boots(acts(seen)) == ["gpu@here"]


# -- closed nodes -----------------------------------------------------------------------------------------------------


def closed(waiting: int = 0, **node: Any) -> World:
    row = an_intent(S.DRAINING, drain_mark=NOW - 10)
    return world(row, nodes=(node_of(row, state=NodeState.DRAINING, **node),), waiting=waiting)


@pytest.mark.parametrize(
    ("seen", "minimum"),
    [(closed(sandboxes=1), 0), (closed(waiting=1), 0), (closed(), 1)],
    ids=["work on it", "demand", "the minimum"],
)
def test_a_drain_is_cancelled_and_nothing_is_deleted(seen: World, minimum: int) -> None:
    assert acts(seen, a_pool(min=minimum)) == (CancelDrain("op1", "node-op1", ""),)


def test_an_unconfirmed_drain_is_sent_again() -> None:
    row = an_intent(S.DRAINING)
    assert acts(world(row, nodes=(node_of(row),))) == (Drain("op1", "node-op1", ""),)


# -- the minimum, warm floors and builders ----------------------------------------------------------------------------


def test_the_minimum_is_booted_without_demand() -> None:
    (boot,) = acts(world(), a_pool(min=1))
    assert isinstance(boot, Boot)
    assert boot.item is None


def test_a_warm_floor_is_kept_free_beside_the_demand() -> None:
    warm = a_pool(warm=(WarmFloor(ONE, 2),))
    row = an_intent(S.READY)
    free_two = node_of(row, reserved=Shape(cpus=2), sandboxes=1, idle_since=None)
    assert acts(world(row, nodes=(free_two,)), warm) == ()
    (boot,) = acts(world(row, nodes=(free_two,), waiting=1), warm)
    assert isinstance(boot, Boot)
    assert boot.item == DemandItem(ONE, count=2, pool="cpu")


def test_a_warm_floor_keeps_an_idle_node() -> None:
    row = an_intent(S.READY)
    seen = world(row, nodes=(node_of(row, idle_since=NOW - 900),))
    assert drains(seen) == ["op1"]
    assert drains(seen, a_pool(warm=(WarmFloor(ONE, 1),))) == []


def test_builds_boot_builders_and_sandboxes_do_not() -> None:
    pools = (a_pool(), a_pool(name="build", role="builder", max=1))
    assert pools_of(world(builders=2), *pools) == ["build"]
    assert waits(world(builders=2), *pools) == {"builders": WaitKind.BUILDERS_SHORT}
    assert acts(world(waiting=1), pools[1]) == ()
    assert waits(world(builders=1)) == {"builders": WaitKind.BUILDERS_SHORT}


def test_builders_go_to_the_next_pool_while_the_first_cannot_grow() -> None:
    one, two = a_pool(name="one", role="builder"), a_pool(name="two", role="builder")
    assert pools_of(world(builders=1), one, two) == ["one"]
    assert pools_of(world(builders=1), replace(one, provider="blind"), two) == ["two"]
    assert pools_of(held_back(world(builders=1), backoff.pool_key("one")), one, two) == ["two"]


def test_builders_wait_for_a_pool_that_only_takes_its_time() -> None:
    coming = an_intent(S.BOOTING, pool="one")
    pools = (a_pool(name="one", role="builder", max_in_flight=1), a_pool(name="two", role="builder"))
    assert acts(world(coming, builders=2), *pools) == ()


# -- pressure ---------------------------------------------------------------------------------------------------------


def test_lasting_pressure_adds_a_node_where_the_pool_allows_it() -> None:
    row = an_intent(S.READY)
    pressed = world(row, nodes=(busy(row, pressed_for=61.0, pressed_at=NOW),))
    (boot,) = acts(pressed, a_pool(pressure_nodes=1))
    assert isinstance(boot, Boot)
    assert boot.cause == PRESSURE
    assert acts(pressed) == ()
    short = world(row, nodes=(busy(row, pressed_for=59.0),))
    assert acts(short, a_pool(pressure_nodes=1)) == ()


def test_pressure_adds_a_bounded_number_of_nodes() -> None:
    row, added = an_intent(S.READY), an_intent(S.READY, 2, cause=PRESSURE)
    seen, pool = world(row, added, nodes=(busy(row, pressed_for=61.0), busy(added))), a_pool(pressure_nodes=1)
    assert acts(seen, pool) == ()
    assert waits(seen, pool) == {"pool cpu": WaitKind.PRESSURE_FULL}


def test_pressure_adds_nothing_while_a_node_is_idle() -> None:
    row, idle = an_intent(S.READY), an_intent(S.READY, 2)
    seen = world(row, idle, nodes=(busy(row, pressed_for=61.0, pressed_at=NOW), node_of(idle)))
    assert acts(seen, a_pool(pressure_nodes=5)) == ()
