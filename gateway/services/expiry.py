"""Ends by time: sandboxes by ttl, by disuse and by the age of their end, waits by their lease, tombstones by age.

All of it is judged on the monotonic clock. What a row says (``expires_at``, ``ended_at``, ``active_at``) is turned into
monotonic time once, when the row is first seen; so a jump of the wall clock while the gateway runs deletes nothing.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from sqlmodel import Session

from gateway.core import transitions
from gateway.core.model import Sandbox
from gateway.errors import ApiError
from gateway.services.tasks import AsyncClock, Deadlines
from gateway.services.unit_of_work import UnitOfWork, Written
from gateway.services.usage import oldest_kept
from gateway.settings import GatewaySettings
from gateway.store import capacity, nodes, sandboxes, tokens, usage
from gateway.store.db import Database
from gateway.wire.errors import ErrorCode
from gateway.wire.nodes import InventoryItem
from gateway.wire.states import DeathReason, SandboxState

FLUSH_INTERVAL: Final = 30.0
"""Seconds between two writes of activity; a crash loses at most this much, which is granted again at start."""
MAX_ACTIVITY: Final = 100_000
"""Sandboxes whose last use is held in memory."""
HOUSEKEEPING_INTERVAL: Final = 3600.0
"""Seconds between two looks for rows that are old enough to be deleted."""


class Activity:
    """When sandboxes were last used: held in memory, and written every `FLUSH_INTERVAL`."""

    def __init__(self, db: Database, clock: AsyncClock) -> None:
        self._db = db
        self._clock = clock
        self._used: dict[str, float] = {}
        self._unwritten: set[str] = set()

    def touch(self, sandbox_id: str) -> None:
        """Count the sandbox as used now. Costs no write."""
        self._note(sandbox_id, self._clock.monotonic())
        self._unwritten.add(sandbox_id)

    def idle_seconds(self, sandbox: Sandbox) -> float:
        """Return the seconds since the sandbox was last used."""
        now = self._clock.monotonic()
        if sandbox.id not in self._used:
            age = (self._clock.now() - sandbox.active_at).total_seconds()
            self._note(sandbox.id, now - max(0.0, age - FLUSH_INTERVAL))
        return now - self._used[sandbox.id]

    def on_change(self, sandbox: Sandbox) -> None:
        """React to a change of a sandbox."""
        if sandbox.state is SandboxState.DELETED:
            self._used.pop(sandbox.id, None)
            self._unwritten.discard(sandbox.id)
        elif sandbox.state is SandboxState.RUNNING:
            self._note(sandbox.id, self._clock.monotonic())

    async def run(self) -> None:
        """Write what was used every `FLUSH_INTERVAL`, for ever."""
        while True:
            await self._clock.sleep(FLUSH_INTERVAL)
            await self.flush()

    async def flush(self) -> None:
        """Write what was used since the last time.

        Raises:
            ApiError: as `Database.write`; then it is written the next time.
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
        if len(self._used) > MAX_ACTIVITY:
            # The one that was noted longest ago; its row still knows.
            del self._used[next(iter(self._used))]


class Reaper:
    """Ends sandboxes whose time is over, and deletes rows that nobody needs any more."""

    def __init__(self, uow: UnitOfWork, activity: Activity, clock: AsyncClock, settings: GatewaySettings) -> None:
        self._uow = uow
        self._activity = activity
        self._clock = clock
        self._settings = settings
        self.ttls = Deadlines(clock, self._expire)
        self.leases = Deadlines(clock, self._end_wait)
        self._keep_ended = timedelta(seconds=settings.ended_seconds)
        self._armed: dict[str, datetime] = {}
        """By sandbox: the time from which its deadline among ``ttls`` was made."""

    def on_change(self, sandbox: Sandbox) -> None:
        """React to a change of a sandbox."""
        if sandbox.state is SandboxState.PENDING:
            if sandbox.id not in self.leases:
                self.renew(sandbox.id)
        else:
            self.leases.clear(sandbox.id)
        self._arm_ttl(sandbox)

    def on_peer_change(self, sandbox: Sandbox) -> None:
        """React to a change by another gateway, which keeps the lease of one that waits there."""
        if sandbox.state is not SandboxState.PENDING:
            self.leases.clear(sandbox.id)
        self._arm_ttl(sandbox)

    # -- ttl ----------------------------------------------------------------------------------------------------------

    def _arm_ttl(self, sandbox: Sandbox) -> None:
        over_at = transitions.time_is_over_at(sandbox, self._keep_ended)
        if over_at is None:
            self._armed.pop(sandbox.id, None)
            self.ttls.clear(sandbox.id)
        elif self._armed.get(sandbox.id) != over_at:
            left = (over_at - self._clock.now()).total_seconds()
            self._armed[sandbox.id] = over_at
            self.ttls.set(sandbox.id, self._clock.monotonic() + max(0.0, left))

    async def _expire(self, sandbox_id: str) -> None:
        armed_for, now = self._armed.get(sandbox_id), self._clock.now()
        if armed_for is None or sandbox_id in self.ttls:
            return  # since it came due, the sandbox was restarted: it has no deadline now, or a later one

        def decide(row: Sandbox) -> Sandbox | None:
            unchanged = transitions.time_is_over_at(row, self._keep_ended) == armed_for
            return transitions.unless_leaving(row, DeathReason.TTL, now) if unchanged else None

        await self._uow.change(sandbox_id, decide)

    # -- lease of a wait ----------------------------------------------------------------------------------------------

    def renew(self, sandbox_id: str) -> None:
        """Renew the lease of a waiting sandbox: somebody asked for it."""
        self.leases.set(sandbox_id, self._clock.monotonic() + self._settings.pending_lease)

    async def _end_wait(self, sandbox_id: str) -> None:
        if self._uow.is_watched(sandbox_id):
            self.renew(sandbox_id)
            return
        now, lease = self._clock.now(), self._settings.pending_lease
        message = (
            f"sandbox {sandbox_id} found no room, and nobody asked for it again within {lease:.12g} s; create it again"
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

    # -- disuse -------------------------------------------------------------------------------------------------------

    async def end_idle(self, rows: Iterable[Sandbox], inventory: Iterable[InventoryItem]) -> None:
        """Delete what nobody used for its ``idle_seconds``, on the evidence of a node's inventory.

        Judged at a heartbeat and not by a timer, because only the node knows whether an exec still runs: sandboxes of
        a silent node are never idle.

        Args:
            rows: the node's sandboxes.
            inventory: everything that the node has.
        """
        by_id = {row.id: row for row in rows}
        for item in inventory:
            row = by_id.get(item.sandbox_id)
            if row is None or row.spec.idle_seconds is None or item.generation != row.generation:
                continue
            if item.live_execs:
                self._activity.touch(row.id)
            elif row.started_at is not None and self._activity.idle_seconds(row) >= row.spec.idle_seconds:
                await self._uow.change(row.id, partial(_delete_idle, idle=row, now=self._clock.now()))

    # -- tombstones ---------------------------------------------------------------------------------------------------

    async def housekeep(self) -> None:
        """Purge every `HOUSEKEEPING_INTERVAL`, for ever."""
        while True:
            await self._clock.sleep(HOUSEKEEPING_INTERVAL)
            await self.purge()

    async def purge(self) -> None:
        """Delete deleted sandboxes, gone nodes, ended credentials and tokens, prepared units, and old usage."""
        before = self._clock.now() - timedelta(seconds=self._settings.tombstone_seconds)
        for purge in (sandboxes.purge, nodes.purge_gone, nodes.purge_grants, tokens.purge_of_nodes, capacity.purge):
            await self._uow.db.write(partial(purge, before=before))
        oldest = oldest_kept(self._settings, self._clock.now())
        await self._uow.db.write(partial(usage.purge, before=oldest))


def _delete_idle(row: Sandbox, idle: Sandbox, now: datetime) -> Sandbox | None:
    return transitions.unless_leaving(row, DeathReason.IDLE, now) if row.generation == idle.generation else None
