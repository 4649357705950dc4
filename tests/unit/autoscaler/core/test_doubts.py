"""One wish, node, offer or row that cannot be understood is left out and told; the rest is planned all the same."""

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.core.actions import Boot, Drain, Learn, Move, Stop, WaitKind
from autoscaler.core.doubts import Doubt, unclear_listing, understood_offers
from autoscaler.core.findings import applied, settle
from autoscaler.core.plan import plan
from autoscaler.core.pools import FleetPolicy
from autoscaler.core.states import IntentState
from autoscaler.core.world import DemandItem
from gateway.wire.resources import Shape
from providers.base import Inventory, Offer, Resources
from tests.unit.autoscaler.builders import (
    CAPS,
    FULL,
    NOW,
    ONE,
    SMALL,
    a_pool,
    acts,
    an_intent,
    at,
    boots,
    decide,
    drains,
    finds,
    instance_of,
    node_of,
    waits,
    world,
)

S = IntentState
NAN, INF = float("nan"), float("inf")
NAIVE = datetime(2026, 1, 1)  # noqa: DTZ001 - without a zone is the point
HOSTILE = [5e-324, 1e-310, 1e-9, 0.0, -1.0, 1e308, 2.0**70, NAN, INF, -INF]


def shape(**amounts: Any) -> Shape:
    """Return a shape that no model has checked."""
    return Shape.model_construct(**{**ONE.model_dump(), **amounts})


def offer(cpus: float = 4, price: Decimal | None = Decimal("0.01"), **changes: Any) -> Offer:
    """Return an offer that nothing has checked."""
    made = object.__new__(Offer)
    has = object.__new__(Resources)
    for name, value in {"cpus": cpus, "memory_mb": 8192, "disk_mb": 80_000, "gpus": 0}.items():
        object.__setattr__(has, name, value)
    values = {"type": "bad", "location": "here", "resources": has, "price_per_hour": price, "available": True}
    for name, value in (values | {"gone_after": None} | changes).items():
        object.__setattr__(made, name, value)
    return made


# -- wishes -----------------------------------------------------------------------------------------------------------


def test_a_wish_for_next_to_nothing_is_served() -> None:
    seen = world(waiting=[DemandItem(shape(cpus=5e-324), count=53)])
    assert boots(acts(seen)) == ["small@there"]
    assert WaitKind.NOT_UNDERSTOOD not in waits(seen).values()


@pytest.mark.parametrize("cpus", [NAN, INF, -1.0, 1e308, None, "many"])
def test_a_wish_that_cannot_be_counted_with_is_left_out_and_told(cpus: object) -> None:
    seen = world(waiting=[DemandItem(shape(cpus=cpus)), DemandItem(ONE)])
    assert boots(acts(seen)) == ["small@there"]
    assert waits(seen)["demand"] is WaitKind.NOT_UNDERSTOOD
    assert boots(acts(world(waiting=[DemandItem(shape(cpus=cpus))]))) == []


@pytest.mark.parametrize("count", [0, -5, 2**70])
def test_a_wish_for_an_impossible_number_is_left_out(count: int) -> None:
    seen = world(waiting=[DemandItem(ONE, count=count), DemandItem(ONE)])
    assert boots(acts(seen)) == ["small@there"]
    assert waits(seen)["demand"] is WaitKind.NOT_UNDERSTOOD


def test_many_bad_wishes_are_told_in_one_sentence() -> None:
    told = [
        wait for wait in decide(world(waiting=[DemandItem(shape(cpus=NAN))] * 500)).waits if wait.subject == "demand"
    ]
    assert len(told) == 1


def test_a_bad_wish_keeps_no_pool_from_scaling_down() -> None:
    row = an_intent(S.READY)
    idle = node_of(row, idle_since=NOW - 1000)
    assert drains(world(row, nodes=(idle,), waiting=[DemandItem(shape(cpus=NAN))])) == ["op1"]


# -- nodes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("total", [shape(cpus=NAN), shape(memory_mb=INF), shape(disk_mb=-1), shape(slots=None)])
def test_a_node_whose_totals_are_garbage_counts_for_nothing_and_its_pool_is_not_scaled_down(total: Shape) -> None:
    rows = an_intent(S.READY, 1), an_intent(S.READY, 2)
    idle = [node_of(row, idle_since=NOW - 1000) for row in rows]
    assert len(drains(world(*rows, nodes=tuple(idle)))) == 1
    seen = world(*rows, nodes=(replace(idle[0], total=total), idle[1]))
    assert drains(seen) == []
    assert waits(seen)["node node-op1"] is WaitKind.NOT_UNDERSTOOD
    crowded = world(*rows, nodes=(replace(idle[0], total=total), idle[1]), waiting=[DemandItem(FULL, count=2)])
    assert len(boots(acts(crowded))) == 1, "the wish that does not fit on the good node gets a new one"


def test_a_drained_node_of_a_doubted_pool_stays_and_a_failed_boot_still_goes() -> None:
    drained, late = an_intent(S.DRAINING, 1, drain_mark=NOW - 10), an_intent(S.BOOTING, 2, deadline=NOW - 1)
    other = an_intent(S.READY, 3)
    closed = replace(node_of(drained), state=node_of(drained).state.DRAINING)
    bad = node_of(other, total=shape(cpus=NAN))
    good = [
        each for each in acts(world(drained, late, other, nodes=(closed, node_of(other)))) if isinstance(each, Stop)
    ]
    seen = world(drained, late, other, nodes=(closed, bad))
    assert [each.operation_id for each in good] == ["op1", "op2"]
    assert [each.operation_id for each in acts(seen) if isinstance(each, Stop)] == ["op2"]


def test_a_node_that_is_not_understood_is_neither_lost_nor_a_lesson() -> None:
    row = an_intent(S.READY)
    seen = world(row, nodes=(node_of(row, total=shape(cpus=NAN)),), unknown_nodes_before={"op1": 1e6})
    assert [each for each in finds(seen) if isinstance(each, Move | Learn)] == []


# -- pools, providers and rows ----------------------------------------------------------------------------------------


def test_an_offer_that_is_garbage_leaves_the_others_on_sale() -> None:
    bad = [offer(NAN), offer(INF), offer(-1), offer(price=Decimal("NaN")), offer(price=0.1), offer(type=None), object()]
    bad += [offer(gone_after="soon"), offer(gone_after=NAIVE)]
    good, doubts = understood_offers([*bad, SMALL], "cloud")  # type: ignore[list-item]
    assert good == (SMALL,)
    assert len(doubts) == len(bad)


def test_a_pool_whose_offers_break_the_plan_is_left_out_and_the_other_pool_grows() -> None:
    row = an_intent(S.READY)
    idle = node_of(row, idle_since=NOW - 1000)
    other = a_pool(name="other", provider="second")
    seen = world(row, nodes=(idle,), offers=(offer(INF),), waiting=[DemandItem(replace_cpus(3)), DemandItem(FULL)] * 2)
    second = replace(seen.providers["cloud"], offers=(SMALL,), instances=())
    both = replace(seen, providers={**seen.providers, "second": second})
    done = decide(both, a_pool(), other)
    assert {action.pool for action in done.actions if isinstance(action, Boot)} == {"other"}
    assert not any(isinstance(action, Drain) for action in done.actions)
    assert {wait.subject: wait.kind for wait in done.waits}["pool cpu"] is WaitKind.NOT_UNDERSTOOD


def replace_cpus(cpus: float) -> Shape:
    """Return the usual shape with so many cores."""
    return ONE.model_copy(update={"cpus": cpus})


@pytest.mark.parametrize(
    "change",
    [
        {"id": None}, {"name": 5}, {"labels": None}, {"labels": {"a": 1}}, {"phase": "running"}, {"created_at": None},
        {"created_at": NAIVE}, {"created_at": 5}, {"expires_at": "never"}, {"progress_at": NAN},
    ],
)  # fmt: skip
def test_a_listing_with_one_garbled_machine_is_no_listing(change: dict[str, Any]) -> None:
    listed = instance_of(an_intent(S.READY))
    assert unclear_listing(Inventory((listed,), at(0))) is None
    assert unclear_listing(Inventory((listed, replace(listed, **change)), at(0))) is not None


def test_a_listing_without_a_time_is_no_listing() -> None:
    assert unclear_listing(Inventory((), NAIVE)) is not None
    assert unclear_listing(Inventory((), datetime(2026, 1, 1, tzinfo=UTC), leftovers=(None,))) is not None  # type: ignore[arg-type]


def test_a_row_that_no_rule_understands_is_told_and_the_others_move_on() -> None:
    odd, lost = an_intent(S.BOOTING, 1, deadline=None), an_intent(S.READY, 2)
    seen = world(odd, lost, instances=(instance_of(odd),), missing_before=frozenset({lost.sighting}))
    found = settle(seen, FleetPolicy("test", (a_pool(boot_seconds=None),)), NOW)
    assert [each.subject for each in found if isinstance(each, Doubt)] == [odd.name]
    assert [each.to for each in found if isinstance(each, Move)] == [S.LOST]
    after = applied(seen, found, NOW)
    assert [each.subject for each in after.doubts] == [odd.name]
    told = {wait.subject: wait.kind for wait in plan(after, FleetPolicy("test", (a_pool(),)), NOW).waits}
    assert told[odd.name] is WaitKind.NOT_UNDERSTOOD


# -- whatever comes ---------------------------------------------------------------------------------------------------

numbers = st.sampled_from(HOSTILE) | st.floats() | st.integers(-(2**80), 2**80)
hostile_shapes = st.builds(shape, cpus=numbers, memory_mb=numbers, disk_mb=numbers, gpus=numbers, slots=numbers)
wishes = st.builds(
    DemandItem,
    hostile_shapes | st.just(ONE),
    runtime=st.sampled_from([None, "runsc", "docker", "nonsense"]),
    count=st.sampled_from([1, 3, 0, -1, 2**80]),
    since=st.none() | st.sampled_from([NOW, NAN, INF, -INF, 1e308]),
)
prices = st.sampled_from([None, Decimal("0.01"), Decimal("NaN"), Decimal("Infinity"), Decimal("-1"), Decimal("1e-400")])


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_no_number_stops_the_plan(data: st.DataObject) -> None:
    rows = [
        an_intent(
            data.draw(st.sampled_from([S.READY, S.BOOTING, S.DRAINING, S.CALLING])),
            number,
            created_at=data.draw(st.sampled_from([NOW - 50, NAN, INF, -INF])),
            changed_at=data.draw(st.sampled_from([NOW - 50, NAN, -INF])),
            price=data.draw(prices),
        )
        for number in (1, 2)
    ]
    nodes = tuple(
        node_of(
            row,
            total=data.draw(hostile_shapes | st.just(FULL)),
            reserved=data.draw(hostile_shapes | st.just(ONE)),
            idle_since=data.draw(st.sampled_from([NOW - 1000, NAN, INF, None])),
            heartbeat_at=data.draw(st.sampled_from([NOW, NAN, -INF, None])),
        )
        for row in rows
    )
    offers = tuple(offer(data.draw(numbers), data.draw(prices), type=f"t{n}") for n in range(2))
    seen = world(*rows, nodes=nodes, waiting=data.draw(st.lists(wishes, max_size=4)), offers=offers, caps=CAPS)
    # A second cloud that is well, and a sandbox that only its pool can run.
    other = a_pool(name="other", provider="second")
    second = replace(seen.providers["cloud"], offers=(SMALL,), instances=())
    seen = replace(
        seen,
        providers={**seen.providers, "second": second},
        waiting=(*seen.waiting, DemandItem(ONE, pool="other", since=NOW)),
    )
    rules = FleetPolicy("test", (a_pool(max_hourly=Decimal(5)), other), creates_per_tick=10)
    found = settle(seen, rules, NOW)
    done = plan(applied(seen, found, NOW), rules, NOW)
    assert "other" in {action.pool for action in done.actions if isinstance(action, Boot)}
    doubted = {wait.subject for wait in done.waits if wait.kind is WaitKind.NOT_UNDERSTOOD} & {n.id for n in nodes}
    if doubted:
        assert not [each for each in done.actions if isinstance(each, Drain)]
