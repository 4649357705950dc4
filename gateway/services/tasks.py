"""Time and background work: clocks, tasks that outlive the call that began them, and deadlines."""

import asyncio
import heapq
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, Final, Protocol, TypeVar

from gateway.errors import ApiError

T = TypeVar("T")
log = logging.getLogger(__name__)

NewId = Callable[[], str]
"""Returns a name that nobody else has."""


def random_id() -> str:
    """Return a random name of 32 hex digits."""
    return uuid.uuid4().hex


LOOP_RETRY: Final = 1.0
"""Seconds before a background loop that failed begins again."""
DEADLINE_RETRY: Final = 5.0
"""Seconds until a deadline is tried again whose handling failed."""

# -- clocks -----------------------------------------------------------------------------------------------------------


class AsyncClock(Protocol):
    """Both clocks, and sleeping on the second of them."""

    def now(self) -> datetime:
        """Return UTC, for what is stored and shown."""

    def monotonic(self) -> float:
        """Return seconds that no jump of the wall clock moves, for deadlines."""

    def sleep(self, seconds: float) -> Awaitable[None]:
        """Return when that much monotonic time has passed."""


class SystemClock:
    """The machine's own clocks."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def wait_for_event(event: asyncio.Event, clock: AsyncClock, until: float | None) -> bool:
    """Wait for ``event``, and return whether it came before the monotonic time ``until``; ``None`` waits for ever."""
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


# -- tasks ------------------------------------------------------------------------------------------------------------


class Background:
    """The tasks of one gateway; `stop` ends them all."""

    def __init__(self, clock: AsyncClock) -> None:
        self._clock = clock
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Run ``work`` as a task of its own."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def keep(self, loop: Callable[[], Awaitable[None]], name: str) -> None:
        """Run an endless loop; one that fails is logged and begun again."""
        self.start(self._keep(loop, name), name)

    def insist(self, work: Callable[[], Awaitable[None]], name: str) -> None:
        """Run ``work`` as a task of its own, again and again until it has not failed."""
        self.start(self._insist(work, name), name)

    async def finish(self, work: Coroutine[Any, Any, T], name: str) -> T:
        """Run ``work`` to its end even when the caller is cancelled meanwhile, so that nothing is left half done."""
        task = self.start(work, name)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_log_abandoned)
            raise

    async def stop(self) -> None:
        """Cancel everything and wait until it has ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep(self, loop: Callable[[], Awaitable[None]], name: str) -> None:
        while True:
            await self._insist(loop, name)
            await self._clock.sleep(LOOP_RETRY)

    async def _insist(self, work: Callable[[], Awaitable[None]], name: str) -> None:
        while True:
            try:
                return await work()
            except ApiError as error:
                log.error("%s failed: %s; retrying in %s s", name, error.message, LOOP_RETRY)
            except Exception:
                log.exception("%s failed; retrying in %s s", name, LOOP_RETRY)
            await self._clock.sleep(LOOP_RETRY)


def _log_abandoned(task: asyncio.Task[Any]) -> None:
    """Log how work failed whose caller is no longer there."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.info("%s failed after its caller had left: %s", task.get_name(), error)


# -- deadlines --------------------------------------------------------------------------------------------------------


class Deadlines:
    """Calls ``due(key)`` once the deadline of ``key`` has come: many deadlines on the monotonic clock, one sleeper.

    One deadline a key; setting it again moves it.
    """

    def __init__(self, clock: AsyncClock, due: Callable[[str], Awaitable[None]]) -> None:
        self._clock = clock
        self._due = due
        self._heap: list[tuple[float, str]] = []
        self._at: dict[str, float] = {}
        self._changed = asyncio.Event()

    def set(self, key: str, at: float) -> None:
        """Set the deadline of ``key`` to a monotonic time."""
        self._at[key] = at
        heapq.heappush(self._heap, (at, key))
        if len(self._heap) > 2 * len(self._at) + 64:
            self._heap = [(moment, name) for name, moment in self._at.items()]
            heapq.heapify(self._heap)
        self._changed.set()

    def clear(self, key: str) -> None:
        """Remove the deadline of ``key``, if it has one."""
        self._at.pop(key, None)

    def __contains__(self, key: str) -> bool:
        return key in self._at

    async def run(self) -> None:
        """Serve the deadlines, one after the other, for ever."""
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
            log.error("deadline of %s: %s; retrying in %s s", key, error.message, DEADLINE_RETRY)
        except Exception:
            log.exception("deadline of %s failed; retrying in %s s", key, DEADLINE_RETRY)
        if key not in self._at:
            self.set(key, self._clock.monotonic() + DEADLINE_RETRY)
