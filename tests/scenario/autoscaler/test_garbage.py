"""Garbage from one client, one node or one cloud: the others live on, and it is told where an operator looks."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from autoscaler.core.world import BackOffKind
from gateway.wire.resources import Shape
from providers.base import Inventory, Offer
from providers.testing.fake import FakeProvider
from tests.scenario.autoscaler.fleet import Fleet, pool


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(tmp_path, pool(), pool(name="other", provider="second"), creates_per_tick=4)
    yield made
    made.journal.close()


def garbled(*, offers: bool = False, listing: bool = False) -> type[FakeProvider]:
    """Return a provider that answers with garbage."""

    class Garbled(FakeProvider):
        def offers(self) -> list[Offer]:
            good = super().offers()
            return [None, 5, object(), *good] if offers else good  # type: ignore[list-item]

        def list(self) -> Inventory:
            found = super().list()
            return replace(found, taken_at=datetime(2026, 1, 1)) if listing else found  # noqa: DTZ001

    return Garbled


def doubts(fleet: Fleet) -> set[str]:
    """Return what `sandboxes autoscaler status` shows as left out."""
    return {key.owner for key in fleet.journal.backoffs() if key.kind is BackOffKind.DOUBT}


def test_a_wish_of_an_older_gateway_stops_no_tick(two: Fleet) -> None:
    two.gateway.prepare("old", 53, Shape(cpus=5e-324, memory_mb=1024, disk_mb=1024, slots=1), 86_400)
    (sandbox,) = two.ask()
    two.until(lambda: sandbox in two.gateway.placed)


def test_a_wish_that_is_garbage_is_told_and_the_others_are_served(two: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    bad = Shape.model_construct(cpus=float("inf"), memory_mb=1024, disk_mb=1024, gpus=0, slots=1)
    two.gateway.prepare("bad", 1, bad, 600)
    (sandbox,) = two.ask()
    with caplog.at_level(logging.WARNING):
        two.until(lambda: sandbox in two.gateway.placed)
        for _ in range(20):
            two.tick()
    assert doubts(two) == {"demand"}
    assert len([each for each in caplog.records if each.message.startswith("demand: ")]) == 1
    two.gateway.prepared.clear()
    two.tick()
    assert doubts(two) == set()


def test_a_cloud_with_garbled_offers_sells_the_rest(two: Fleet) -> None:
    two.providers["fake"] = garbled(offers=True)(two.clouds["fake"], two.policy.deployment)
    two.restart()
    (sandbox,) = two.ask()
    two.until(lambda: sandbox in two.gateway.placed)
    assert len(doubts(two)) == 3
    assert two.reports[-1].world.providers["fake"].offers


def test_a_cloud_with_a_garbled_listing_is_blind_and_loses_nothing(two: Fleet) -> None:
    first = two.ask(1)
    two.until(lambda: first[0] in two.gateway.placed)
    machines = set(two.clouds["fake"].machines)
    two.providers["fake"] = garbled(listing=True)(two.clouds["fake"], two.policy.deployment)
    two.restart()
    more = two.ask(8)
    two.until(lambda: two.clouds["second"].machines != {})
    two.gateway.finish(first[0])
    for _ in range(80):
        two.tick()
    assert set(two.clouds["fake"].machines) == machines
    assert any(sandbox in two.gateway.placed for sandbox in more)


def test_a_node_that_reports_garbage_is_kept_and_told(two: Fleet) -> None:
    (sandbox,) = two.ask()
    two.until(lambda: sandbox in two.gateway.placed)
    two.gateway.finish(sandbox)
    (node,) = two.gateway.records
    bad = Shape.model_construct(cpus=float("nan"), memory_mb=1, disk_mb=1, gpus=0, slots=1)
    good = two.gateway.records[node].total
    two.gateway.records[node] = two.gateway.records[node].model_copy(update={"total": bad})
    for _ in range(80):
        two.tick()
    assert doubts(two) == {f"node {node}"}
    assert "deleting" not in two.states()
    two.gateway.records[node] = two.gateway.records[node].model_copy(update={"total": good})
    two.until(lambda: not two.states())
