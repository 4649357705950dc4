"""Whether this gateway would have heard: silence means something only to a listener.

Nodes, clients and other gateways are judged by their silence: a node is lost, a sandbox idle, a wait abandoned. A
gateway that was stopped, starved of its processor or cut off from its database has heard nobody meanwhile, whoever
spoke. So silence counts from the moment since which the gateway has listened without a gap.
"""

import logging
import math
from typing import Final

from gateway.errors import ApiError
from gateway.services.tasks import AsyncClock
from gateway.store.db import Database

log = logging.getLogger(__name__)

PULSE: Final = 1.0
"""Seconds between two proofs that this process runs."""


class Hearing:
    """Notices when the gateway was deaf: its process stood still, or its database took no write.

    Args:
        db: the database. One that others share is tried at each ``interval``; on a file each heartbeat is a trial.
        clock: of the gateway.
        interval: seconds between two heartbeats of a node; a shorter gap makes nobody miss more than one.
    """

    def __init__(self, db: Database, clock: AsyncClock, interval: float) -> None:
        self._db = db
        self._clock = clock
        self._interval = interval
        self._pulsed_at = self._tried_at = clock.monotonic()
        # Who has the database alone missed nothing before the start: nobody else could have been heard.
        self._since = self._pulsed_at if db.shared else -math.inf
        self.trying = False
        """Whether the database is being tried now."""

    @property
    def since(self) -> float:
        """The monotonic time since which the gateway has listened without a gap."""
        # Asked for before the pulse after a gap, perhaps: both wake at the same moment.
        if (gap := self._clock.monotonic() - self._pulsed_at - PULSE) > self._interval:
            self._pulsed_at = self._clock.monotonic()
            self.missed(f"this process stood still for {gap:.0f} s")
        return self._since

    def silence(self, heard_at: float) -> float:
        """Return for how many seconds somebody was silent who was last heard at that monotonic time."""
        return self._clock.monotonic() - max(heard_at, self.since)

    def missed(self, why: str) -> None:
        """Note that something was missed, up to now."""
        now = self._clock.monotonic()
        if now - self._since > 2 * self._interval:
            log.warning("%s: what was silent meanwhile may have spoken, and is judged afresh from now on", why)
        self._since = now

    async def run(self) -> None:
        """Listen, for ever."""
        while True:
            await self._clock.sleep(PULSE)
            self._pulse()
            if self._db.shared and self._clock.monotonic() - self._tried_at >= self._interval:
                await self._try()

    def _pulse(self) -> None:
        _ = self.since
        self._pulsed_at = self._clock.monotonic()

    async def _try(self) -> None:
        self._tried_at = self._clock.monotonic()
        self.trying = True
        try:
            await self._db.probe()
        except ApiError as error:
            self.missed(error.message)
        finally:
            self.trying = False
        self._pulse()  # a trial that took long is a gap as well
