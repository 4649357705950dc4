"""Gives waiting sandboxes their nodes.

Woken by events only: a sandbox begins to wait, room becomes free, a node joins or changes, ceilings are told.  It
looks on a reader first; only what would find a node is placed in the write transaction, where the choice is made again.
"""

import asyncio
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Final

from sqlmodel import Session

from gateway.core import lifecycle
from gateway.core.model import Sandbox
from gateway.core.placement import NeverFits, NoRoom, Placed, Placement, Wanted, place, place_all
from gateway.services.ledger import Ledger, Written
from gateway.services.ports import Clock
from gateway.store import ceilings, nodes, sandboxes
from gateway.store.db import lock_placement
from gateway.wire.errors import ErrorCode
from gateway.wire.states import ENDED, SandboxState

Avoid = Mapping[str, frozenset[str]]
FREEING = ENDED | {SandboxState.PENDING}
"""States whose entry may leave room on a node (or asks for some)."""
BATCH: Final = 200
"""Most sandboxes placed in one transaction, so that other writes get their turn."""


class Dispatcher:
    """Placement of all waiting sandboxes, and why those that still wait do."""

    def __init__(self, ledger: Ledger, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock
        self._wake = asyncio.Event()
        self._avoid: dict[str, frozenset[str]] = {}
        self._reasons: dict[str, tuple[str, ...]] = {}

    def on_change(self, sandbox: Sandbox) -> None:
        """Reacts to a change of a sandbox."""
        if sandbox.state in FREEING:
            self._wake.set()
        if sandbox.state is not SandboxState.PENDING:
            self._reasons.pop(sandbox.id, None)
        if sandbox.state not in {SandboxState.PENDING, SandboxState.CREATING}:
            self._avoid.pop(sandbox.id, None)

    def wake(self) -> None:
        """Room may have become free."""
        self._wake.set()

    def avoid(self, sandbox_id: str, node_id: str) -> None:
        """The node refused that sandbox: it is not asked again before it was heard of."""
        self._avoid[sandbox_id] = self.avoided(sandbox_id) | {node_id}

    def avoided(self, sandbox_id: str) -> frozenset[str]:
        """Nodes that refused it since they were last heard of."""
        return self._avoid.get(sandbox_id, frozenset())

    def forgive(self, node_id: str) -> None:
        """The node was heard of: it may be asked again."""
        refused = [sandbox_id for sandbox_id, avoided in self._avoid.items() if node_id in avoided]
        for sandbox_id in refused:
            left = self._avoid.pop(sandbox_id) - {node_id}
            if left:
                self._avoid[sandbox_id] = left
            self._wake.set()

    def note(self, sandbox_id: str, reasons: tuple[str, ...]) -> None:
        """Why it waits."""
        self._reasons[sandbox_id] = reasons

    def reasons(self, sandbox_id: str) -> list[str]:
        """One sentence a node, as of the last look."""
        return list(self._reasons.get(sandbox_id, ()))

    async def run(self) -> None:
        """Places what waits, whenever it may have become possible, for ever."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._place()
            except BaseException:
                self._wake.set()  # what was not looked at is looked at when the loop begins again
                raise

    async def _place(self) -> None:
        avoid = dict(self._avoid)
        answers = await self._ledger.db.read(lambda session: _answers(session, avoid))
        self._reasons = {name: answer.reasons for name, answer in answers.items() if isinstance(answer, NoRoom)}
        settled = [sandbox_id for sandbox_id, answer in answers.items() if not isinstance(answer, NoRoom)]
        if len(settled) > BATCH:
            del settled[BATCH:]
            self._wake.set()
        if settled:
            now = self._clock.now()
            await self._ledger.commit(lambda session: _place_these(session, settled, avoid, now))


def judge(session: Session, wanted: Wanted) -> Placement:
    """Where one sandbox could go now; in a write transaction nobody else places anything before its end."""
    lock_placement(session.connection())
    return place(wanted, nodes.rooms(session), ceilings.told(session))


def after(sandbox: Sandbox, answer: Placement, now: datetime) -> Sandbox:
    """The waiting sandbox once ``answer`` is known."""
    match answer:
        case Placed():
            return lifecycle.placed(sandbox, answer, now)
        case NeverFits():
            return lifecycle.failed(sandbox, ErrorCode.NEVER_FITS, never_fits(sandbox, answer), now)
        case NoRoom():
            return sandbox


def never_fits(sandbox: Sandbox, answer: NeverFits) -> str:
    """The sentence for a shape that nothing could hold."""
    return f"sandbox {sandbox.id} fits no node and no pool: {'; '.join(answer.reasons)}; ask for less"


def _answers(session: Session, avoid: Avoid) -> dict[str, Placement]:
    waiting = sandboxes.in_states(session, [SandboxState.PENDING])
    if not waiting:
        return {}
    wanted = [(sandbox.id, Wanted.of(sandbox, avoid.get(sandbox.id, frozenset()))) for sandbox in waiting]
    return place_all(wanted, nodes.rooms(session), ceilings.told(session))


def _place_these(session: Session, only: Collection[str], avoid: Avoid, now: datetime) -> Written[None]:
    lock_placement(session.connection())
    found = [sandboxes.get(session, sandbox_id) for sandbox_id in only]
    waiting = sorted(
        (sandbox for sandbox in found if sandbox is not None and sandbox.state is SandboxState.PENDING),
        key=lambda sandbox: (sandbox.created_at, sandbox.id),
    )
    wanted = [(sandbox.id, Wanted.of(sandbox, avoid.get(sandbox.id, frozenset()))) for sandbox in waiting]
    answers = place_all(wanted, nodes.rooms(session), ceilings.told(session))
    changed = [
        sandboxes.save(session, sandbox, after(sandbox, answers[sandbox.id], now))
        for sandbox in waiting
        if not isinstance(answers[sandbox.id], NoRoom)
    ]
    return Written(None, tuple(changed))
