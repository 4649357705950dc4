"""Taking in a create: the row that says what will be done, before anything is done."""

import asyncio
import heapq
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from operator import itemgetter
from typing import Final

from sqlmodel import Session

from gateway.core import transitions
from gateway.core.model import Sandbox
from gateway.core.placement import NeverFits, NoRoom, Placed, Placement, PlacementBatch, Requirements, place, place_all
from gateway.errors import ApiError
from gateway.services.tasks import AsyncClock
from gateway.services.unit_of_work import UnitOfWork, Written
from gateway.store import capacity, nodes, sandboxes
from gateway.store.db import lock_placement
from gateway.wire.errors import ErrorCode
from gateway.wire.sandboxes import SandboxSpec
from gateway.wire.states import ENDED, SANDBOX_TRANSITIONS, SandboxState, next_state


@dataclass(frozen=True)
class Application:
    """A create as it came in."""

    spec: SandboxSpec
    spec_hash: str
    operation_id: str
    now: datetime
    max_pending: int


@dataclass(frozen=True)
class Admitted:
    """The sandbox of the id as it now is; ``recovered`` when it was there before."""

    sandbox: Sandbox
    recovered: bool
    reasons: tuple[str, ...] = ()


def admit(session: Session, application: Application) -> Written[Admitted]:
    """Writes the intent and, where a node has room, its choice; or finds what an earlier create wrote.

    Raises:
        ApiError: ``SPEC_CONFLICT``, ``NEVER_FITS``, ``NO_ROOM`` when too many wait already.
    """
    present = sandboxes.get(session, application.spec.id)
    if present is None:
        return _begin(session, application, None)
    if present.state is SandboxState.DELETED:
        return _begin(session, application, present)
    if present.state is SandboxState.DELETING:
        return Written(Admitted(present, recovered=True))
    if present.spec_hash != application.spec_hash:
        raise ApiError(
            ErrorCode.SPEC_CONFLICT,
            f"sandbox {present.id} exists with another spec; delete it first, or choose another id",
            sandbox_id=present.id,
            state=present.state.value,
        )
    if transitions.starts_afresh(present):
        return _begin(session, application, transitions.deleted(present, application.now))
    return Written(Admitted(present, recovered=True))


def _begin(session: Session, application: Application, tombstone: Sandbox | None) -> Written[Admitted]:
    """Writes a new incarnation, over the tombstone of the one before it."""
    generation = 1 if tombstone is None else tombstone.generation + 1
    if tombstone is not None:
        next_state(SANDBOX_TRANSITIONS, tombstone.state, SandboxState.PENDING)
    fresh = transitions.accepted(
        application.spec, application.spec_hash, application.operation_id, application.now, generation
    )
    answer = judge(session, Requirements.of(fresh))
    if isinstance(answer, NeverFits):
        raise ApiError(
            ErrorCode.NEVER_FITS,
            never_fits(fresh, answer),
            sandbox_id=fresh.id,
            reasons=list(answer.reasons),
            requested_resources=fresh.spec.shape,
            maximum_resources=answer.maximum,
        )
    if isinstance(answer, NoRoom) and sandboxes.count_in(session, SandboxState.PENDING) >= application.max_pending:
        raise ApiError(
            ErrorCode.NO_ROOM,
            f"sandbox {fresh.id} was not taken in: {application.max_pending} others wait already; try again later",
            retry_after=10,
            sandbox_id=fresh.id,
        )
    # In the same transaction: at no moment is a sandbox wanted twice, as pending or placed and as prepared.
    batch = capacity.claim(session, application.spec, application.now, None if tombstone is None else tombstone.batch)
    sandbox = replace(after(fresh, answer, application.now), batch=batch)
    if tombstone is None:
        sandboxes.add(session, sandbox)
    else:
        sandbox = sandboxes.replace_deleted(session, tombstone, sandbox)
    reasons = answer.reasons if isinstance(answer, NoRoom) else ()
    return Written(Admitted(sandbox, recovered=False, reasons=reasons), (sandbox,))


Avoid = Mapping[str, frozenset[str]]
FREEING = ENDED | {SandboxState.PENDING}
"""States whose entry may leave room on a node (or asks for some)."""
BATCH: Final = 200
"""Most sandboxes placed in one transaction, so that other writes get their turn."""


class Scheduler:
    """Placement of all waiting sandboxes, and why those that still wait do."""

    def __init__(self, uow: UnitOfWork, clock: AsyncClock) -> None:
        self._uow = uow
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
        self._reasons[Requirements.of(sandbox).key] = reasons

    def reasons(self, sandbox: Sandbox) -> list[str]:
        """One sentence a node, as of the last look."""
        found = self._reasons.get(sandbox.id)
        return list(self._reasons.get(Requirements.of(sandbox).key, ()) if found is None else found)

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
        seen = await self._uow.db.read(lambda session: _look(session, avoid))
        self._reasons = seen.reasons
        if seen.more:
            self._wake.set()
        if seen.settled:
            now = self._clock.now()
            await self._uow.commit(lambda session: _place_these(session, seen.settled, avoid, now))


@dataclass(frozen=True)
class _QueueScan:
    """What could be done for those that wait."""

    settled: tuple[str, ...] = ()
    """Those that would find a node now, or never will, oldest first; `BATCH` at most."""
    more: bool = False
    """Whether there may be more of them."""
    reasons: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """See `Scheduler`."""


@dataclass
class _Kind:
    """All that need the same."""

    want: str
    """As the store has it."""
    wanted: Requirements
    over: bool = False
    """Nothing is left for them."""


def judge(session: Session, wanted: Requirements) -> Placement:
    """Where one sandbox could go now; in a write transaction nobody else places anything before its end."""
    lock_placement(session.connection())
    return place(wanted, nodes.rooms(session), capacity.ceilings(session))


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


def _look(session: Session, avoid: Avoid) -> _QueueScan:
    """Reads one row for each need that nothing is there for, and ids as far as something is."""
    examples = sandboxes.waiting_kinds(session)
    if not examples:
        return _QueueScan()
    batch = PlacementBatch(nodes.rooms(session), capacity.ceilings(session))
    reasons: dict[str, tuple[str, ...]] = {}
    hopeful: list[_Kind] = []
    for want, example in examples.items():
        kind = _Kind(want, Requirements.of(example))
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
                return _QueueScan(tuple(settled), True, reasons)
        elif refused is None:
            kind.over = True
            reasons[kind.wanted.key] = answer.reasons
        else:
            reasons[sandbox_id] = answer.reasons
    return _QueueScan(tuple(settled), False, reasons)


def _turns(session: Session, kind: _Kind) -> Iterator[tuple[datetime, str, _Kind]]:
    for moment, sandbox_id in sandboxes.turns(session, kind.want, BATCH):
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
    wanted = [(sandbox.id, Requirements.of(sandbox, avoid.get(sandbox.id, frozenset()))) for sandbox in present]
    answers = place_all(wanted, nodes.rooms(session), capacity.ceilings(session))
    changed = [
        sandboxes.save(session, sandbox, after(sandbox, answers[sandbox.id], now))
        for sandbox in present
        if not isinstance(answers[sandbox.id], NoRoom)
    ]
    return Written(None, tuple(changed))
