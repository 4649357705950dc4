"""Sandboxes end by their ttl, waits by their lease, tombstones by their age."""

from datetime import datetime, timedelta
from functools import partial
from typing import Final

from sqlmodel import Session

from gateway.core import transitions
from gateway.core.model import Sandbox
from gateway.services.activity import FLUSH_INTERVAL
from gateway.services.ports import Clock
from gateway.services.timers import Deadlines
from gateway.services.unit_of_work import Ledger, Written
from gateway.settings import GatewaySettings
from gateway.store import nodes, prepared, sandboxes, tokens
from gateway.wire.errors import ErrorCode
from gateway.wire.states import DeathReason, SandboxState

HOUSEKEEPING_INTERVAL: Final = 3600.0
_TTL: Final = "ttl:"
_LEASE: Final = "lease:"


class Expiry:
    """Deadlines of sandboxes on the monotonic clock.

    A row's ``expires_at`` is turned into monotonic time once, when the row is first seen; so a jump of the wall clock
    while the gateway runs deletes nothing.
    """

    def __init__(self, ledger: Ledger, clock: Clock, settings: GatewaySettings) -> None:
        self._ledger = ledger
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
        for forget in (sandboxes.purge, nodes.purge_gone, nodes.purge_grants, tokens.purge_of_nodes, prepared.purge):
            await self._ledger.db.write(partial(forget, before=before))

    async def _due(self, key: str) -> None:
        if key.startswith(_TTL):
            await self._expire(key.removeprefix(_TTL))
        else:
            await self._give_up(key.removeprefix(_LEASE))

    async def _expire(self, sandbox_id: str) -> None:
        expires_at, now = self._armed.get(sandbox_id), self._clock.now()

        def decide(row: Sandbox) -> Sandbox | None:
            return transitions.unless_leaving(row, DeathReason.TTL, now) if row.expires_at == expires_at else None

        await self._ledger.change(sandbox_id, decide)

    async def _give_up(self, sandbox_id: str) -> None:
        if self._ledger.is_watched(sandbox_id):
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

        asked_elsewhere = await self._ledger.commit(fn)
        if asked_elsewhere:
            self.renew(sandbox_id)
