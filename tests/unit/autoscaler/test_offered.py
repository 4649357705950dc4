"""What `pools` tells of a provider's offers: all that a pool may buy, and why it is less than the settings name."""

from decimal import Decimal

import pytest

from autoscaler.core.pools import OfferKey, PoolPolicy
from autoscaler.offered import offered
from providers.base import Applied, ErrorKind, Offer, Resources
from providers.testing.fake import FakeCloud, FakeProvider


class Broken(FakeProvider):
    def offers(self) -> list[Offer]:
        raise KeyError("price")


def pool(*offers: str, provider: str = "fake", gpus: int = 0) -> PoolPolicy:
    keys = tuple(OfferKey(*offer.split("@")) for offer in offers)
    return PoolPolicy(name="cpu", provider=provider, role="sandbox", min=0, max=1, offers=keys, gpus=gpus)


def told(asked: PoolPolicy, provider: FakeProvider | None = None) -> tuple[list[str], str]:
    made = {"fake": provider or FakeProvider(FakeCloud(), "d")}
    found = offered([asked], made, {"cloudy": "provider cloudy: no token"})["cpu"]
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
def test_a_pool_is_told_what_it_may_buy(asked: PoolPolicy, offers: list[str], problem: str) -> None:
    assert told(asked) == (offers, problem)


def test_only_a_few_of_many_are_named() -> None:
    many = tuple(Offer(f"t{n}", "here", FakeCloud().offers[0].resources, None, available=True) for n in range(9))
    _, problem = told(pool("x@here"), FakeProvider(FakeCloud(offers=many), "d"))
    assert problem == "fake does not sell x@here; it sells t0@here, t1@here, t2@here, t3@here and 5 more"


def test_a_provider_that_sells_nothing_is_told() -> None:
    assert told(pool("x@here"), FakeProvider(FakeCloud(offers=()), "d")) == ([], "fake lists no offers")


def test_a_provider_that_refuses_is_told() -> None:
    cloud = FakeCloud()
    cloud.fail_next("offers", ErrorKind.AUTH, Applied.NO)
    assert told(pool(), FakeProvider(cloud, "d")) == ([], "fake cannot be asked: fake: offers answered auth")


def test_a_plugin_that_breaks_is_told_with_its_line() -> None:
    offers, problem = told(pool(), Broken(FakeCloud(), "d"))
    assert offers == []
    assert problem.startswith("fake is broken: KeyError: 'price' (")
    assert "test_offered.py, line " in problem


@pytest.mark.parametrize(
    ("cpus", "price", "why"),
    [(-4, "0.01", "no machine can have Resources(cpus=-4,"), (4, "-0.01", "small in here cannot cost -0.01 euro")],
)
def test_an_offer_that_cannot_be_is_its_own_provider_s_fault(cpus: int, price: str, why: str) -> None:
    class Absurd(FakeProvider):
        def offers(self) -> list[Offer]:
            return [Offer("small", "here", Resources(cpus, 8192, 81920), Decimal(price), available=True)]

    offers, problem = told(pool(), Absurd(FakeCloud(), "d"))
    assert offers == []
    assert problem.startswith(f"fake is broken: ValueError: {why}")
