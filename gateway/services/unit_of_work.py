"""The only way to change a sandbox: write it, then tell everybody who reacts to changes.

Reactions follow from the new state alone.  So a gateway that starts tells itself all rows once, and everything that
its predecessor left undone goes on.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final, Generic, TypeVar

from sqlmodel import Session

from gateway.core.model import Sandbox
from gateway.services.tasks import AsyncClock, Background, wait_for_event
from gateway.store import sandboxes
from gateway.store.db import Database

T = TypeVar("T")


@dataclass(frozen=True)
class Written(Generic[T]):
    """What a transaction answers, and the sandboxes that it changed, as they now are."""

    answer: T
    changed: tuple[Sandbox, ...] = ()


class SandboxWatch:
    """Somebody waits for changes of one sandbox."""

    def __init__(self) -> None:
        self.latest: Sandbox | None = None
        self._event = asyncio.Event()

    def tell(self, sandbox: Sandbox) -> None:
        """Takes in a change; one that was overtaken by another says nothing new."""
        if self.latest is not None and self.latest.version > sandbox.version:
            return
        self.latest = sandbox
        self._event.set()

    def newer_than(self, sandbox: Sandbox) -> Sandbox:
        """The last change that was told, or ``sandbox`` where that is younger."""
        latest = self.latest
        return latest if latest is not None and latest.version > sandbox.version else sandbox

    async def change(self, clock: AsyncClock, until: float) -> bool:
        """Whether a change came (or had come since the last call) before the monotonic time ``until``."""
        came = await wait_for_event(self._event, clock, until)
        self._event.clear()
        return came


class UnitOfWork:
    """Transactions over sandboxes, each followed by the reactions to what it changed."""

    def __init__(self, db: Database, background: Background) -> None:
        self.db = db
        self._background = background
        self._watches: dict[str, set[SandboxWatch]] = {}
        self._listeners: list[Callable[[Sandbox], None]] = []
        self._hearers: list[Callable[[Sandbox], None]] = []

    def listen(self, listener: Callable[[Sandbox], None]) -> None:
        """Calls ``listener`` with every sandbox that changed; it must not wait."""
        self._listeners.append(listener)

    def listen_to_others(self, hearer: Callable[[Sandbox], None]) -> None:
        """Calls ``hearer`` with every sandbox that another gateway changed; it must not wait."""
        self._hearers.append(hearer)

    @contextmanager
    def watch(self, sandbox_id: str) -> Iterator[SandboxWatch]:
        """A watch on one sandbox.  Open it before the write whose consequences are waited for."""
        watch = SandboxWatch()
        self._watches.setdefault(sandbox_id, set()).add(watch)
        try:
            yield watch
        finally:
            watches = self._watches[sandbox_id]
            watches.discard(watch)
            if not watches:
                del self._watches[sandbox_id]

    def is_watched(self, sandbox_id: str) -> bool:
        """Whether a caller waits for it now."""
        return sandbox_id in self._watches

    def watched(self) -> list[str]:
        """All for which callers wait now."""
        return list(self._watches)

    async def commit(self, fn: Callable[[Session], Written[T]]) -> T:
        """Runs ``fn`` in a write transaction and publishes what it changed, also when the caller goes away meanwhile.

        Raises:
            ApiError: as `Database.write`, and whatever ``fn`` raises; then nothing was written.
        """
        return await self._background.finish(self._commit(fn), "commit")

    async def change(self, sandbox_id: str, decide: Callable[[Sandbox], Sandbox | None]) -> Sandbox | None:
        """Writes what ``decide`` makes of the present row; ``None`` when there is none or it decides for nothing."""

        def fn(session: Session) -> Written[Sandbox | None]:
            after = sandboxes.change(session, sandbox_id, decide)
            return Written(after, () if after is None else (after,))

        return await self.commit(fn)

    def publish(self, sandbox: Sandbox) -> None:
        """Tells of a change that was committed."""
        self._tell(sandbox, self._listeners)

    def hear(self, sandbox: Sandbox) -> None:
        """Tells of a change that another gateway committed, which sees to what follows from it."""
        self._tell(sandbox, self._hearers)

    def _tell(self, sandbox: Sandbox, listeners: Iterable[Callable[[Sandbox], None]]) -> None:
        for watch in self._watches.get(sandbox.id, ()):
            watch.tell(sandbox)
        for listener in listeners:
            listener(sandbox)

    async def _commit(self, fn: Callable[[Session], Written[T]]) -> T:
        def announced(session: Session) -> Written[T]:
            written = fn(session)
            self.db.announce(session, [sandbox.id for sandbox in written.changed])
            return written

        written = await self.db.write(announced)
        for sandbox in written.changed:
            self.publish(sandbox)
        return written.answer


TAKEOVER_INTERVAL: Final = 30.0
"""Seconds between two looks for work that another gateway may have left, which is older than this."""

ASKED_WITHIN: Final = 90.0
"""Seconds in which a wait is asked for again and that is written, while its gateway and its client live."""


class Peers:
    """Listens to them, and steps in for those that died.  Has nothing to do on SQLite, which has one gateway."""

    def __init__(self, uow: UnitOfWork, clock: AsyncClock) -> None:
        self._uow = uow
        self._clock = clock

    async def listen(self) -> None:
        """Passes on what others change, until the connection is lost."""
        async with aclosing(self._uow.db.notices()) as notices:
            async for ids in notices:
                # None: it only now listens, and whatever somebody waits for may have happened before.
                rows = partial(_rows, names=self._uow.watched() if ids is None else ids)
                for sandbox in await self._uow.db.read(rows):
                    self._uow.hear(sandbox)

    async def take_over(self) -> None:
        """Drives on what nobody has driven on for a while, for ever.

        Its own gateway may still be at it: orders are idempotent, and the same order to a node joins the first one.
        """
        while True:
            await self._clock.sleep(TAKEOVER_INTERVAL)
            if self._uow.db.shared:
                for sandbox in await self._uow.db.read(self._left):
                    self._uow.publish(sandbox)

    def _left(self, session: Session) -> list[Sandbox]:
        now = self._clock.now()
        changed, asked = now - timedelta(seconds=TAKEOVER_INTERVAL), now - timedelta(seconds=ASKED_WITHIN)
        return sandboxes.left_behind(session, now, changed, asked)


def _rows(session: Session, names: list[str]) -> list[Sandbox]:
    found = (sandboxes.get(session, name) for name in names)
    return [sandbox for sandbox in found if sandbox is not None]
