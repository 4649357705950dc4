"""Work side by side: one lane for each provider and one for the gateway, and in each lane one piece at a time.

So a call that hangs holds up its own lane only, and nobody is called from two threads at once.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any, Final, Protocol, TypeVar

T = TypeVar("T")

GATEWAY: Final = "the gateway"
"""Its lane; no provider can have a name with a space."""


class Lanes(Protocol):
    """Where looks and actions run."""

    def start(self, lane: str, work: Callable[[], T]) -> "Future[T] | None":
        """Begins a piece of work; ``None``, and nothing is begun, while the lane's last one has not ended."""


class Serial:
    """Does each piece at once, in the caller's thread: for virtual time, and for a single look."""

    def start(self, lane: str, work: Callable[[], T]) -> "Future[T] | None":
        """What the work raises, this raises."""
        done: Future[T] = Future()
        done.set_result(work())
        return done


class Threads:
    """A thread for each lane, which stays: connections belong to threads.

    None of them holds up the end of the process: a call that still hangs then is left, as by a crash.
    """

    def __init__(self) -> None:
        self._lanes: dict[str, _Lane] = {}

    def start(self, lane: str, work: Callable[[], T]) -> "Future[T] | None":
        """What the work raises is in the future."""
        if lane not in self._lanes:
            self._lanes[lane] = _Lane(lane)
        return self._lanes[lane].start(work)

    def close(self) -> None:
        """Ends the threads, each after the piece that it is at."""
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
            except BaseException as error:  # noqa: BLE001 - whoever waits for the work is to meet it
                future.set_exception(error)


SECONDS: Final = 10.0


class TurnOverError(Exception):
    """The tick is over; what is not begun is left to the next one, which plans anew."""


class Turn:
    """Shared by the lanes of one tick.

    What a lane is about to do is written down within `writing`, one lane at a time, and before the end.  So limits are
    checked against all rows, and a lane that a call has held up beyond the end begins nothing of an old plan.

    Args:
        is_stopping: whether the process is to end; nothing more is begun then.
        seconds: how long it is; what is not begun by then is left to the next tick.
    """

    def __init__(self, is_stopping: Callable[[], bool] = lambda: False, seconds: float = SECONDS) -> None:
        self.seconds = seconds
        self._is_stopping = is_stopping
        self._lock = threading.Lock()
        self._is_over = False

    def is_over(self) -> bool:
        """Whether nothing more is to be begun."""
        return self._is_over or self._is_stopping()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Rows written in here are there before the next tick looks.

        Raises:
            TurnOverError: it is too late.
        """
        with self._lock:
            if self.is_over():
                raise TurnOverError
            yield

    def end(self) -> None:
        """From here on `writing` raises; returns when nobody is within it."""
        with self._lock:
            self._is_over = True
