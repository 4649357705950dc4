"""Lanes and turns with real threads."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from autoscaler.lanes import SerialLanes, ThreadLanes, Turn, TurnOverError

SOON = 20.0


@pytest.fixture
def lanes() -> Iterator[ThreadLanes]:
    made = ThreadLanes()
    yield made
    made.close()


def ended(future: "Future[object] | None") -> object:
    assert future is not None
    return future.result(SOON)


# -- lanes ------------------------------------------------------------------------------------------------------------


def test_a_lane_runs_one_at_a_time_and_lanes_run_side_by_side(lanes: ThreadLanes) -> None:
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


def test_an_exception_of_the_work_reaches_the_waiter(lanes: ThreadLanes) -> None:
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


def test_the_end_of_a_turn_waits_for_a_writer(lanes: ThreadLanes) -> None:
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


def test_lanes_check_limits_one_after_the_other(lanes: ThreadLanes) -> None:
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
