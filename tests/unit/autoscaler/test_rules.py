"""Money, order of offers, warm floors, builders, pressure, hours that are paid, and the first look."""

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from autoscaler.core import backoff, cost
from autoscaler.core.actions import Boot, Sweep
from autoscaler.core.packing import Bin, grouped, items, pack, vector
from autoscaler.core.plan import fallback, plan
from autoscaler.core.pools import FleetPolicy, OfferKey, OfferOrder, WarmFloor
from autoscaler.core.states import IntentState
from autoscaler.core.world import BackOff, BackOffKey, BackOffKind, DemandItem
from gateway.wire.resources import Shape
from providers.base import Applied, Billing, ErrorKind, ProviderError, Scope
from tests.unit.autoscaler.test_policy import (
    CAPS,
    CHEAP_FAR,
    GPU,
    NOW,
    ONE,
    SMALL,
    THERE,
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


# -- money ------------------------------------------------------------------------------------------------------------


def test_a_cap_of_a_pool_counts_every_row_called_or_not() -> None:
    rows = [an_intent(S.PLANNED, 1, price=Decimal("0.01")), an_intent(S.DELETING, 2, price=Decimal("0.01"))]
    pool = a_pool(offers=(OfferKey("small", "here"),), max_hourly=Decimal("0.03"))
    assert boots(acts(world(*rows, waiting=9), pool)) == ["small@here"]
    tight = replace(pool, max_hourly=Decimal("0.029"))
    assert boots(acts(world(*rows, waiting=9), tight)) == []
    assert "would cost 0.03 €/h, more than 0.029" in reasons(world(*rows, waiting=9), tight)["pool cpu"]


def test_several_boots_of_one_tick_share_a_cap() -> None:
    pool = a_pool(offers=(OfferKey("small", "here"),), max_hourly=Decimal("0.02"), max=9, max_in_flight=9)
    assert len(boots(acts(world(waiting=40), pool, creates_per_tick=9))) == 2
    fleet = replace(pool, max_hourly=None)
    assert len(boots(acts(world(waiting=40), fleet, creates_per_tick=9, max_hourly=Decimal("0.03")))) == 3


def test_a_price_that_is_not_known_fails_a_cap() -> None:
    unknown = world(waiting=1, offers=(replace(SMALL, price_per_hour=None),))
    assert boots(acts(unknown)) == ["small@here"]
    assert boots(acts(unknown, a_pool(max_price=Decimal(1)))) == []
    assert "has no known price" in reasons(unknown, a_pool(max_price=Decimal(1)))["pool cpu"]


def test_a_dear_offer_is_passed_over() -> None:
    seen, pool = world(waiting=[DemandItem(ONE.model_copy(update={"gpus": 1}))]), a_pool(max_price=Decimal("0.5"))
    assert boots(acts(seen, pool)) == []
    assert "costs 1 €/h, more than 0.5" in reasons(seen, pool)["pool cpu"]


def test_a_month_counts_what_went_what_runs_and_one_hour_more() -> None:
    row = an_intent(S.READY, price=Decimal("0.01"), created_at=NOW - 5400)
    seen = world(row, nodes=(busy(row),), waiting=1, spent={"cpu": Decimal("0.5")})
    pool = a_pool(offers=(OfferKey("small", "here"),), max_monthly=Decimal("0.54"))
    assert boots(acts(seen, pool)) == ["small@here"]
    assert boots(acts(seen, replace(pool, max_monthly=Decimal("0.539")))) == []


def test_a_started_hour_counts_in_full_and_only_of_this_month() -> None:
    noon = datetime(2030, 5, 1, 12, tzinfo=UTC).timestamp()
    row = an_intent(S.READY, price=Decimal(1), created_at=noon - 86_400)
    assert cost.cost(row, noon) == 12
    assert cost.cost(replace(row, created_at=noon - 10), noon) == 1
    assert cost.cost(replace(row, instance_id=None), noon) == 0


def test_the_fleet_has_a_maximum_of_its_own() -> None:
    rows = [an_intent(S.DELETING, number, pool="other") for number in (1, 2)]
    assert boots(acts(world(*rows, waiting=1), max=2)) == []
    assert boots(acts(world(*rows, waiting=1), max=3)) != []


# -- offers -----------------------------------------------------------------------------------------------------------


def test_offers_are_tried_as_listed_or_by_price() -> None:
    listed = (OfferKey("small", "here"), OfferKey("small", "there"))
    assert boots(acts(world(waiting=1), a_pool(offers=listed))) == ["small@here"]
    assert boots(acts(world(waiting=1), a_pool(offers=listed, order=OfferOrder.PRICE))) == ["small@there"]


def test_what_ends_soon_is_bought_no_more() -> None:
    ending = replace(CHEAP_FAR, gone_after=datetime.fromtimestamp(NOW + 86_400, UTC))
    assert boots(acts(world(waiting=1, offers=(SMALL, ending)))) == ["small@here"]


def test_a_refused_offer_gives_way_to_the_next_that_fits_in_the_same_tick() -> None:
    (boot,) = (action for action in acts(world(waiting=1)) if isinstance(action, Boot))
    held = BackOff(THERE, NOW + 60, 1, NOW, "capacity")
    instead = fallback(world(waiting=1, backoffs={held.key: held}), FleetPolicy("test", (a_pool(),)), NOW, boot)
    assert boots(instead.actions) == ["small@here"]
    assert "small@there cannot be had" in instead.actions[0].reason
    none = fallback(world(offers=(), waiting=1), FleetPolicy("test", (a_pool(),)), NOW, boot)
    assert (none.actions, none.waits[0].subject) == ((), "pool cpu")


def test_a_fallback_keeps_the_caps() -> None:
    (boot,) = (action for action in acts(world(waiting=1)) if isinstance(action, Boot))
    held = BackOff(THERE, NOW + 60, 1, NOW, "capacity")
    pool = a_pool(max_hourly=Decimal("0.006"))
    instead = fallback(world(waiting=1, backoffs={held.key: held}), FleetPolicy("test", (pool,)), NOW, boot)
    assert instead.actions == ()


# -- demand -----------------------------------------------------------------------------------------------------------


def test_prepared_units_are_demand() -> None:
    assert len(boots(acts(world(waiting=[DemandItem(ONE, count=8)]), creates_per_tick=5, max=9))) == 2


def test_a_burst_that_is_young_is_waited_for_and_nothing_is_closed() -> None:
    row = an_intent(S.READY)
    seen = world(row, nodes=(node_of(row, idle_since=NOW - 900),), waiting=[DemandItem(GPU_ONE, since=NOW - 3)])
    assert acts(seen, young_seconds=5.0) == ()
    assert "a burst is awaited" in reasons(seen, young_seconds=5.0)["demand"]
    assert boots(acts(seen, young_seconds=2.0)) == ["gpu@here"]


GPU_ONE = ONE.model_copy(update={"gpus": 1})


def test_a_warm_floor_is_kept_free_beside_the_demand() -> None:
    warm = a_pool(warm=(WarmFloor(ONE, 2),))
    row = an_intent(S.READY)
    free_two = node_of(row, reserved=Shape(cpus=2), sandboxes=1, idle_since=None)
    assert acts(world(row, nodes=(free_two,)), warm) == ()
    (boot,) = acts(world(row, nodes=(free_two,), waiting=1), warm)
    assert "the warm floor lacks room for" in boot.reason  # type: ignore[attr-defined]


def test_a_warm_floor_keeps_an_idle_node() -> None:
    row = an_intent(S.READY)
    seen = world(row, nodes=(node_of(row, idle_since=NOW - 900),))
    assert drains(seen) == ["op1"]
    assert drains(seen, a_pool(warm=(WarmFloor(ONE, 1),))) == []


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


def test_builds_boot_builders_and_sandboxes_do_not() -> None:
    pools = (a_pool(), a_pool(name="build", role="builder", max=1))
    (boot,) = acts(world(builders=2), *pools)
    assert (boot.pool, boot.reason) == ("build", "builds want 1")  # type: ignore[attr-defined]
    assert "their pools are at their maximum" in reasons(world(builders=2), *pools)["builders"]
    assert acts(world(waiting=1), pools[1]) == ()
    assert "no pool has builders" in reasons(world(builders=1))["builders"]


def test_builders_go_to_the_next_pool_while_the_first_cannot_grow() -> None:
    pools = (a_pool(name="one", role="builder", provider="second"), a_pool(name="two", role="builder"))
    (boot,) = acts(world(builders=1), *pools)
    assert boot.pool == "two"  # type: ignore[attr-defined]
    held = BackOff(backoff.pool_key("one"), NOW + 60, 1, NOW, "failed")
    (boot,) = acts(world(builders=1, backoffs={held.key: held}), replace(pools[0], provider="cloud"), pools[1])
    assert boot.pool == "two"  # type: ignore[attr-defined]
    (boot,) = acts(world(builders=1), replace(pools[0], provider="cloud"), pools[1])
    assert boot.pool == "one"  # type: ignore[attr-defined]


def test_builders_wait_for_a_pool_that_only_takes_its_time() -> None:
    coming = an_intent(S.BOOTING, pool="one")
    pools = (a_pool(name="one", role="builder", max_in_flight=1), a_pool(name="two", role="builder"))
    assert acts(world(coming, builders=2), *pools) == ()


def test_lasting_pressure_adds_a_bounded_number_of_nodes() -> None:
    row = an_intent(S.READY)
    pool = a_pool(pressure_nodes=1)
    pressed = world(row, nodes=(busy(row, pressed_for=61.0, pressed_at=NOW),))
    (boot,) = acts(pressed, pool)
    assert (boot.cause, "under pressure" in boot.reason) == ("pressure", True)  # type: ignore[attr-defined]
    assert acts(world(row, nodes=(busy(row, pressed_for=59.0),)), pool) == ()
    assert acts(pressed) == ()
    more = an_intent(S.READY, 2, cause="pressure")
    again = world(row, more, nodes=(busy(row, pressed_for=61.0), busy(more)))
    assert acts(again, pool) == ()
    assert "of at most 1 for that" in reasons(again, pool)["pool cpu"]
    idle = world(row, more, nodes=(busy(row, pressed_for=61.0, pressed_at=NOW), node_of(more)))
    assert acts(idle, a_pool(pressure_nodes=5)) == ()


# -- in flight and failed boots ---------------------------------------------------------------------------------------


def test_what_is_on_its_way_at_most_doubles_what_works() -> None:
    rows = [an_intent(S.READY, number) for number in range(4)]
    seen = world(*rows, nodes=tuple(busy(row) for row in rows), waiting=90)
    assert len(boots(acts(seen, a_pool(max=99), creates_per_tick=50))) == 4


def test_after_a_failed_boot_one_probe_at_a_time() -> None:
    held = BackOff(backoff.pool_key("cpu"), NOW - 1, 1, NOW - 60, "failed")
    seen = world(waiting=90, backoffs={held.key: held})
    assert len(boots(acts(seen, a_pool(max=99), creates_per_tick=50))) == 1


def test_three_failed_boots_open_the_circuit() -> None:
    held: BackOff | None = None
    for number in range(3):
        held = backoff.failed_boot(held, "cpu", now=float(number), reason="late", chance=0.0)
    assert held is not None
    assert (held.failures, held.until - 2.0) == (3, 300.0)
    assert "3 boots in a row have failed" in held.reason
    full = backoff.failed_boot(held, "cpu", now=1000.0, reason="late", chance=1.0)
    assert full.until - 1000.0 == 1200.0


def test_failures_without_end_wait_for_the_longest_window() -> None:
    many = BackOff(backoff.pool_key("cpu"), NOW - 1, 10_000, NOW - 2, "late")
    assert backoff.failed_boot(many, "cpu", now=NOW, reason="late", chance=1.0).until == NOW + 3600
    assert backoff.grown(many, many.key, bounds=(10.0, 300.0), now=NOW, reason="x").until == NOW + 300
    assert backoff.retry_after(10_000) == backoff.RETRY_MOST


def test_jitter_shortens_a_window_but_never_below_what_was_asked_for() -> None:
    def grown(chance: float, least: float = 0.0) -> float:
        return backoff.grown(None, THERE, bounds=(120.0, 1800.0), now=0, reason="", least=least, chance=chance).until

    assert [grown(1.0), grown(0.5), grown(0.0), grown(0.5, least=100.0)] == [120.0, 60.0, 30.0, 100.0]


def test_a_quota_of_one_offer_holds_the_whole_provider_and_for_longer() -> None:
    error = ProviderError("full", kind=ErrorKind.QUOTA, applied=Applied.NO, scope=Scope.OFFER)
    provider = BackOffKey(BackOffKind.PROVIDER, "cloud")
    assert backoff.key_of(error, "cloud", "cpu", OfferKey("small", "here")) == provider
    assert backoff.bounds_of(error, provider) == (300.0, 3600.0)
    error.kind = ErrorKind.AUTH
    assert backoff.bounds_of(error, provider) == backoff.BOUNDS[Scope.PROVIDER]
    error.kind = ErrorKind.CAPACITY
    assert backoff.bounds_of(error, THERE) == backoff.BOUNDS[Scope.OFFER]


# -- hours that are paid ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("left", "closes"), [(2000, False), (301, False), (300, True), (31, True), (10, False)])
def test_an_idle_node_is_closed_shortly_before_its_next_hour(left: float, closes: bool) -> None:
    row = an_intent(S.READY)
    made = instance_of(row, created_at=datetime.fromtimestamp(NOW - 7200 + left, UTC))
    seen = world(
        row,
        nodes=(node_of(row, idle_since=NOW - 900),),
        instances=(made,),
        caps=replace(CAPS, billing=Billing.HOURLY_ROUND_UP),
    )
    assert bool(drains(seen)) is closes
    if not closes:
        assert f"its hour is paid for another {left} s" in reasons(seen)[row.name]


# -- closing ----------------------------------------------------------------------------------------------------------


def test_nothing_is_closed_soon_after_growth_or_pressure() -> None:
    row = an_intent(S.READY)
    seen = world(row, nodes=(node_of(row, idle_since=NOW - 900),))
    assert drains(seen, a_pool(hold_seconds=60.0)) == []
    assert "it grew 50 s ago" in reasons(seen, a_pool(hold_seconds=60.0))["pool cpu"]
    pressed = world(row, nodes=(node_of(row, idle_since=NOW - 900, pressed_at=NOW - 10),))
    assert drains(pressed) == []
    assert drains(pressed, a_pool(pressure_hold_seconds=10.0)) == ["op1"]


def test_a_tenth_of_a_pool_may_be_on_its_way_out() -> None:
    rows = [an_intent(S.READY, number) for number in range(30)]
    nodes = tuple(node_of(row, idle_since=NOW - 900) for row in rows)
    assert len(drains(world(*rows, nodes=nodes), a_pool(max=99), stops_per_tick=50)) == 3
    going = an_intent(S.DELETING, 99)
    assert len(drains(world(*rows, going, nodes=nodes), a_pool(max=99), stops_per_tick=50)) == 2


def test_a_node_that_does_not_become_empty_is_pointed_out_and_lives() -> None:
    row = an_intent(S.DRAINING, changed_at=NOW - 1801, cause="drift", spec="old", drain_mark=NOW - 1700)
    node = node_of(row, state="draining", sandboxes=1)
    assert acts(world(row, nodes=(node,)), a_pool(spec="new")) == ()
    assert "still not empty" in reasons(world(row, nodes=(node,)), a_pool(spec="new"))[row.name]


# -- the first look, and what nobody uses -----------------------------------------------------------------------------


def test_before_every_node_was_heard_of_nothing_is_changed() -> None:
    row = an_intent(S.LOST, detail="lost")
    seen = world(row, instances=(), waiting=5, synced=False)
    assert acts(seen, a_pool(min=1)) == ()
    assert reasons(seen)["fleet"].startswith("the process has just started")


def test_a_leftover_goes_once_it_has_lasted() -> None:
    seen = world()
    view = replace(seen.providers["cloud"], leftovers=("ip-1",))
    seen = replace(seen, providers={"cloud": view})
    assert acts(seen) == ()
    (sweep,) = acts(replace(seen, leftovers_before=frozenset({"ip-1"})))
    assert sweep == Sweep("cloud", "ip-1", "no instance has used it for long")
    held = BackOff(backoff.sweep_key("cloud", "ip-1"), NOW + 60, 1, NOW, "it was told to go")
    assert acts(replace(seen, leftovers_before=frozenset({"ip-1"}), backoffs={held.key: held})) == ()


def test_a_provider_that_rests_moves_no_demand_elsewhere() -> None:
    seen = world(waiting=1, instances=None)
    resting = replace(seen.providers["cloud"], is_resting=True, problem="it is listed again in 5 s")
    other = world().providers["cloud"]
    seen = replace(seen, providers={"cloud": resting, "second": other})
    pools = (a_pool(), a_pool(name="more", provider="second"))
    assert acts(seen, *pools) == ()
    blind = replace(seen, providers={"cloud": replace(resting, is_resting=False), "second": other})
    assert [a.pool for a in acts(blind, *pools) if isinstance(a, Boot)] == ["more"]


def test_a_node_of_another_order_of_the_same_name_counts_for_nothing() -> None:
    row = an_intent(S.BOOTING, deadline=NOW - 1)
    seen = world(row, nodes=(node_of(row, operation_id="another"),))
    assert plan(seen, FleetPolicy("test", (a_pool(),)), NOW).actions[0].boot_failed  # type: ignore[union-attr]


# -- packing ----------------------------------------------------------------------------------------------------------


def test_many_equal_ones_are_put_in_at_once_and_gpus_stay_free_for_who_needs_them() -> None:
    kinds = frozenset({"runsc"}), frozenset({"gvisor"})
    gpu = Bin("gpu", vector(Shape(cpus=8, memory_mb=8192, disk_mb=99_999, gpus=1, slots=9)), *kinds)
    plain = Bin("plain", vector(Shape(cpus=8, memory_mb=8192, disk_mb=99_999, slots=9)), *kinds)
    left = pack(grouped([DemandItem(ONE, count=8)]), [gpu, plain])
    assert (left, plain.free[0], gpu.used) == ([], 0.0, False)
    assert items(pack(grouped([DemandItem(ONE, count=9)]), [gpu])) == [DemandItem(ONE, count=1)]


def test_gpus_are_never_overcommitted() -> None:
    assert boots(acts(world(waiting=[DemandItem(GPU_ONE, count=2)], offers=(GPU,)), max_hourly=Decimal(9))) == [
        "gpu@here"
    ]
