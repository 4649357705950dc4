"""Several clouds at once: one that is down, blind, full or refused never stops another; offers stand in for others."""

from pathlib import Path

import pytest

from autoscaler.core import naming
from autoscaler.core.pools import OfferKey
from autoscaler.observe import Observer
from autoscaler.provider_polling import Pace
from providers.base import Applied, Create, ErrorKind, Scope
from tests.scenario.autoscaler.fleet import Fleet, pool

HERE, THERE = OfferKey("small", "here"), OfferKey("small", "there")


@pytest.fixture
def two(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path, pool(name="east", provider="east"), pool(name="west", provider="west"))


@pytest.fixture
def fleet_of_one(tmp_path: Path) -> Fleet:
    fleet = Fleet(tmp_path)
    (sandbox,) = fleet.ask()
    fleet.until(lambda: sandbox in fleet.gateway.placed)
    return fleet


def paced(fleet: Fleet, pace: Pace) -> None:
    fleet.reconciler._observer = Observer(
        fleet.providers, fleet.gateway, fleet.journal, fleet.clock, fleet.reconciler._observer._guard,
        policy=fleet.policy, pace=pace,
    )  # fmt: skip


def states(fleet: Fleet, name: str) -> list[str]:
    return [intent.state.value for intent in fleet.journal.open_intents() if intent.pool == name]


@pytest.mark.parametrize("kind", [ErrorKind.AUTH, ErrorKind.TRANSIENT, ErrorKind.RATE_LIMIT, ErrorKind.BUG])
def test_while_one_is_blind_the_other_grows_and_shrinks(two: Fleet, kind: ErrorKind) -> None:
    (sandbox,) = two.ask()
    two.until(lambda: sandbox in two.gateway.placed)
    assert states(two, "east") == ["ready"]
    for _ in range(500):
        two.clouds["east"].fail_next("list", kind, Applied.NO)
    more = two.ask(8)
    two.until(lambda: states(two, "west") == ["ready", "ready"])
    for name in [sandbox, *more]:
        two.gateway.finish(name)
    two.until(lambda: states(two, "west") == [])
    assert states(two, "east") == ["ready"], "what cannot be seen is left alone"
    assert len(two.clouds["east"].machines) == 1


@pytest.mark.parametrize("kind", [ErrorKind.QUOTA, ErrorKind.AUTH, ErrorKind.CONFIG])
def test_while_one_refuses_creates_the_other_grows_and_deletes_go_on(two: Fleet, kind: ErrorKind) -> None:
    (sandbox,) = two.ask()
    two.until(lambda: sandbox in two.gateway.placed)
    for _ in range(500):
        two.clouds["east"].fail_next("create", kind, Applied.NO)
    more = two.ask(8)
    two.until(lambda: states(two, "west") == ["ready", "ready"])
    for name in [sandbox, *more]:
        two.gateway.finish(name)
    two.until(lambda: not two.states())
    assert not any(cloud.machines for cloud in two.clouds.values())


def test_without_capacity_the_next_offer_is_taken_in_the_same_tick(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, pool(max=1, offers=(HERE, THERE)))
    fleet.cloud.fail_next("create", ErrorKind.CAPACITY, Applied.NO, scope=Scope.OFFER)
    fleet.ask()
    fleet.tick()
    assert [(i.type, i.location) for i in fleet.cloud.created] == [("small", "there")]
    assert [event.kind for event in fleet.journal.events(50) if event.subject.startswith("test-")] == [
        *("planned", "calling", "gone"),
        *("planned", "calling", "booting"),
    ]


@pytest.mark.parametrize("kind", [ErrorKind.QUOTA, ErrorKind.AUTH, ErrorKind.RATE_LIMIT])
def test_what_the_next_offer_shares_is_not_tried_there(tmp_path: Path, kind: ErrorKind) -> None:
    fleet = Fleet(tmp_path, pool(max=1, offers=(HERE, THERE)))
    fleet.cloud.fail_next("create", kind, Applied.NO, scope=Scope.OFFER)
    fleet.ask()
    fleet.tick()
    fleet.tick()
    assert fleet.cloud.calls.count("create") == 1


def test_nothing_stands_in_for_a_create_whose_outcome_is_unknown(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, pool(max=4, offers=(HERE, THERE)))
    fleet.cloud.fail_next("create", ErrorKind.CAPACITY, Applied.MAYBE, effect=False, scope=Scope.OFFER)
    (sandbox,) = fleet.ask()
    fleet.tick()
    assert fleet.states() == ["calling"]
    fleet.until(lambda: sandbox in fleet.gateway.placed)
    assert [(i.type, i.location) for i in fleet.cloud.created] == [("small", "here")]


def test_the_preferred_offer_is_taken_again_when_its_back_off_is_over(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, pool(max=4, offers=(HERE, THERE)))
    fleet.cloud.fail_next("create", ErrorKind.CAPACITY, Applied.NO, scope=Scope.OFFER)
    fleet.ask(4)
    fleet.until(lambda: fleet.states() == ["ready"])
    for _ in range(60):
        fleet.tick()
    fleet.ask(4)
    fleet.until(lambda: len(fleet.cloud.created) == 2)
    assert [i.location for i in fleet.cloud.created] == ["there", "here"]


def test_a_new_process_with_rows_waits_a_heartbeat_period_before_it_changes_anything(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, pool(min=1))
    fleet.until(lambda: fleet.states() == ["ready"])
    fleet.restart()
    paced(fleet, Pace(heartbeat_seconds=7.0))
    fleet.ask(20)
    seen = [bool(fleet.tick().plan.actions) for _ in range(6)]
    assert seen[:4] == [False] * 4
    assert any(seen)


def test_a_provider_that_counts_calls_is_listed_at_its_pace(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, pool(min=1))
    paced(fleet, Pace(list_seconds=10.0))
    for _ in range(30):
        fleet.tick()
    assert fleet.cloud.calls.count("list") == 6
    fleet.until(lambda: fleet.states() == ["ready"])
    assert len(fleet.cloud.created) == 1


def test_an_orphan_goes_although_its_provider_is_not_listed_at_every_look(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, pool(), orphan_seconds=60.0)
    paced(fleet, Pace(list_seconds=10.0))
    operation = "lostlostlost"
    name, labels = naming.instance_name("test", "old", operation), naming.labels("test", "old", "sandbox", operation)
    fleet.provider.create(Create(name, operation, "test", "old", "small", "here", "image", "", labels))
    fleet.until(lambda: not fleet.cloud.machines, 60)


def test_without_a_catalogue_nothing_is_bought_and_deletes_go_on(fleet_of_one: Fleet) -> None:
    fleet = fleet_of_one
    for name in [*fleet.gateway.placed]:
        fleet.gateway.finish(name)
    for _ in range(500):
        fleet.cloud.fail_next("offers", ErrorKind.RATE_LIMIT, Applied.NO)
    fleet.until(lambda: not fleet.cloud.machines and not fleet.states())


def test_gone_instances_are_paid_for_in_the_ledger(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    (sandbox,) = fleet.ask()
    fleet.until(lambda: sandbox in fleet.gateway.placed)
    fleet.gateway.finish(sandbox)
    fleet.until(lambda: not fleet.states())
    price = fleet.cloud.offers[0].price_per_hour
    assert fleet.journal.spent(fleet.clock.now()) == {"cpu": price}
    assert fleet.journal.spent(fleet.clock.now() + 40 * 86_400) == {}
