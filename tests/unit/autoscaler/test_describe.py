"""What operators are shown: sentences with units, names in place of operation ids, and what each pool may buy."""

from decimal import Decimal

import pytest

from autoscaler import describe
from autoscaler.core.actions import (
    Action,
    Boot,
    BootExtended,
    BootStarted,
    CancelDrain,
    Drain,
    Finding,
    Forget,
    Learn,
    Move,
    Retry,
    Stop,
    Sweep,
)
from autoscaler.core.pools import OfferKey, PoolPolicy
from autoscaler.core.states import IntentState
from gateway.wire.resources import Shape
from providers.base import Applied, ErrorKind, Offer, Resources
from providers.testing.fake import FakeCloud, FakeProvider

NAMES = {"op1": "fleet-cpu-op1"}
PLAIN = OfferKey("plain", "attic")


@pytest.mark.parametrize(
    ("action", "said"),
    [
        (
            Boot("cpu", "drawer", PLAIN, 300.0, "why", price=Decimal("0.0200")),
            "boot a node of pool cpu: plain@attic of drawer, 0.02 €/h, 300 s to run",
        ),
        (
            Boot("cpu", "drawer", PLAIN, 300.0, "why"),
            "boot a node of pool cpu: plain@attic of drawer, price unknown, 300 s to run",
        ),
        (Retry("op1", "why"), "create instance fleet-cpu-op1"),
        (Drain("op1", "n1", "why"), "close node n1 of fleet-cpu-op1 to new sandboxes"),
        (CancelDrain("op1", "n1", "why"), "open node n1 of fleet-cpu-op1 again"),
        (Stop("op1", "why"), "delete instance fleet-cpu-op1"),
        (Stop("op2", "why"), "delete instance op2"),
        (Sweep("drawer", "17", "why"), "delete 17 at drawer"),
        (Forget("n1", "why"), "forget node n1"),
    ],
)
def test_an_action_is_a_sentence(action: Action, said: str) -> None:
    assert describe.action(action, NAMES) == said


@pytest.mark.parametrize(
    ("finding", "said"),
    [
        (Move("op1", IntentState.READY, "why"), "instance fleet-cpu-op1 is ready"),
        (BootStarted("op1", 0.0, "why"), "instance fleet-cpu-op1 runs; its node must register by 1970-01-01 00:00:00Z"),
        (BootExtended("op1", 0.0, "why"), "instance fleet-cpu-op1 is still booting; it has until 1970-01-01 00:00:00Z"),
        (
            Learn("cpu", "plain", "", Shape(cpus=4.0, memory_mb=8192, disk_mb=40_000)),
            "a node of pool cpu on plain has 4 CPUs, 8192 MiB, 40000 MiB disk",
        ),
    ],
)
def test_a_finding_is_a_sentence(finding: Finding, said: str) -> None:
    assert describe.finding(finding, NAMES) == said


# -- what pools may buy -----------------------------------------------------------------------------------------------


class Broken(FakeProvider):
    def offers(self) -> list[Offer]:
        raise KeyError("price")


def pool(*offers: str, provider: str = "fake", gpus: int = 0) -> PoolPolicy:
    keys = tuple(OfferKey(*offer.split("@")) for offer in offers)
    return PoolPolicy(name="cpu", provider=provider, role="sandbox", min=0, max=1, offers=keys, gpus=gpus)


def market_of(asked: PoolPolicy, provider: FakeProvider | None = None) -> tuple[list[str], str]:
    made = {"fake": provider or FakeProvider(FakeCloud(), "d")}
    found = describe.market([asked], made, {"cloudy": "provider cloudy: no token"})["cpu"]
    return [f"{offer.type}@{offer.location}" for offer in found.offers], found.problem


@pytest.mark.parametrize(
    ("asked", "offers", "problem"),
    [
        (pool(), ["small@here", "small@there", "large@here", "gpu@here"], ""),
        (pool(gpus=1), ["gpu@here"], ""),
        (pool("large@here", "small@here"), ["large@here", "small@here"], ""),
        (
            pool("smal@here", "large@here"),
            ["large@here"],
            "fake does not sell smal@here; it sells small@here, large@here, small@there, gpu@here",
        ),
        (pool(provider="cloudy"), [], "provider cloudy: no token"),
    ],
)
def test_a_pool_may_buy_what_it_names_and_its_provider_sells(
    asked: PoolPolicy, offers: list[str], problem: str
) -> None:
    assert market_of(asked) == (offers, problem)


def test_of_many_offers_a_few_are_named() -> None:
    many = tuple(Offer(f"t{n}", "here", FakeCloud().offers[0].resources, None, available=True) for n in range(9))
    _, problem = market_of(pool("x@here"), FakeProvider(FakeCloud(offers=many), "d"))
    assert problem == "fake does not sell x@here; it sells t0@here, t1@here, t2@here, t3@here and 5 more"


def test_a_provider_without_offers_is_a_problem() -> None:
    assert market_of(pool("x@here"), FakeProvider(FakeCloud(offers=()), "d")) == ([], "fake lists no offers")


def test_a_provider_that_refuses_is_a_problem() -> None:
    cloud = FakeCloud()
    cloud.fail_next("offers", ErrorKind.AUTH, Applied.NO)
    assert market_of(pool(), FakeProvider(cloud, "d")) == ([], "fake cannot be asked: fake: offers answered auth")


def test_a_broken_plugin_is_a_problem_that_names_its_line() -> None:
    offers, problem = market_of(pool(), Broken(FakeCloud(), "d"))
    assert offers == []
    assert problem.startswith("fake is broken: KeyError: 'price' (")
    assert "test_describe.py, line " in problem


@pytest.mark.parametrize(
    ("cpus", "price", "why"),
    [(-4, "0.01", "no machine can have Resources(cpus=-4,"), (4, "-0.01", "small in here cannot cost -0.01 euro")],
)
def test_an_impossible_offer_is_its_providers_fault(cpus: int, price: str, why: str) -> None:
    class Absurd(FakeProvider):
        def offers(self) -> list[Offer]:
            return [Offer("small", "here", Resources(cpus, 8192, 81920), Decimal(price), available=True)]

    offers, problem = market_of(pool(), Absurd(FakeCloud(), "d"))
    assert offers == []
    assert problem.startswith(f"fake is broken: ValueError: {why}")
