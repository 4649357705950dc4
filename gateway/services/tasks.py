"""Work that outlives the call that began it, and waits that end early."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from gateway.errors import ApiError
from gateway.services.ports import Clock

T = TypeVar("T")
log = logging.getLogger(__name__)

RESTART_AFTER: Final = 1.0
"""Seconds before a background loop that broke is begun again."""


class Background:
    """The tasks of one gateway; `stop` ends them all."""

    def __init__(self, clock: Clock) -> None:
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


async def wait_for_event(event: asyncio.Event, clock: Clock, until: float | None) -> bool:
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
