"""The only way to change a sandbox: write it in one transaction, then publish the change to everybody who reacts.

Reactions follow from the new state alone. So a gateway that starts publishes all unfinished rows once, and everything
that its predecessor left undone goes on. Gateways that share a PostgreSQL learn of each other's changes by its change
feed, and take over what one of them left when it died.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final, Generic, TypeVar

from sqlmodel import Session

from gateway.core.model import Sandbox
from gateway.errors import ApiError
from gateway.services.tasks import AsyncClock, Background, wait_for_event
from gateway.settings import GatewaySettings
from gateway.store import sandboxes
from gateway.store.db import Database

T = TypeVar("T")
Listener = Callable[[Sandbox], None]

TAKEOVER_INTERVAL: Final = 30.0
"""Seconds between two looks for work that another gateway may have left, which is older than this."""
ASKED_WITHIN: Final = 90.0
"""Seconds in which a wait is asked for again and that is written, while its gateway and its client live."""


@dataclass(frozen=True)
class Written(Generic[T]):
    """The answer of a transaction, and the sandboxes that it changed, as they now are."""

    answer: T
    changed: tuple[Sandbox, ...] = ()


class SandboxWatch:
    """Waits for changes of one sandbox."""

    def __init__(self) -> None:
        self.latest: Sandbox | None = None
        self._event = asyncio.Event()

    def notify(self, sandbox: Sandbox) -> None:
        """Take in a change, unless a later one was taken in already."""
        if self.latest is not None and self.latest.version > sandbox.version:
            return
        self.latest = sandbox
        self._event.set()

    def newer_than(self, sandbox: Sandbox) -> Sandbox:
        """Return the latest change, or ``sandbox`` where that is younger."""
        latest = self.latest
        return latest if latest is not None and latest.version > sandbox.version else sandbox

    async def change(self, clock: AsyncClock, until: float) -> bool:
        """Wait for a change since the last call; return whether one came before the monotonic time ``until``."""
        came = await wait_for_event(self._event, clock, until)
        self._event.clear()
        return came


class UnitOfWork:
    """Transactions over sandboxes, each followed by the reactions to what it changed."""

    def __init__(self, db: Database, background: Background) -> None:
        self.db = db
        self._background = background
        self._watches: dict[str, set[SandboxWatch]] = {}
        self._listeners: list[Listener] = []
        self._peer_listeners: list[Listener] = []

    async def commit(self, fn: Callable[[Session], Written[T]], *, reserved: bool = False) -> T:
        """Run ``fn`` in a write transaction and publish what it changed, also when the caller is cancelled meanwhile.

        Args:
            fn: the transaction.
            reserved: as for `Database.write`.

        Raises:
            ApiError: as `Database.write`, and whatever ``fn`` raises; then nothing was written.
        """
        return await self._background.finish(self._commit(fn, reserved), "commit")

    async def change(
        self, sandbox_id: str, decide: Callable[[Sandbox], Sandbox | None], *, reserved: bool = False
    ) -> Sandbox | None:
        """Write what ``decide`` makes of the present row, and return the row as it then is.

        ``decide`` returns ``None`` to leave the row alone. The answer is ``None`` when there is no row.
        ``reserved`` is as for `Database.write`.
        """

        def fn(session: Session) -> Written[Sandbox | None]:
            row = sandboxes.get(session, sandbox_id)
            after = None if row is None else decide(row)
            if row is None or after is None:
                return Written(row)
            saved = sandboxes.save(session, row, after)
            return Written(saved, (saved,))

        return await self.commit(fn, reserved=reserved)

    async def _commit(self, fn: Callable[[Session], Written[T]], reserved: bool) -> T:
        changed: list[str] = []

        def announced(session: Session) -> Written[T]:
            changed.clear()
            written = fn(session)
            changed.extend(sandbox.id for sandbox in written.changed)
            self.db.announce(session, changed)
            return written

        try:
            written = await self.db.write(announced, reserved=reserved)
        except ApiError:
            if changed:  # it came as far as the commit, whose answer may be all that is lost
                self._background.insist(partial(self._publish_rows, tuple(changed)), "commit without an answer")
            raise
        for sandbox in written.changed:
            self.publish(sandbox)
        return written.answer

    async def _publish_rows(self, names: Sequence[str]) -> None:
        """Publish rows as they are: the state alone says what follows, so one that did not change does no harm."""
        for sandbox in await self.db.read(partial(_rows, names=names)):
            self.publish(sandbox)

    # -- reactions ----------------------------------------------------------------------------------------------------

    def subscribe(self, listener: Listener) -> None:
        """Call ``listener`` with every sandbox that changed here; it must not wait."""
        self._listeners.append(listener)

    def subscribe_to_peers(self, listener: Listener) -> None:
        """Call ``listener`` with every sandbox that another gateway changed; it must not wait."""
        self._peer_listeners.append(listener)

    def publish(self, sandbox: Sandbox) -> None:
        """Notify watches and listeners of a change that was committed."""
        self._notify(sandbox, self._listeners)

    def publish_from_peer(self, sandbox: Sandbox) -> None:
        """Notify watches and listeners of a change by another gateway, which sees to what follows from it."""
        self._notify(sandbox, self._peer_listeners)

    @contextmanager
    def watch(self, sandbox_id: str) -> Iterator[SandboxWatch]:
        """Watch one sandbox. Open it before the write whose consequences are waited for."""
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
        """Return whether a caller waits for the sandbox now."""
        return sandbox_id in self._watches

    def watched(self) -> list[str]:
        """Return the ids of all sandboxes for which callers wait now."""
        return list(self._watches)

    def _notify(self, sandbox: Sandbox, listeners: Iterable[Listener]) -> None:
        for watch in self._watches.get(sandbox.id, ()):
            watch.notify(sandbox)
        for listener in listeners:
            listener(sandbox)


class Peers:
    """The other gateways on the same PostgreSQL. On SQLite there are none, and nothing here runs."""

    def __init__(self, uow: UnitOfWork, clock: AsyncClock, settings: GatewaySettings) -> None:
        self._uow = uow
        self._clock = clock
        self._keep_ended = timedelta(seconds=settings.ended_seconds)

    async def follow_changes(self) -> None:
        """Publish what others change, until the connection is lost."""
        async with aclosing(self._uow.db.notices()) as notices:
            async for ids in notices:
                # None: the feed begins only now, and whatever somebody waits for may have happened before.
                rows = partial(_rows, names=self._uow.watched() if ids is None else ids)
                for sandbox in await self._uow.db.read(rows):
                    self._uow.publish_from_peer(sandbox)

    async def take_over(self) -> None:
        """Take over, for ever, whatever has not moved for a while.

        Its own gateway may still be at it: orders are idempotent, and the same order to a node joins the first one.
        """
        while True:
            await self._clock.sleep(TAKEOVER_INTERVAL)
            for sandbox in await self._uow.db.read(self._left_behind):
                self._uow.publish(sandbox)

    def _left_behind(self, session: Session) -> list[Sandbox]:
        now = self._clock.now()
        changed, asked = now - timedelta(seconds=TAKEOVER_INTERVAL), now - timedelta(seconds=ASKED_WITHIN)
        return sandboxes.left_behind(session, now, changed, asked, ended=now - self._keep_ended)


def _rows(session: Session, names: Sequence[str]) -> list[Sandbox]:
    found = (sandboxes.get(session, name) for name in names)
    return [sandbox for sandbox in found if sandbox is not None]
