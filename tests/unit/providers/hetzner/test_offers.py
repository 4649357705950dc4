"""The catalogue, as it is now."""

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from providers.base import ErrorKind, Offer, ProviderError, Scope
from tests.unit.providers.hetzner.lab import Lab, order


def offers(lab: Lab, **settings: object) -> dict[tuple[str, str], Offer]:
    return {(offer.type, offer.location): offer for offer in lab.provider(**settings).offers()}


def test_an_offer_is_what_a_guest_gets(lab: Lab) -> None:
    offer = offers(lab)["cpx62", "fsn1"]
    assert offer.resources.cpus == 16
    # A guest of the 32 GB type was seen with 31,326 MiB, and its 640 GB are 596 GiB.
    assert 30_000 < offer.resources.memory_mb <= 31_326
    assert offer.resources.disk_mb // 1024 == 596
    assert offer.resources.gpus == 0


def test_the_price_is_net_and_includes_the_address(lab: Lab) -> None:
    assert offers(lab)["cx33", "fsn1"].price_per_hour == Decimal("0.0088")
    assert offers(lab, ipv4=False)["cx33", "fsn1"].price_per_hour == Decimal("0.0080")


def test_offers_are_filtered_by_the_settings(lab: Lab) -> None:
    everything = offers(lab)
    assert {kind for kind, _ in everything} == {"cx23", "cx33", "cx43", "cpx42", "cpx62", "ccx33"}
    assert {kind for kind, _ in offers(lab, architecture="arm")} == {"cax21"}
    assert set(offers(lab, types=("cx33", "cpx42"), locations=("hel1", "ash"))) == {
        ("cx33", "hel1"),
        ("cpx42", "hel1"),
        ("cpx42", "ash"),
    }


def test_a_sold_out_type_is_an_unavailable_offer(lab: Lab) -> None:
    lab.cloud.ask("offer", type="cx33", location="fsn1", available=False)
    assert not offers(lab)["cx33", "fsn1"].available
    assert offers(lab)["cx33", "nbg1"].available
    with pytest.raises(ProviderError) as caught:
        lab.provider().create(order(type="cx33", location="fsn1"))
    assert (caught.value.kind, caught.value.scope) == (ErrorKind.CAPACITY, Scope.OFFER)


def test_a_deprecated_offer_has_an_end_and_is_unavailable_after_it(lab: Lab) -> None:
    gone = {"announced": "2029-12-01T00:00:00Z", "unavailable_after": "2030-01-02T00:00:00Z"}
    lab.cloud.ask("offer", type="cx33", location="fsn1", deprecation=gone)
    before = offers(lab)["cx33", "fsn1"]
    assert (before.available, before.gone_after) == (True, datetime(2030, 1, 2, tzinfo=UTC))
    lab.advance(86_400)
    assert not offers(lab)["cx33", "fsn1"].available


def test_a_withdrawn_type_is_a_config_error(lab: Lab) -> None:
    lab.cloud.ask("withdraw", type="cx33")
    assert ("cx33", "fsn1") not in offers(lab)
    with pytest.raises(ProviderError) as caught:
        lab.provider().create(order(type="cx33"))
    assert caught.value.kind is ErrorKind.CONFIG
