"""Gives waiting sandboxes their nodes.

Woken by events only: a sandbox begins to wait, room becomes free, a node joins or changes, ceilings are told.  It
looks on a reader first; only what would find a node is placed in the write transaction, where the choice is made again.
A look costs what could be placed and the number of different needs, not the number of those that wait.
"""

import asyncio
import heapq
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from operator import itemgetter
from typing import Final

from sqlmodel import Session

from gateway.core import transitions
from gateway.core.batch import Batch, place_all
from gateway.core.model import Sandbox
from gateway.core.placement import NeverFits, NoRoom, Placed, Placement, Wanted, place
from gateway.services.ports import Clock
from gateway.services.unit_of_work import Ledger, Written
from gateway.store import ceilings, nodes, sandboxes, waiting
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
        """Why those wait that need the same; by the key of the need, or by the id of one that nodes refused."""

    def on_change(self, sandbox: Sandbox) -> None:
        """Reacts to a change of a sandbox."""
        if sandbox.state in FREEING:
            self._wake.set()
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

    def note(self, sandbox: Sandbox, reasons: tuple[str, ...]) -> None:
        """Why it, and whoever needs the same, waits."""
        self._reasons[Wanted.of(sandbox).key] = reasons

    def reasons(self, sandbox: Sandbox) -> list[str]:
        """One sentence a node, as of the last look."""
        found = self._reasons.get(sandbox.id)
        return list(self._reasons.get(Wanted.of(sandbox).key, ()) if found is None else found)

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
        # Not a copy: a refusal is noted before its row waits again, so whoever reads that row finds it here.
        avoid = self._avoid
        seen = await self._ledger.db.read(lambda session: _look(session, avoid))
        self._reasons = seen.reasons
        if seen.more:
            self._wake.set()
        if seen.settled:
            now = self._clock.now()
            await self._ledger.commit(lambda session: _place_these(session, seen.settled, avoid, now))


@dataclass(frozen=True)
class _Look:
    """What could be done for those that wait."""

    settled: tuple[str, ...] = ()
    """Those that would find a node now, or never will, oldest first; `BATCH` at most."""
    more: bool = False
    """Whether there may be more of them."""
    reasons: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """See `Dispatcher`."""


@dataclass
class _Kind:
    """All that need the same."""

    want: str
    """As the store has it."""
    wanted: Wanted
    over: bool = False
    """Nothing is left for them."""


def judge(session: Session, wanted: Wanted) -> Placement:
    """Where one sandbox could go now; in a write transaction nobody else places anything before its end."""
    lock_placement(session.connection())
    return place(wanted, nodes.rooms(session), ceilings.told(session))


def after(sandbox: Sandbox, answer: Placement, now: datetime) -> Sandbox:
    """The waiting sandbox once ``answer`` is known."""
    match answer:
        case Placed():
            return transitions.placed(sandbox, answer, now)
        case NeverFits():
            return transitions.failed(sandbox, ErrorCode.NEVER_FITS, never_fits(sandbox, answer), now)
        case NoRoom():
            return sandbox


def never_fits(sandbox: Sandbox, answer: NeverFits) -> str:
    """The sentence for a shape that nothing could hold."""
    return f"sandbox {sandbox.id} fits no node and no pool: {'; '.join(answer.reasons)}; ask for less"


def _look(session: Session, avoid: Avoid) -> _Look:
    """Reads one row for each need that nothing is there for, and ids as far as something is."""
    examples = waiting.kinds(session)
    if not examples:
        return _Look()
    batch = Batch(nodes.rooms(session), ceilings.told(session))
    reasons: dict[str, tuple[str, ...]] = {}
    hopeful: list[_Kind] = []
    for want, example in examples.items():
        kind = _Kind(want, Wanted.of(example))
        answer = batch.judge(kind.wanted)
        if isinstance(answer, NoRoom):
            reasons[kind.wanted.key] = answer.reasons
        else:
            hopeful.append(kind)
    settled: list[str] = []
    for _, sandbox_id, kind in heapq.merge(*(_turns(session, kind) for kind in hopeful), key=itemgetter(0, 1)):
        refused = avoid.get(sandbox_id)
        answer = batch.place(kind.wanted if refused is None else replace(kind.wanted, avoid=refused))
        if not isinstance(answer, NoRoom):
            settled.append(sandbox_id)
            if len(settled) == BATCH:
                return _Look(tuple(settled), True, reasons)
        elif refused is None:
            kind.over = True
            reasons[kind.wanted.key] = answer.reasons
        else:
            reasons[sandbox_id] = answer.reasons
    return _Look(tuple(settled), False, reasons)


def _turns(session: Session, kind: _Kind) -> Iterator[tuple[datetime, str, _Kind]]:
    for moment, sandbox_id in waiting.turns(session, kind.want, BATCH):
        if kind.over:
            return
        yield moment, sandbox_id, kind


def _place_these(session: Session, only: Collection[str], avoid: Avoid, now: datetime) -> Written[None]:
    lock_placement(session.connection())
    found = [sandboxes.get(session, sandbox_id) for sandbox_id in only]
    present = sorted(
        (sandbox for sandbox in found if sandbox is not None and sandbox.state is SandboxState.PENDING),
        key=lambda sandbox: (sandbox.created_at, sandbox.id),
    )
    wanted = [(sandbox.id, Wanted.of(sandbox, avoid.get(sandbox.id, frozenset()))) for sandbox in present]
    answers = place_all(wanted, nodes.rooms(session), ceilings.told(session))
    changed = [
        sandboxes.save(session, sandbox, after(sandbox, answers[sandbox.id], now))
        for sandbox in present
        if not isinstance(answers[sandbox.id], NoRoom)
    ]
    return Written(None, tuple(changed))
