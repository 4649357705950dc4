"""Work that outlives the call that began it, deadlines, and waits that end early."""

import asyncio
import heapq
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, Final, Protocol, TypeVar

from gateway.errors import ApiError

T = TypeVar("T")
log = logging.getLogger(__name__)

NewId = Callable[[], str]
"""Makes a name that nobody else has."""


class AsyncClock(Protocol):
    """Both clocks, and sleeping on the second of them."""

    def now(self) -> datetime:
        """UTC, for what is stored and shown."""

    def monotonic(self) -> float:
        """Seconds that no jump of the wall clock moves, for deadlines."""

    async def sleep(self, seconds: float) -> None:
        """Returns when that much monotonic time has passed."""


class SystemClock:
    """The machine's own clocks."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


RESTART_AFTER: Final = 1.0
"""Seconds before a background loop that broke is begun again."""


class Background:
    """The tasks of one gateway; `stop` ends them all."""

    def __init__(self, clock: AsyncClock) -> None:
        self._clock = clock
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Runs ``work`` on its own."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def keep(self, loop: Callable[[], Awaitable[None]], name: str) -> None:
        """Runs an endless loop; one that breaks is logged and begun again."""
        self.start(self._kept(loop, name), name)

    async def finish(self, work: Coroutine[Any, Any, T], name: str) -> T:
        """Runs ``work`` to its end even when the caller goes away meanwhile: what is half told is never half done."""
        task = self.start(work, name)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_note_unheard)
            raise

    async def stop(self) -> None:
        """Cancels everything and waits until it has ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _kept(self, loop: Callable[[], Awaitable[None]], name: str) -> None:
        while True:
            try:
                await loop()
            except ApiError as error:
                log.error("%s broke: %s; it goes on in %s s", name, error.message, RESTART_AFTER)
            except Exception:
                log.exception("%s broke; it goes on in %s s", name, RESTART_AFTER)
            await self._clock.sleep(RESTART_AFTER)


def _note_unheard(task: asyncio.Task[Any]) -> None:
    """Notes how work ended whose caller is no longer there to be told."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.info("%s ended after its caller had left: %s", task.get_name(), error)


async def wait_for_event(event: asyncio.Event, clock: AsyncClock, until: float | None) -> bool:
    """Whether ``event`` came before the monotonic time ``until``; without one, waits as long as it takes."""
    if event.is_set():
        return True
    if until is None:
        return await event.wait()
    sleeper = asyncio.ensure_future(clock.sleep(max(0.0, until - clock.monotonic())))
    waiter = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({sleeper, waiter}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        sleeper.cancel()
        waiter.cancel()
    return event.is_set()


RETRY_AFTER: Final = 5.0
"""Seconds until a deadline is tried again whose handling failed."""


class Deadlines:
    """Calls ``due(key)`` once the deadline of ``key`` has come.  One deadline a key; setting it again moves it."""

    def __init__(self, clock: AsyncClock, due: Callable[[str], Awaitable[None]]) -> None:
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
