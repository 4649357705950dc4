"""One plan from start to end: blind spots, the order of actions, and what stands in for a refusal."""

from dataclasses import replace
from decimal import Decimal

import pytest

from autoscaler.core.actions import Boot, CancelDrain, Plan, RefusalKind, Retry, Stop, WaitKind
from autoscaler.core.plan import fallback
from autoscaler.core.pools import FleetPolicy, OfferKey, PoolPolicy
from autoscaler.core.states import IntentState
from autoscaler.core.world import World
from gateway.wire.states import NodeState
from tests.unit.autoscaler.builders import (
    CAPS,
    NOW,
    a_pool,
    acts,
    an_intent,
    boots,
    busy,
    decide,
    held_back,
    instance_of,
    node_of,
    offer_key,
    waits,
    world,
)

S = IntentState
W = WaitKind

# -- blind spots ------------------------------------------------------------------------------------------------------


def test_a_blind_provider_boots_nothing() -> None:
    seen = world(waiting=1, instances=None)
    assert acts(seen, a_pool(min=1)) == ()
    assert waits(seen)["provider cloud"] is W.BLIND_PROVIDER


def test_without_a_gateway_nothing_is_scaled_but_what_failed_still_goes() -> None:
    seen = replace(world(an_intent(S.LOST), instances=(), waiting=5), nodes=None)
    assert acts(seen, a_pool(min=1)) == (Stop("op1", "", boot_failed=True),)
    assert waits(seen, a_pool(min=1)) == {"fleet": W.NO_GATEWAY}


def test_before_every_node_has_reported_nothing_is_changed() -> None:
    seen = world(an_intent(S.LOST), instances=(), waiting=5, synced=False)
    assert acts(seen, a_pool(min=1)) == ()
    assert waits(seen) == {"fleet": W.NOT_SYNCED}


def test_rows_that_the_settings_have_lost_are_reported_and_run_on() -> None:
    foreign = an_intent(S.READY, 1, provider="gone")
    pooled = an_intent(S.READY, 2, pool="gone")
    seen = world(foreign, pooled, nodes=(busy(foreign), busy(pooled)), instances=(instance_of(pooled),))
    assert acts(seen) == ()
    assert waits(seen) == {foreign.name: W.UNKNOWN_PROVIDER, pooled.name: W.UNKNOWN_POOL}


# -- creates without an answer ----------------------------------------------------------------------------------------


def test_a_planned_row_is_called() -> None:
    assert acts(world(an_intent(S.PLANNED))) == (Retry("op1", ""),)


def test_a_create_without_an_answer_is_sent_again_when_its_time_has_come() -> None:
    again = an_intent(S.CALLING, attempts=1, next_try_at=NOW + 5)
    assert acts(world(again)) == ()
    assert waits(world(again)) == {again.name: W.RETRY_LATER}
    assert acts(world(replace(again, next_try_at=NOW))) == (Retry("op1", ""),)


def test_without_unique_names_a_create_is_sent_again_after_two_listings_without_it() -> None:
    again = an_intent(S.CALLING, attempts=1)
    loose = replace(CAPS, unique_names=False)
    assert acts(world(again, caps=loose)) == ()
    assert waits(world(again, caps=loose)) == {again.name: W.SECOND_LISTING}
    seen = world(again, caps=loose, missing_before=frozenset({again.sighting}))
    assert acts(seen) == (Retry("op1", ""),)
    jumped = replace(seen, clock_settled=False)
    assert acts(jumped) == (), "how long it was under way is not known"
    assert waits(jumped) == {again.name: W.CLOCK_JUMP}


# -- the order of actions ---------------------------------------------------------------------------------------------


def test_what_is_opened_again_is_not_deleted() -> None:
    row = an_intent(S.DRAINING, drain_mark=NOW - 10)
    seen = world(row, nodes=(node_of(row, state=NodeState.DRAINING),))
    assert [type(action) for action in acts(seen)] == [Stop]
    wanted = replace(seen, waiting=world(waiting=1).waiting)
    assert [type(action) for action in acts(wanted)] == [CancelDrain]


def test_room_is_made_before_it_is_taken() -> None:
    lost = an_intent(S.LOST, 1, node_id="node-op1")
    called = an_intent(S.PLANNED, 2)
    seen = world(lost, called, instances=(), waiting=9)
    assert [type(action) for action in acts(seen)] == [Stop, Retry, Boot]


# -- what stands in for a refused boot --------------------------------------------------------------------------------


@pytest.fixture
def refused() -> Boot:
    (boot,) = acts(world(waiting=1))
    assert isinstance(boot, Boot)
    return boot


def instead(seen: World, refused: Boot, pool: PoolPolicy) -> Plan:
    return fallback(seen, FleetPolicy("test", (pool,)), NOW, refused)


def test_a_refused_offer_gives_way_to_the_next_that_fits(refused: Boot) -> None:
    seen = held_back(world(waiting=1), offer_key("small@there"))
    assert boots(instead(seen, refused, a_pool()).actions) == ["small@here"]


def test_a_fallback_that_finds_nothing_says_why(refused: Boot) -> None:
    found = instead(world(offers=(), waiting=1), refused, a_pool())
    assert (found.actions, [(wait.subject, wait.kind) for wait in found.waits]) == (
        (),
        [("pool cpu", RefusalKind.UNSOLD)],
    )


def test_a_fallback_keeps_the_caps(refused: Boot) -> None:
    seen = held_back(world(waiting=1), offer_key("small@there"))
    assert instead(seen, refused, a_pool(max_hourly=Decimal("0.006"))).actions == ()


# -- sentences --------------------------------------------------------------------------------------------------------


def test_reasons_are_sentences_for_people() -> None:
    pool = a_pool(offers=(OfferKey("small", "here"),), max_price=Decimal("0.001"))
    (boot,) = acts(world(waiting=1))
    assert boot.reason == "nothing has room for 1 cpus, 1024 MiB, 1024 MiB disk (gvisor)"
    dear = decide(world(waiting=2), pool)
    assert [wait.reason for wait in dear.waits] == ["small@here costs 0.01 €/h, more than 0.001 (2 waiting)"]
    full = decide(world(an_intent(S.DELETING), waiting=1), a_pool(max=1))
    assert [wait.reason for wait in full.waits] == [
        "it is being deleted: ",
        "the pool has 1 of at most 1 instances (1 waiting)",
    ]
    row = an_intent(S.READY)
    idle = decide(world(row, nodes=(node_of(row, idle_since=NOW - 60),)))
    assert [wait.reason for wait in idle.waits] == ["it is idle; it is closed in 40 s"]
