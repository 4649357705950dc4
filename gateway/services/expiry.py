"""When sandboxes were last used: in memory, and written now and then."""

from datetime import datetime, timedelta
from functools import partial
from typing import Final

from sqlmodel import Session

from gateway.core import transitions
from gateway.core.model import Sandbox
from gateway.errors import ApiError
from gateway.services.tasks import AsyncClock, Deadlines
from gateway.services.unit_of_work import UnitOfWork, Written
from gateway.settings import GatewaySettings
from gateway.store import capacity, nodes, sandboxes, tokens
from gateway.store.db import Database
from gateway.wire.errors import ErrorCode
from gateway.wire.states import DeathReason, SandboxState

FLUSH_INTERVAL: Final = 30.0
"""Seconds between two writes; a crash forgets at most this much activity, which is granted again at start."""

MOST_KEPT: Final = 100_000
"""Sandboxes whose last use is held in memory."""


class Activity:
    """Uses of sandboxes on the monotonic clock."""

    def __init__(self, db: Database, clock: AsyncClock) -> None:
        self._db = db
        self._clock = clock
        self._used: dict[str, float] = {}
        self._unwritten: set[str] = set()

    def touch(self, sandbox_id: str) -> None:
        """It is used now."""
        self._note(sandbox_id, self._clock.monotonic())
        self._unwritten.add(sandbox_id)

    def idle_seconds(self, sandbox: Sandbox) -> float:
        """Seconds since it was last used.

        What the row says is turned into monotonic time once, so that a later jump of the wall clock changes nothing.
        """
        now = self._clock.monotonic()
        if sandbox.id not in self._used:
            age = (self._clock.now() - sandbox.active_at).total_seconds()
            self._note(sandbox.id, now - max(0.0, age - FLUSH_INTERVAL))
        return now - self._used[sandbox.id]

    def on_change(self, sandbox: Sandbox) -> None:
        """Reacts to a change of a sandbox."""
        if sandbox.state is SandboxState.DELETED:
            self._used.pop(sandbox.id, None)
            self._unwritten.discard(sandbox.id)
        elif sandbox.state is SandboxState.RUNNING:
            self._note(sandbox.id, self._clock.monotonic())

    async def run(self) -> None:
        """Writes what was used, now and then, for ever."""
        while True:
            await self._clock.sleep(FLUSH_INTERVAL)
            await self.flush()

    async def flush(self) -> None:
        """Writes what was used since the last time.

        Raises:
            ApiError: as `Database.write`; then it is still to be written.
        """
        mono, now = self._clock.monotonic(), self._clock.now()
        ids, self._unwritten = self._unwritten, set()
        active = {name: now - timedelta(seconds=mono - self._used[name]) for name in ids if name in self._used}
        try:
            if active:
                await self._db.write(lambda session: sandboxes.write_activity(session, active))
        except ApiError:
            self._unwritten |= ids
            raise

    def _note(self, sandbox_id: str, used: float) -> None:
        self._used.pop(sandbox_id, None)
        self._used[sandbox_id] = used
        if len(self._used) > MOST_KEPT:
            # The one that was noted longest ago; its row still knows.
            del self._used[next(iter(self._used))]


HOUSEKEEPING_INTERVAL: Final = 3600.0
_TTL: Final = "ttl:"
_LEASE: Final = "lease:"


class Expiry:
    """Deadlines of sandboxes on the monotonic clock.

    A row's ``expires_at`` is turned into monotonic time once, when the row is first seen; so a jump of the wall clock
    while the gateway runs deletes nothing.
    """

    def __init__(self, uow: UnitOfWork, clock: AsyncClock, settings: GatewaySettings) -> None:
        self._uow = uow
        self._clock = clock
        self._settings = settings
        self._deadlines = Deadlines(clock, self._due)
        self._armed: dict[str, datetime] = {}

    def on_change(self, sandbox: Sandbox) -> None:
        """Reacts to a change of a sandbox."""
        if sandbox.state is SandboxState.PENDING:
            if _LEASE + sandbox.id not in self._deadlines:
                self.renew(sandbox.id)
        else:
            self._deadlines.clear(_LEASE + sandbox.id)
        self._arm(sandbox)

    def on_others_change(self, sandbox: Sandbox) -> None:
        """Another gateway changed it, and keeps the lease of one that waits there."""
        if sandbox.state is not SandboxState.PENDING:
            self._deadlines.clear(_LEASE + sandbox.id)
        self._arm(sandbox)

    def _arm(self, sandbox: Sandbox) -> None:
        if sandbox.state in {SandboxState.DELETING, SandboxState.DELETED} or sandbox.expires_at is None:
            self._armed.pop(sandbox.id, None)
            self._deadlines.clear(_TTL + sandbox.id)
        elif self._armed.get(sandbox.id) != sandbox.expires_at:
            left = (sandbox.expires_at - self._clock.now()).total_seconds()
            self._armed[sandbox.id] = sandbox.expires_at
            self._deadlines.set(_TTL + sandbox.id, self._clock.monotonic() + max(0.0, left))

    def renew(self, sandbox_id: str) -> None:
        """Somebody asked for the waiting sandbox."""
        self._deadlines.set(_LEASE + sandbox_id, self._clock.monotonic() + self._settings.pending_lease)

    async def run(self) -> None:
        """Serves the deadlines, for ever."""
        await self._deadlines.run()

    async def housekeep(self) -> None:
        """Forgets, now and then, what `purge` forgets, for ever."""
        while True:
            await self._clock.sleep(HOUSEKEEPING_INTERVAL)
            await self.purge()

    async def purge(self) -> None:
        """Forgets deleted sandboxes, gone nodes, ended credentials, join tokens and prepared units, after a day."""
        before = self._clock.now() - timedelta(seconds=self._settings.tombstone_seconds)
        for forget in (sandboxes.purge, nodes.purge_gone, nodes.purge_grants, tokens.purge_of_nodes, capacity.purge):
            await self._uow.db.write(partial(forget, before=before))

    async def _due(self, key: str) -> None:
        if key.startswith(_TTL):
            await self._expire(key.removeprefix(_TTL))
        else:
            await self._give_up(key.removeprefix(_LEASE))

    async def _expire(self, sandbox_id: str) -> None:
        expires_at, now = self._armed.get(sandbox_id), self._clock.now()

        def decide(row: Sandbox) -> Sandbox | None:
            return transitions.unless_leaving(row, DeathReason.TTL, now) if row.expires_at == expires_at else None

        await self._uow.change(sandbox_id, decide)

    async def _give_up(self, sandbox_id: str) -> None:
        if self._uow.is_watched(sandbox_id):
            self.renew(sandbox_id)
            return
        now, lease = self._clock.now(), self._settings.pending_lease
        message = (
            f"sandbox {sandbox_id} found no room, and nobody asked for it again within {lease:g} s; create it again"
        )

        def fn(session: Session) -> Written[bool]:
            row = sandboxes.get(session, sandbox_id)
            if row is None or row.state is not SandboxState.PENDING:
                return Written(False)
            if (now - row.active_at).total_seconds() < lease - FLUSH_INTERVAL:
                return Written(True)
            after = sandboxes.save(session, row, transitions.failed(row, ErrorCode.NO_ROOM, message, now))
            return Written(False, (after,))

        asked_elsewhere = await self._uow.commit(fn)
        if asked_elsewhere:
            self.renew(sandbox_id)
