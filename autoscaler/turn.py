"""The time in which one tick may write down new effects."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

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
