"""Many deadlines on the monotonic clock, one task that sleeps until the next."""

import asyncio
import heapq
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from gateway.errors import ApiError
from gateway.services.ports import Clock
from gateway.services.tasks import wait_for_event

log = logging.getLogger(__name__)

RETRY_AFTER: Final = 5.0
"""Seconds until a deadline is tried again whose handling failed."""


class Deadlines:
    """Calls ``due(key)`` once the deadline of ``key`` has come.  One deadline a key; setting it again moves it."""

    def __init__(self, clock: Clock, due: Callable[[str], Awaitable[None]]) -> None:
        self._clock = clock
        self._due = due
        self._heap: list[tuple[float, str]] = []
        self._at: dict[str, float] = {}
        self._changed = asyncio.Event()

    def set(self, key: str, at: float) -> None:
        """Sets the deadline to a monotonic time."""
        self._at[key] = at
        heapq.heappush(self._heap, (at, key))
        if len(self._heap) > 2 * len(self._at) + 64:
            self._heap = [(moment, name) for name, moment in self._at.items()]
            heapq.heapify(self._heap)
        self._changed.set()

    def clear(self, key: str) -> None:
        """Forgets it."""
        self._at.pop(key, None)

    def __contains__(self, key: str) -> bool:
        return key in self._at

    async def run(self) -> None:
        """Serves the deadlines, one after the other, for ever."""
        while True:
            self._changed.clear()
            for key in self._take_due():
                await self._serve(key)
            self._drop_stale()
            await wait_for_event(self._changed, self._clock, self._heap[0][0] if self._heap else None)

    def _take_due(self) -> list[str]:
        now = self._clock.monotonic()
        due: list[str] = []
        while self._heap and self._heap[0][0] <= now:
            at, key = heapq.heappop(self._heap)
            if self._at.get(key) == at:
                del self._at[key]
                due.append(key)
        return due

    def _drop_stale(self) -> None:
        while self._heap and self._at.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)

    async def _serve(self, key: str) -> None:
        try:
            await self._due(key)
            return
        except ApiError as error:
            log.error("deadline of %s: %s; it is tried again in %s s", key, error.message, RETRY_AFTER)
        except Exception:
            log.exception("deadline of %s failed; it is tried again in %s s", key, RETRY_AFTER)
        if key not in self._at:
            self.set(key, self._clock.monotonic() + RETRY_AFTER)
