"""Which offer a boot takes, and the limits that it keeps: counts, money, back-offs."""

from dataclasses import replace
from decimal import Decimal

import pytest

from autoscaler.core import backoff
from autoscaler.core.actions import RefusalKind
from autoscaler.core.pools import OfferKey, OfferOrder
from autoscaler.core.states import IntentState
from autoscaler.core.world import BackOff, BackOffKey, BackOffKind, DemandItem
from tests.unit.autoscaler.builders import (
    GPU,
    GPU_ONE,
    NOW,
    ONE,
    SMALL,
    a_pool,
    acts,
    an_intent,
    at,
    boots,
    busy,
    held_back,
    node_of,
    offer_key,
    waits,
    world,
)

S = IntentState
R = RefusalKind
HERE, THERE = OfferKey("small", "here"), OfferKey("small", "there")

# -- which offer ------------------------------------------------------------------------------------------------------


def test_without_a_list_the_cheapest_offer_is_bought() -> None:
    assert boots(acts(world(waiting=1))) == ["small@there"]


def test_the_pools_own_order_of_offers_wins_over_the_price() -> None:
    assert boots(acts(world(waiting=1), a_pool(offers=(HERE, THERE)))) == ["small@here"]
    assert boots(acts(world(waiting=1), a_pool(offers=(HERE, THERE), order=OfferOrder.PRICE))) == ["small@there"]


def test_an_offer_that_is_out_of_stock_is_passed_over() -> None:
    seen = world(waiting=1, offers=(replace(SMALL, available=False),))
    assert acts(seen) == ()
    assert waits(seen) == {"pool cpu": R.UNAVAILABLE}


def test_an_offer_that_ends_soon_is_not_bought_any_more() -> None:
    ending = replace(SMALL, location="there", price_per_hour=Decimal("0.005"), gone_after=at(86_400))
    assert boots(acts(world(waiting=1, offers=(SMALL, ending)))) == ["small@here"]
    assert waits(world(offers=(ending,)), a_pool(min=1)) == {"pool cpu": R.UNSOLD}


def test_an_offer_with_too_few_gpus_is_left_out() -> None:
    assert boots(acts(world(), a_pool(min=1, gpus=1))) == ["gpu@here"]
    for pool in (a_pool(min=1, gpus=2), a_pool(min=1, gpus=1, offers=(HERE,))):
        assert boots(acts(world(), pool)) == []
        assert waits(world(), pool) == {"pool cpu": R.UNSOLD}


def test_an_offer_that_the_provider_does_not_have_is_refused_as_unsold() -> None:
    mistyped = a_pool(min=1, offers=(OfferKey("smal", "here"),))
    assert waits(world(), mistyped) == {"pool cpu": R.UNSOLD}
    assert waits(world(offers=()), mistyped) == {"pool cpu": R.UNSOLD}


def test_a_gpu_shape_takes_the_offer_that_has_one() -> None:
    assert boots(acts(world(waiting=[DemandItem(GPU_ONE)]))) == ["gpu@here"]


def test_gpus_are_never_overcommitted() -> None:
    seen = world(waiting=[DemandItem(GPU_ONE, count=2)], offers=(GPU,))
    assert boots(acts(seen, max_hourly=Decimal(9))) == ["gpu@here"]


# -- what a node can run ----------------------------------------------------------------------------------------------


def test_an_isolation_that_no_pool_has_buys_nothing() -> None:
    seen, pool = world(waiting=[DemandItem(ONE, isolation="runc")]), a_pool(isolations=frozenset({"gvisor"}))
    assert acts(seen, pool) == ()
    assert waits(seen, pool) == {"demand": R.UNFIT}


def test_a_pool_whose_nodes_lack_a_promised_engine_buys_no_more_of_them() -> None:
    item, row = DemandItem(ONE, runtime="docker"), an_intent(S.READY)
    assert len(boots(acts(world(waiting=[item])))) == 1
    seen = world(row, nodes=(node_of(row),), waiting=[item])
    assert boots(acts(seen)) == []
    assert waits(seen)["demand"] is R.UNFIT
    assert len(boots(acts(seen, a_pool(spec="another")))) == 1, "nodes of another spec say nothing"
    assert len(boots(acts(seen, a_pool(), a_pool(name="second")))) == 1


# -- back-offs --------------------------------------------------------------------------------------------------------


def test_an_offer_that_is_held_back_is_passed_over() -> None:
    assert boots(acts(held_back(world(waiting=1), offer_key("small@there")))) == ["small@here"]


def test_a_back_off_that_is_over_holds_nothing() -> None:
    assert boots(acts(held_back(world(waiting=1), offer_key("small@there"), seconds=0))) == ["small@there"]


@pytest.mark.parametrize("key", [BackOffKey(BackOffKind.PROVIDER, "cloud"), backoff.pool_key("cpu")])
def test_a_provider_or_pool_that_is_held_back_buys_nothing(key: BackOffKey) -> None:
    seen = held_back(world(waiting=2), key)
    assert acts(seen) == ()
    assert waits(seen) == {"pool cpu": R.BACKOFF}


def test_a_scale_down_that_is_held_back_holds_no_boot() -> None:
    assert len(boots(acts(held_back(world(waiting=1), backoff.closing_key("cpu"))))) == 1


# -- counts -----------------------------------------------------------------------------------------------------------


def test_every_row_that_is_not_gone_counts_against_the_pools_maximum() -> None:
    rows = [an_intent(S.DELETING, 1), an_intent(S.READY, 2), an_intent(S.BOOTING, 3)]
    seen = world(*rows, nodes=(busy(rows[1]),), waiting=9)
    assert boots(acts(seen)) == []
    assert waits(seen)["pool cpu"] is R.POOL_FULL


def test_every_row_that_is_not_gone_counts_against_the_fleets_maximum() -> None:
    rows = [an_intent(S.DELETING, number, pool="other") for number in (1, 2)]
    assert boots(acts(world(*rows, waiting=1), max=2)) == []
    assert waits(world(*rows, waiting=1), max=2)["pool cpu"] is R.FLEET_FULL
    assert boots(acts(world(*rows, waiting=1), max=3)) != []


def test_a_tick_boots_a_bounded_number() -> None:
    seen, pool = world(), a_pool(min=2)
    assert len(boots(acts(seen, pool))) == 1
    assert waits(seen, pool) == {"pool cpu": R.TICK_FULL}
    assert len(boots(acts(seen, pool, creates_per_tick=5))) == 2


def test_what_is_on_its_way_at_most_doubles_what_works() -> None:
    rows = [an_intent(S.READY, number) for number in range(4)]
    seen = world(*rows, nodes=tuple(busy(row) for row in rows), waiting=90)
    assert len(boots(acts(seen, a_pool(max=99), creates_per_tick=50))) == 4
    assert waits(seen, a_pool(max=99), creates_per_tick=50) == {"pool cpu": R.IN_FLIGHT}


def test_after_a_failed_boot_one_probe_at_a_time() -> None:
    held = BackOff(backoff.pool_key("cpu"), NOW - 1, 1, NOW - 60, "failed")
    seen = world(waiting=90, backoffs={held.key: held})
    assert len(boots(acts(seen, a_pool(max=99), creates_per_tick=50))) == 1


def test_a_pool_boots_nothing_in_the_tick_that_gives_up_a_failed_boot() -> None:
    seen = world(an_intent(S.BOOTING, deadline=NOW - 1), waiting=4)
    assert boots(acts(seen)) == []
    assert waits(seen) == {"pool cpu": R.FAILED_BOOT}


# -- money ------------------------------------------------------------------------------------------------------------


def test_an_hourly_cap_of_a_pool_counts_every_row_called_or_not() -> None:
    rows = [an_intent(S.PLANNED, 1, price=Decimal("0.01")), an_intent(S.DELETING, 2, price=Decimal("0.01"))]
    pool = a_pool(offers=(HERE,), max_hourly=Decimal("0.03"))
    assert boots(acts(world(*rows, waiting=9), pool)) == ["small@here"]
    tight = replace(pool, max_hourly=Decimal("0.029"))
    assert boots(acts(world(*rows, waiting=9), tight)) == []
    assert waits(world(*rows, waiting=9), tight)["pool cpu"] is R.PRICE


def test_several_boots_of_one_tick_share_a_cap() -> None:
    pool = a_pool(offers=(HERE,), max_hourly=Decimal("0.02"), max=9, max_in_flight=9)
    assert len(boots(acts(world(waiting=40), pool, creates_per_tick=9))) == 2
    uncapped = replace(pool, max_hourly=None)
    assert len(boots(acts(world(waiting=40), uncapped, creates_per_tick=9, max_hourly=Decimal("0.03")))) == 3


def test_an_unknown_price_is_over_every_cap() -> None:
    unknown = world(waiting=1, offers=(replace(SMALL, price_per_hour=None),))
    assert boots(acts(unknown)) == ["small@here"]
    assert boots(acts(unknown, a_pool(max_price=Decimal(1)))) == []
    assert waits(unknown, a_pool(max_price=Decimal(1))) == {"pool cpu": R.PRICE}


def test_a_dear_offer_is_passed_over() -> None:
    seen, pool = world(waiting=[DemandItem(GPU_ONE)]), a_pool(max_price=Decimal("0.5"))
    assert boots(acts(seen, pool)) == []
    assert waits(seen, pool) == {"pool cpu": R.PRICE}


def test_a_monthly_cap_counts_what_went_what_runs_and_one_hour_more() -> None:
    row = an_intent(S.READY, price=Decimal("0.01"), created_at=NOW - 5400)
    seen = world(row, nodes=(busy(row),), waiting=1, spent={"cpu": Decimal("0.5")})
    pool = a_pool(offers=(HERE,), max_monthly=Decimal("0.54"))
    assert boots(acts(seen, pool)) == ["small@here"]
    assert boots(acts(seen, replace(pool, max_monthly=Decimal("0.539")))) == []
