"""Ends by time: sandboxes by ttl, by disuse and by the age of their end, waits by their lease, tombstones by age.

All of it is judged on the monotonic clock. What a row says (``expires_at``, ``ended_at``, ``active_at``) is turned into
monotonic time once, when the row is first seen; so a jump of the wall clock while the gateway runs deletes nothing.
"""

import asyncio
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from sqlmodel import Session

from gateway.core import transitions
from gateway.core.model import Sandbox
from gateway.services.hearing import Hearing
from gateway.services.tasks import AsyncClock, Deadlines, wait_for_event
from gateway.services.unit_of_work import UnitOfWork, Written
from gateway.services.usage import oldest_kept
from gateway.settings import GatewaySettings
from gateway.store import capacity, nodes, sandboxes, tokens, usage
from gateway.store.db import Database
from gateway.wire.errors import ErrorCode
from gateway.wire.nodes import InventoryItem
from gateway.wire.states import DeathReason, SandboxState

FLUSH_INTERVAL: Final = 30.0
"""Seconds within which a use is written where nobody is in a hurry; a crash loses at most this much."""
SHARES: Final = 4
"""Uses are shared with other gateways this often within ``idle_seconds``."""
GATHERING: Final = 0.25
"""Seconds between two writes of uses at least, so that many go into one."""
MAX_ACTIVITY: Final = 100_000
"""Sandboxes whose last use is held in memory."""
HOUSEKEEPING_INTERVAL: Final = 3600.0
"""Seconds between two looks for rows that are old enough to be deleted."""


@dataclass
class _Use:
    """What this gateway knows of the uses of one sandbox."""

    at: float
    """The last one, on the monotonic clock."""
    idle_seconds: float | None = None
    """Of its spec."""
    uses: int | None = None
    """Of its row, as it was last read or written here."""
    written_at: float = -math.inf


class Activity:
    """When sandboxes were last used: held in memory, and shared with other gateways through the rows.

    Where there are others, a use of a sandbox with ``idle_seconds`` is written at once, and again when a share of that
    time has passed; so nobody who reads the row is mistaken by more than that share, which is granted on top. It is the
    row's count of uses that matters: the clocks of other machines are not compared with. Time in which this gateway
    was deaf does not count, because others may have had uses to share.
    """

    def __init__(self, db: Database, clock: AsyncClock, hearing: Hearing) -> None:
        self._db = db
        self._clock = clock
        self._hearing = hearing
        self._uses: dict[str, _Use] = {}
        self._unwritten: set[str] = set()
        self._due = math.inf
        """When the first of the unwritten is due."""
        self._wake = asyncio.Event()

    def touch(self, sandbox_id: str, idle_seconds: float | None = None) -> None:
        """Count the sandbox as used now, and have that written in time.

        Args:
            sandbox_id: which.
            idle_seconds: of its spec; ``None`` where that is not known, or known already.
        """
        use = self._note(sandbox_id)
        if idle_seconds is not None:
            use.idle_seconds = idle_seconds
        self._unwritten.add(sandbox_id)
        self._plan(use)

    def is_over(self, sandbox: Sandbox) -> bool:
        """Return whether nobody has used the sandbox for its ``idle_seconds``, as far as is known here and in its row.

        Args:
            sandbox: its row as it was read a moment ago.
        """
        limit = sandbox.spec.idle_seconds
        if limit is None:
            return False
        now, use = self._clock.monotonic(), self._uses.get(sandbox.id)
        if use is None:
            use = self._note(sandbox.id)
            if not self._db.shared:
                # Nobody else can have used it, so the row counts. Other gateways may go by other clocks.
                age = (self._clock.now() - sandbox.active_at).total_seconds()
                use.at = now - max(0.0, age - FLUSH_INTERVAL)
        elif self._db.shared and (use.uses is None or sandbox.uses > use.uses):
            use.at = now  # another gateway has seen a use since the last look
        use.uses, use.idle_seconds = max(sandbox.uses, use.uses or 0), limit
        late = self._share(use) if self._db.shared else 0.0
        return self._hearing.silence(use.at) >= limit + late

    def last_use(self, sandbox_id: str) -> float | None:
        """Return the monotonic time of the last use that is known here; ``None`` for none."""
        use = self._uses.get(sandbox_id)
        return None if use is None else use.at

    def on_change(self, sandbox: Sandbox) -> None:
        """React to a change of a sandbox."""
        if sandbox.state is SandboxState.DELETED:
            self._uses.pop(sandbox.id, None)
            self._unwritten.discard(sandbox.id)
        elif sandbox.state is SandboxState.RUNNING:
            use = self._note(sandbox.id)
            use.uses, use.idle_seconds = sandbox.uses, sandbox.spec.idle_seconds

    async def run(self) -> None:
        """Write what was used when it is due, for ever."""
        while True:
            self._wake.clear()
            if self._due <= self._clock.monotonic():
                await self.flush()
                await self._clock.sleep(GATHERING)
            else:
                await wait_for_event(self._wake, self._clock, None if self._due == math.inf else self._due)

    async def flush(self) -> None:
        """Write what was used and is not written yet.

        Raises:
            ApiError: as `Database.write`; then it is written the next time.
        """
        mono, now = self._clock.monotonic(), self._clock.now()
        writing = {name: replace(self._uses[name]) for name in self._unwritten}
        if writing:
            active = {name: now - timedelta(seconds=mono - use.at) for name, use in writing.items()}
            await self._db.write(lambda session: sandboxes.write_activity(session, active))
        self._due = math.inf
        for name, written in writing.items():
            use = self._uses.get(name)
            if use is None or name not in self._unwritten:
                continue
            use.written_at = mono
            if written.uses is not None:
                # Never beyond the row's own count: then the next use that another gateway writes would go unseen.
                use.uses = max(use.uses or 0, written.uses + 1)
            if use.at == written.at:
                self._unwritten.discard(name)
        for name in self._unwritten:
            self._plan(self._uses[name])

    def _plan(self, use: _Use) -> None:
        """See to it that the use is written when it is due."""
        if self._db.shared and use.idle_seconds is not None:
            due = use.written_at + self._share(use)
        else:
            due = use.at + FLUSH_INTERVAL
        if due < self._due:
            self._due = due
            self._wake.set()

    @staticmethod
    def _share(use: _Use) -> float:
        """Return the seconds by which the row may be behind the uses."""
        return FLUSH_INTERVAL if use.idle_seconds is None else min(FLUSH_INTERVAL, use.idle_seconds / SHARES)

    def _note(self, sandbox_id: str) -> _Use:
        """Count the sandbox as used now, in memory; return what is known of it."""
        now = self._clock.monotonic()
        use = self._uses.pop(sandbox_id, None) or _Use(now)
        use.at = now
        self._uses[sandbox_id] = use
        if len(self._uses) > MAX_ACTIVITY:
            # The one that was noted longest ago, and whose row knows of it.
            written = next((name for name in self._uses if name not in self._unwritten and name != sandbox_id), None)
            if written is not None:
                del self._uses[written]
        return use


class Reaper:
    """Ends sandboxes whose time is over, and deletes rows that nobody needs any more."""

    def __init__(
        self, uow: UnitOfWork, activity: Activity, clock: AsyncClock, settings: GatewaySettings, hearing: Hearing
    ) -> None:
        self._uow = uow
        self._hearing = hearing
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

        await self._uow.change(sandbox_id, decide, reserved=True)

    # -- lease of a wait ----------------------------------------------------------------------------------------------

    def renew(self, sandbox_id: str) -> None:
        """Renew the lease of a waiting sandbox: somebody asked for it."""
        self.leases.set(sandbox_id, self._clock.monotonic() + self._settings.pending_lease)

    async def _end_wait(self, sandbox_id: str) -> None:
        now, lease = self._clock.now(), self._settings.pending_lease
        if self._uow.is_watched(sandbox_id) or self._hearing.silence(-math.inf) < lease:
            self.renew(sandbox_id)
            return
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
                self._activity.touch(row.id, row.spec.idle_seconds)
            elif row.started_at is not None and self._activity.is_over(row):
                delete = partial(self._delete_idle, idle=row, since=self._activity.last_use(row.id))
                await self._uow.commit(delete, reserved=True)

    def _delete_idle(self, session: Session, idle: Sandbox, since: float | None) -> Written[None]:
        """Delete it, unless it was used here since ``since`` or, by its row, anywhere since ``idle`` was read."""
        row = sandboxes.get(session, idle.id)
        if row is None or (row.generation, row.uses) != (idle.generation, idle.uses):
            return Written(None)
        after = transitions.unless_leaving(row, DeathReason.IDLE, self._clock.now())
        if after is None or self._activity.last_use(row.id) != since:
            return Written(None)
        return Written(None, (sandboxes.save(session, row, after, unused=True),))

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
            await self._uow.db.write(partial(purge, before=before), reserved=True)
        oldest = oldest_kept(self._settings, self._clock.now())
        await self._uow.db.write(partial(usage.purge, before=oldest), reserved=True)
