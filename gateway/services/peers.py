"""Other gateways on the same PostgreSQL: what they change is heard at once, what they leave undone is taken over."""

from contextlib import aclosing
from datetime import timedelta
from functools import partial
from typing import Final

from sqlmodel import Session

from gateway.core.model import Sandbox
from gateway.services.ports import Clock
from gateway.services.unit_of_work import Ledger
from gateway.store import sandboxes

TAKEOVER_INTERVAL: Final = 30.0
"""Seconds between two looks for work that another gateway may have left, which is older than this."""

ASKED_WITHIN: Final = 90.0
"""Seconds in which a wait is asked for again and that is written, while its gateway and its client live."""


class Neighbours:
    """Listens to them, and steps in for those that died.  Has nothing to do on SQLite, which has one gateway."""

    def __init__(self, ledger: Ledger, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock

    async def listen(self) -> None:
        """Passes on what others change, until the connection is lost."""
        async with aclosing(self._ledger.db.notices()) as notices:
            async for ids in notices:
                # None: it only now listens, and whatever somebody waits for may have happened before.
                rows = partial(_rows, names=self._ledger.watched() if ids is None else ids)
                for sandbox in await self._ledger.db.read(rows):
                    self._ledger.hear(sandbox)

    async def take_over(self) -> None:
        """Drives on what nobody has driven on for a while, for ever.

        Its own gateway may still be at it: orders are idempotent, and the same order to a node joins the first one.
        """
        while True:
            await self._clock.sleep(TAKEOVER_INTERVAL)
            if self._ledger.db.shared:
                for sandbox in await self._ledger.db.read(self._left):
                    self._ledger.publish(sandbox)

    def _left(self, session: Session) -> list[Sandbox]:
        now = self._clock.now()
        changed, asked = now - timedelta(seconds=TAKEOVER_INTERVAL), now - timedelta(seconds=ASKED_WITHIN)
        return sandboxes.left_behind(session, now, changed, asked)


def _rows(session: Session, names: list[str]) -> list[Sandbox]:
    found = (sandboxes.get(session, name) for name in names)
    return [sandbox for sandbox in found if sandbox is not None]
