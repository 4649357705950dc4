"""Lanes, turns and listings with real threads; a call hangs until the test lets it go."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace

import pytest

from autoscaler.clock import DaemonClock
from autoscaler.lanes import SerialLanes, ThreadLanes, Turn, TurnOverError
from autoscaler.provider_polling import FRESH_SECONDS, OFFERS_RETRY_SECONDS, OFFERS_SECONDS, Pace, ProviderPoller
from providers.base import Applied, ErrorKind, Inventory
from providers.testing.fake import FakeCloud, FakeProvider

SOON = 20.0


class HandClock(DaemonClock):
    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


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


def ended(future: "Future[object] | None") -> object:
    assert future is not None
    return future.result(SOON)


# -- lanes ------------------------------------------------------------------------------------------------------------


def test_one_at_a_time_in_a_lane_and_several_side_by_side(lanes: ThreadLanes) -> None:
    let_go = threading.Event()
    hangs = lanes.start("one", lambda: let_go.wait(SOON))
    assert lanes.start("one", lambda: None) is None
    assert ended(lanes.start("two", lambda: 2)) == 2
    let_go.set()
    assert ended(hangs) is True
    assert ended(lanes.start("one", lambda: 1)) == 1


def test_a_lane_keeps_its_thread(lanes: ThreadLanes) -> None:
    first, second = (ended(lanes.start("one", threading.get_ident)) for _ in range(2))
    assert first == second != threading.get_ident()


def test_what_the_work_raises_reaches_who_waits(lanes: ThreadLanes) -> None:
    def broken() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        ended(lanes.start("one", broken))
    with pytest.raises(KeyError):
        SerialLanes().start("one", broken)
    assert ended(lanes.start("one", lambda: 1)) == 1


# -- turns ------------------------------------------------------------------------------------------------------------


def test_nothing_is_written_once_the_turn_is_over() -> None:
    turn = Turn()
    with turn.writing():
        pass
    turn.end()
    assert turn.is_over()
    with pytest.raises(TurnOverError), turn.writing():
        raise AssertionError
    with pytest.raises(TurnOverError), Turn(lambda: True).writing():
        raise AssertionError


def test_the_end_waits_for_who_is_writing(lanes: ThreadLanes) -> None:
    turn, inside, let_go, written = Turn(), threading.Event(), threading.Event(), list[str]()

    def write() -> None:
        with turn.writing():
            inside.set()
            assert let_go.wait(SOON)
            written.append("row")

    lanes.start("one", write)
    assert inside.wait(SOON)

    def end() -> list[str]:
        turn.end()
        return [*written]

    ending = lanes.start("two", end)
    let_go.set()
    assert ended(ending) == ["row"]


def test_limits_are_checked_by_one_lane_after_the_other(lanes: ThreadLanes) -> None:
    turn, rows, most = Turn(), list[int](), 5

    def fill(number: int) -> None:
        for _ in range(200):
            with turn.writing():
                if len(rows) < most:
                    rows.append(number)

    begun = [lanes.start(str(number), lambda number=number: fill(number)) for number in range(8)]  # type: ignore[misc]
    for future in begun:
        ended(future)
    assert len(rows) == most


# -- listings ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def two() -> Iterator[tuple[Hanging, HandClock, ProviderPoller]]:
    hanging, clock = Hanging(), HandClock()
    providers = {"hangs": hanging, "works": FakeProvider(FakeCloud(), "test")}
    yield hanging, clock, ProviderPoller(providers, clock, Pace(look_seconds=0.0))
    hanging.let_go.set()


def begin(poller: ProviderPoller, lanes: ThreadLanes) -> int:
    """Begins a look, and awaits the provider that works; how many were to be waited for."""
    begun = poller.begin(lanes)
    begun[-1].result(SOON)
    return len(begun)


def test_one_that_hangs_is_blind_and_called_once(
    two: tuple[Hanging, HandClock, ProviderPoller], lanes: ThreadLanes
) -> None:
    hanging, clock, poller = two
    assert begin(poller, lanes) == 2
    views = poller.views()
    assert views["hangs"].instances is None
    assert "not ended after 0 s" in views["hangs"].problem
    assert views["works"].instances == ()
    for seconds in (10.0, 20.0):
        clock.seconds = seconds
        assert begin(poller, lanes) == 1, "the other only"
        views = poller.views()
        assert f"not ended after {seconds:.0f} s" in views["hangs"].problem
        assert views["works"].instances == ()
    assert hanging.cloud.calls.count("list") == 1


def test_a_late_listing_is_used_by_the_next_look(
    two: tuple[Hanging, HandClock, ProviderPoller], lanes: ThreadLanes
) -> None:
    hanging, clock, poller = two
    begin(poller, lanes)
    late = poller._pending["hangs"].future
    assert poller.views()["hangs"].instances is None
    hanging.let_go.set()
    late.result(SOON)
    clock.seconds = FRESH_SECONDS
    assert begin(poller, lanes) == 1
    assert poller.views()["hangs"].instances == ()
    assert hanging.cloud.calls.count("list") == 1


def test_a_listing_that_is_too_old_is_made_anew(
    two: tuple[Hanging, HandClock, ProviderPoller], lanes: ThreadLanes
) -> None:
    hanging, clock, poller = two
    begin(poller, lanes)
    late = poller._pending["hangs"].future
    poller.views()
    hanging.let_go.set()
    late.result(SOON)
    clock.seconds = FRESH_SECONDS + 1
    poller.begin(lanes)
    poller._pending["hangs"].future.result(SOON)
    assert poller.views()["hangs"].instances == ()
    assert hanging.cloud.calls.count("list") == 2


def test_one_that_was_late_is_waited_for_again_once_it_was_in_time(
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


def test_while_a_lane_is_busy_its_provider_is_blind(
    two: tuple[Hanging, HandClock, ProviderPoller], lanes: ThreadLanes
) -> None:
    _, _, poller = two
    let_go = threading.Event()
    lanes.start("works", lambda: let_go.wait(SOON))
    poller.begin(lanes)
    assert poller.views()["works"].instances is None
    let_go.set()


def test_a_rest_that_ends_while_others_are_awaited_is_a_rest_all_the_same(lanes: ThreadLanes) -> None:
    clock, provider = HandClock(), FakeProvider(FakeCloud(), "test")
    provider.caps = replace(provider.caps, calls_per_hour=3600)  # type: ignore[misc]
    poller = ProviderPoller({"counts": provider}, clock, Pace(list_seconds=10.0))
    begin(poller, lanes)
    assert poller.views()["counts"].instances == ()
    clock.seconds = 9.9
    assert poller.begin(lanes) == []
    clock.seconds = 10.1
    assert poller.views()["counts"].is_resting
    assert begin(poller, lanes) == 1


def test_a_catalogue_that_fails_is_not_asked_for_at_every_look() -> None:
    clock, cloud = HandClock(), FakeCloud()
    poller = ProviderPoller({"works": FakeProvider(cloud, "test")}, clock, Pace())
    cloud.fail_next("offers", ErrorKind.TRANSIENT, Applied.NO)
    asked: list[int] = []
    for seconds in (0.0, OFFERS_RETRY_SECONDS - 0.1, OFFERS_RETRY_SECONDS, OFFERS_RETRY_SECONDS + OFFERS_SECONDS - 0.1):
        clock.seconds = seconds
        poller.begin(SerialLanes())
        assert poller.views()["works"].instances == ()
        asked.append(cloud.calls.count("offers"))
    assert asked == [1, 1, 2, 2]
