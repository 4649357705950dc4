"""Concurrent calls: one lane for each provider and one for the gateway, and in each lane one piece of work at a time.

A call that hangs holds up only its own lane, and nobody is called from two threads at once.  A `Turn` bounds the time
in which the lanes of one tick may begin new effects.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any, Final, Protocol, TypeVar

T = TypeVar("T")

GATEWAY: Final = "the gateway"
"""The gateway's lane; no provider can have a name with a space."""


class Lanes(Protocol):
    """Where polls and actions run."""

    def start(self, lane: str, work: Callable[[], T]) -> "Future[T] | None":
        """Begin a piece of work.

        Returns:
            Its future; ``None``, and nothing is begun, while the lane's last piece has not ended.
        """


class SerialLanes:
    """Runs each piece at once, in the caller's thread: for virtual time, and for a single look."""

    def start(self, lane: str, work: Callable[[], T]) -> "Future[T] | None":
        """Run the work; what it raises, this raises."""
        done: Future[T] = Future()
        done.set_result(work())
        return done


class ThreadLanes:
    """A permanent thread for each lane: connections belong to threads.

    None of them holds up the end of the process: a call that still hangs then is abandoned, as by a crash.
    """

    def __init__(self) -> None:
        self._lanes: dict[str, _Lane] = {}

    def start(self, lane: str, work: Callable[[], T]) -> "Future[T] | None":
        """Begin the work in its lane's thread; what it raises is in the future."""
        if lane not in self._lanes:
            self._lanes[lane] = _Lane(lane)
        return self._lanes[lane].start(work)

    def close(self) -> None:
        """End the threads, each after its present piece."""
        for lane in self._lanes.values():
            lane.end()


class _Lane:
    def __init__(self, name: str) -> None:
        self._queue: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._last: Future[Any] | None = None
        threading.Thread(target=self._run, name=f"lane {name}", daemon=True).start()

    def start(self, work: Callable[[], T]) -> "Future[T] | None":
        if self._last is not None and not self._last.done():
            return None
        future: Future[T] = Future()
        self._last = future
        self._queue.put((future, work))
        return future

    def end(self) -> None:
        self._queue.put(None)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            future, work = item
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 - whoever waits for the work gets it
                future.set_exception(error)


TURN_SECONDS: Final = 10.0


class TurnOverError(Exception):
    """The tick is over; what has not begun is left to the next one, which plans again."""


class Turn:
    """The time in which one tick may write down new effects; shared by its lanes.

    Each lane writes down what it is about to do within `writing`, one lane at a time, and before the end.  So limits
    are checked against all rows, and a lane that a call has held up beyond the end begins nothing of an old plan.

    Args:
        is_stopping: returns whether the process is to end; nothing more is begun then.
        seconds: its length; what has not begun by then is left to the next tick.
    """

    def __init__(self, is_stopping: Callable[[], bool] = lambda: False, seconds: float = TURN_SECONDS) -> None:
        self.seconds = seconds
        self._is_stopping = is_stopping
        self._lock = threading.Lock()
        self._is_over = False

    def is_over(self) -> bool:
        """Return whether nothing more may begin."""
        return self._is_over or self._is_stopping()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold off the end of the turn, so that rows written here are seen by the next tick.

        Raises:
            TurnOverError: it is too late.
        """
        with self._lock:
            if self.is_over():
                raise TurnOverError
            yield

    def end(self) -> None:
        """Make `writing` raise from here on; return when no lane is within it."""
        with self._lock:
            self._is_over = True
