"""Virtual time: nothing happens but by `advance`."""

import heapq
import itertools
from collections.abc import Callable

EPOCH = 1_787_300_000.0


class Clock:
    """Seconds since the epoch, and what is to happen when."""

    def __init__(self) -> None:
        self.now = EPOCH
        self._order = itertools.count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []

    def after(self, seconds: float, work: Callable[[], None]) -> None:
        """Does ``work`` that much later."""
        heapq.heappush(self._due, (self.now + seconds, next(self._order), work))

    def advance(self, seconds: float) -> None:
        """Lets time pass; what is due happens in its order and at its moment."""
        end = self.now + seconds
        while self._due and self._due[0][0] <= end:
            moment, _, work = heapq.heappop(self._due)
            self.now = max(self.now, moment)
            work()
        self.now = end
