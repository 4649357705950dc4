"""When sandboxes were last used: in memory, and written now and then."""

from datetime import timedelta
from typing import Final

from gateway.core.model import Sandbox
from gateway.errors import ApiError
from gateway.services.ports import Clock
from gateway.store import sandboxes
from gateway.store.db import Database
from gateway.wire.states import SandboxState

FLUSH_INTERVAL: Final = 30.0
"""Seconds between two writes; a crash forgets at most this much activity, which is granted again at start."""

MOST_KEPT: Final = 100_000
"""Sandboxes whose last use is held in memory."""


class Activity:
    """Uses of sandboxes on the monotonic clock."""

    def __init__(self, db: Database, clock: Clock) -> None:
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
