"""Provider polls in real threads; a call hangs until the test lets it go."""

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from autoscaler.lanes import SerialLanes, ThreadLanes
from autoscaler.provider_polling import FRESH_SECONDS, OFFERS_RETRY_SECONDS, OFFERS_SECONDS, Pace, ProviderPoller
from providers.base import Applied, ErrorKind, Inventory
from providers.testing.fake import FakeCloud, FakeProvider
from tests.unit.autoscaler.clocks import HandClock

SOON = 20.0


class Hanging(FakeProvider):
    """Its listings wait until they are let go."""

    def __init__(self) -> None:
        super().__init__(FakeCloud(), "test")
        self.let_go = threading.Event()

    def list(self) -> Inventory:
        found = super().list()
        assert self.let_go.wait(SOON)
        return found


@pytest.fixture
def lanes() -> Iterator[ThreadLanes]:
    made = ThreadLanes()
    yield made
    made.close()


@pytest.fixture
def two() -> Iterator[tuple[Hanging, HandClock, ProviderPoller]]:
    hanging, clock = Hanging(), HandClock(steady=0.0)
    providers = {"hangs": hanging, "works": FakeProvider(FakeCloud(), "test")}
    yield hanging, clock, ProviderPoller(providers, clock, Pace(look_seconds=0.0))
    hanging.let_go.set()


def begin(poller: ProviderPoller, lanes: ThreadLanes) -> int:
    """Begins a look, and awaits the provider that works; how many were to be waited for."""
    begun = poller.begin(lanes)
    begun[-1].result(SOON)
    return len(begun)


def test_a_hanging_provider_is_blind_and_called_once(
    two: tuple[Hanging, HandClock, ProviderPoller], lanes: ThreadLanes
) -> None:
    hanging, clock, poller = two
    assert begin(poller, lanes) == 2
    views = poller.views()
    assert views["hangs"].instances is None
    assert "not ended after 0 s" in views["hangs"].problem
    assert views["works"].instances == ()
    for seconds in (10.0, 20.0):
        clock.steady = seconds
        assert begin(poller, lanes) == 1, "the other only"
        views = poller.views()
        assert f"not ended after {seconds:.0f} s" in views["hangs"].problem
        assert views["works"].instances == ()
    assert hanging.cloud.calls.count("list") == 1


def test_a_late_listing_is_used_by_the_next_poll(
    two: tuple[Hanging, HandClock, ProviderPoller], lanes: ThreadLanes
) -> None:
    hanging, clock, poller = two
    begin(poller, lanes)
    late = poller._pending["hangs"].future
    assert poller.views()["hangs"].instances is None
    hanging.let_go.set()
    late.result(SOON)
    clock.steady = FRESH_SECONDS
    assert begin(poller, lanes) == 1
    assert poller.views()["hangs"].instances == ()
    assert hanging.cloud.calls.count("list") == 1


def test_a_stale_listing_is_repeated(two: tuple[Hanging, HandClock, ProviderPoller], lanes: ThreadLanes) -> None:
    hanging, clock, poller = two
    begin(poller, lanes)
    late = poller._pending["hangs"].future
    poller.views()
    hanging.let_go.set()
    late.result(SOON)
    clock.steady = FRESH_SECONDS + 1
    poller.begin(lanes)
    poller._pending["hangs"].future.result(SOON)
    assert poller.views()["hangs"].instances == ()
    assert hanging.cloud.calls.count("list") == 2


def test_a_late_provider_is_awaited_again_once_it_was_in_time(
    two: tuple[Hanging, HandClock, ProviderPoller], lanes: ThreadLanes
) -> None:
    hanging, _, poller = two
    begin(poller, lanes)
    late = poller._pending["hangs"].future
    poller.views()
    hanging.let_go.set()
    late.result(SOON)
    poller.views()
    assert begin(poller, lanes) == 2


def test_a_provider_is_blind_while_its_lane_is_busy(
    two: tuple[Hanging, HandClock, ProviderPoller], lanes: ThreadLanes
) -> None:
    _, _, poller = two
    let_go = threading.Event()
    lanes.start("works", lambda: let_go.wait(SOON))
    poller.begin(lanes)
    assert poller.views()["works"].instances is None
    let_go.set()


def test_a_pause_that_ends_while_others_are_awaited_still_counts(lanes: ThreadLanes) -> None:
    clock, provider = HandClock(steady=0.0), FakeProvider(FakeCloud(), "test")
    provider.caps = replace(provider.caps, calls_per_hour=3600)  # type: ignore[misc]
    poller = ProviderPoller({"counts": provider}, clock, Pace(list_seconds=10.0))
    begin(poller, lanes)
    assert poller.views()["counts"].instances == ()
    clock.steady = 9.9
    assert poller.begin(lanes) == []
    clock.steady = 10.1
    assert poller.views()["counts"].is_resting
    assert begin(poller, lanes) == 1


def test_a_failing_catalogue_is_not_fetched_at_every_poll() -> None:
    clock, cloud = HandClock(steady=0.0), FakeCloud()
    poller = ProviderPoller({"works": FakeProvider(cloud, "test")}, clock, Pace())
    cloud.fail_next("offers", ErrorKind.TRANSIENT, Applied.NO)
    asked: list[int] = []
    for seconds in (0.0, OFFERS_RETRY_SECONDS - 0.1, OFFERS_RETRY_SECONDS, OFFERS_RETRY_SECONDS + OFFERS_SECONDS - 0.1):
        clock.steady = seconds
        poller.begin(SerialLanes())
        assert poller.views()["works"].instances == ()
        asked.append(cloud.calls.count("offers"))
    assert asked == [1, 1, 2, 2]
