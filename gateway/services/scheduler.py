"""Give sandboxes their nodes: at once where a create finds room (`admit`), otherwise when room comes (`Scheduler`).

A create writes its row, and where a node has room the choice of that node, in one transaction. What finds no room waits
as a pending row.

The scheduler is woken by events only: a sandbox begins to wait, room becomes free, a node joins or changes, ceilings
are reported. It scans the queue on a reader first; only what would find a node is placed in a write transaction, where
the choice is made again. A scan costs what could be placed and the number of different requirements, not the number of
those that wait.
"""

import asyncio
import heapq
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from operator import itemgetter
from typing import Final

from sqlmodel import Session

from gateway import errors
from gateway.core import transitions
from gateway.core.model import Sandbox
from gateway.core.placement import (
    NeverFits,
    NoRoom,
    Placed,
    Placement,
    PlacementBatch,
    Requirements,
    place,
    place_all,
)
from gateway.core.policy import Quota
from gateway.core.quota import claim_excess, paced
from gateway.services.tasks import AsyncClock
from gateway.services.unit_of_work import UnitOfWork, Written
from gateway.store import capacity, nodes, sandboxes
from gateway.store.db import lock_placement
from gateway.wire.errors import ErrorCode
from gateway.wire.resources import Shape
from gateway.wire.sandboxes import SandboxSpec
from gateway.wire.states import ENDED, SANDBOX_TRANSITIONS, SandboxState, next_state
from gateway.wire.tenants import DEFAULT_TENANT, qualified

Avoid = Mapping[str, frozenset[str]]
"""By sandbox: the nodes that refused it since their last heartbeat."""
FREEING: Final = ENDED | {SandboxState.PENDING}
"""States whose entry may leave room on a node (or asks for some)."""
MAX_BATCH: Final = 200
"""Most sandboxes placed in one transaction, so that other writes get their turn."""

# -- admission of one create ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CreateTerms:
    """What holds for a create beside its spec."""

    tenant: str = DEFAULT_TENANT
    """Whose the sandbox is."""
    default_ttl: int | None = None
    """Seconds that it lives if its spec has no ttl; ``None``: until it is deleted."""
    wait_seconds: float = math.inf
    """How long the client waits, cut to the service's own ``create_wait``."""
    quota: Quota | None = None
    """Of the tenant; ``None`` bounds nothing."""


DEFAULT_TERMS: Final = CreateTerms()


@dataclass(frozen=True)
class AdmissionRequest:
    """A create as it came in."""

    spec: SandboxSpec
    spec_hash: str
    operation_id: str
    now: datetime
    max_pending: int
    terms: CreateTerms

    @property
    def sandbox_id(self) -> str:
        """The qualified id."""
        return qualified(self.terms.tenant, self.spec.id)


@dataclass(frozen=True)
class Admitted:
    """The sandbox of the id as it now is; ``recovered`` when it was there before."""

    sandbox: Sandbox
    recovered: bool
    waits: NoRoom | None = None
    """Why it has to wait, if it has to."""


def admit(session: Session, request: AdmissionRequest) -> Written[Admitted]:
    """Write a new sandbox and, where a node has room, the choice of that node; or find what an earlier create wrote.

    Raises:
        ApiError: ``SPEC_CONFLICT``, ``QUOTA_EXCEEDED``, ``NEVER_FITS``, ``NO_ROOM`` when too many wait already.
    """
    present = sandboxes.get(session, request.sandbox_id)
    if present is None or present.state is SandboxState.DELETED:
        return _admit_new(session, request, present)
    if present.state is SandboxState.DELETING:
        return Written(Admitted(present, recovered=True))
    if present.spec_hash != request.spec_hash:
        raise errors.spec_conflict(present)
    if transitions.starts_afresh(present):
        return _admit_new(session, request, transitions.deleted(present, request.now))
    if present.state is SandboxState.PENDING:
        # It starts later, and by the policy of today's create.
        bound = transitions.bound_by_ttl(present, request.terms.default_ttl, request.now)
        if bound != present:
            saved = sandboxes.save(session, present, bound)
            return Written(Admitted(saved, recovered=True), (saved,))
    return Written(Admitted(present, recovered=True))


def _admit_new(session: Session, request: AdmissionRequest, tombstone: Sandbox | None) -> Written[Admitted]:
    """Write a new incarnation, over the tombstone of the one before it."""
    generation = 1 if tombstone is None else tombstone.generation + 1
    if tombstone is not None:
        next_state(SANDBOX_TRANSITIONS, tombstone.state, SandboxState.PENDING)
    fresh = transitions.accepted(
        request.spec,
        request.spec_hash,
        request.operation_id,
        request.now,
        generation,
        default_ttl=request.terms.default_ttl,
    )
    fresh = replace(fresh, tenant=request.terms.tenant, batch=None if tombstone is None else tombstone.batch)
    if request.terms.quota is not None:
        _charge(session, fresh, request.terms.quota, request.now)
    answer = place_one(session, Requirements.of(fresh))
    if isinstance(answer, NeverFits):
        raise errors.never_fits(f"sandbox {fresh.id}", fresh.spec.shape, answer, sandbox_id=fresh.id)
    if isinstance(answer, NoRoom) and sandboxes.count_in(session, SandboxState.PENDING) >= request.max_pending:
        raise errors.queue_full(fresh, request.max_pending)
    # In the same transaction: at no moment is a sandbox wanted twice, as pending or placed and as prepared.
    batch = capacity.claim(session, fresh, request.now)
    sandbox = replace(_after(fresh, answer, request.now), batch=batch)
    if tombstone is None:
        sandboxes.add(session, sandbox)
    else:
        sandbox = sandboxes.replace_deleted(session, tombstone, sandbox)
    waits = answer if isinstance(answer, NoRoom) else None
    return Written(Admitted(sandbox, recovered=False, waits=waits), (sandbox,))


def _charge(session: Session, fresh: Sandbox, quota: Quota, now: datetime) -> None:
    """Count a new sandbox against its tenant's quota, in the transaction that writes it."""
    require_quota(session, fresh.tenant, quota, fresh.asked)
    if quota.creates_per_second is None:
        return
    if not quota.creates_per_second:
        raise errors.creates_too_fast(fresh.tenant, quota, None)
    pace = paced(quota.creates_per_second, capacity.create_due(session, fresh.tenant), now)
    if pace.due is None:
        raise errors.creates_too_fast(fresh.tenant, quota, pace.wait_seconds)
    capacity.set_create_due(session, fresh.tenant, pace.due)


def require_quota(session: Session, tenant: str, quota: Quota, more: Shape) -> None:
    """Return if a tenant's quota leaves room for ``more``; nobody else claims anything before the transaction's end.

    Raises:
        ApiError: ``QUOTA_EXCEEDED``.
    """
    lock_placement(session.connection())
    excess = claim_excess(quota, sandboxes.claims(session, tenant), more)
    if excess is not None:
        raise errors.quota_exceeded(tenant, excess)


def place_one(session: Session, needs: Requirements) -> Placement:
    """Return where one sandbox could go now; in a write transaction nobody else places anything before its end."""
    lock_placement(session.connection())
    rooms = nodes.rooms(session)
    answer = place(needs, rooms)
    # Ceilings only say what could be bought besides.
    return answer if isinstance(answer, Placed) else place(needs, rooms, capacity.ceilings(session))


def _after(sandbox: Sandbox, answer: Placement, now: datetime) -> Sandbox:
    """Return the waiting sandbox once ``answer`` is known."""
    match answer:
        case Placed():
            return transitions.placed(sandbox, answer, now)
        case NeverFits():
            refusal = errors.never_fits(f"sandbox {sandbox.id}", sandbox.spec.shape, answer)
            return transitions.failed(sandbox, ErrorCode.NEVER_FITS, refusal.message, now)
        case NoRoom():
            return sandbox


# -- those that wait --------------------------------------------------------------------------------------------------


class Scheduler:
    """Places all waiting sandboxes, and knows why those that still wait do."""

    def __init__(self, uow: UnitOfWork, clock: AsyncClock) -> None:
        self._uow = uow
        self._clock = clock
        self._wake = asyncio.Event()
        self._avoid: dict[str, frozenset[str]] = {}
        self._waits: dict[str, NoRoom] = {}
        """Why sandboxes wait: by the key of their requirements, or by the id of one that nodes refused."""

    def on_change(self, sandbox: Sandbox) -> None:
        """React to a change of a sandbox."""
        if sandbox.state in FREEING:
            self._wake.set()
        if sandbox.state not in {SandboxState.PENDING, SandboxState.CREATING}:
            self._avoid.pop(sandbox.id, None)

    def wake(self) -> None:
        """Scan the queue again: room may have become free."""
        self._wake.set()

    def avoid(self, sandbox_id: str, node_id: str) -> None:
        """Keep a sandbox off a node that refused it, until the node's next heartbeat."""
        self._avoid[sandbox_id] = self._avoid.get(sandbox_id, frozenset()) | {node_id}

    def forgive(self, node_id: str) -> None:
        """Let the node, whose heartbeat came, be asked again for the sandboxes that it refused."""
        refused = [sandbox_id for sandbox_id, avoided in self._avoid.items() if node_id in avoided]
        for sandbox_id in refused:
            left = self._avoid.pop(sandbox_id) - {node_id}
            if left:
                self._avoid[sandbox_id] = left
            self._wake.set()

    def note(self, sandbox: Sandbox, waits: NoRoom) -> None:
        """Remember why the sandbox, and every other with equal requirements, waits."""
        self._waits[Requirements.of(sandbox).key] = waits

    def waits(self, sandbox: Sandbox) -> NoRoom | None:
        """Return why a sandbox waits, as of the last scan; ``None`` for one that does not, or was not looked at."""
        if sandbox.state is not SandboxState.PENDING:
            return None
        return self._waits.get(sandbox.id) or self._waits.get(Requirements.of(sandbox).key)

    async def run(self) -> None:
        """Place what waits, whenever it may have become possible, for ever."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self.place_waiting()
            except BaseException:
                self._wake.set()  # what was not scanned is scanned when the loop begins again
                raise

    async def place_waiting(self) -> None:
        """Scan the queue once and place what finds room, `MAX_BATCH` at most."""
        # Not a copy: a refusal is noted before its row waits again, so whoever reads that row finds it here.
        avoid = self._avoid
        scan = await self._uow.db.read(lambda session: _scan(session, avoid))
        self._waits = scan.waits
        if scan.more:
            self._wake.set()
        if scan.settled:
            now = self._clock.now()
            await self._uow.commit(lambda session: _place_these(session, scan.settled, avoid, now))


@dataclass(frozen=True)
class _QueueScan:
    """What could be done for those that wait."""

    settled: tuple[str, ...] = ()
    """Those that would find a node now, or never will, oldest first; `MAX_BATCH` at most."""
    more: bool = False
    """Whether there may be more of them."""
    waits: dict[str, NoRoom] = field(default_factory=dict)
    """See `Scheduler`."""


@dataclass
class _Kind:
    """All sandboxes with equal requirements."""

    want: str
    """As the store has it."""
    needs: Requirements
    exhausted: bool = False
    """Nothing is left for them."""


def _scan(session: Session, avoid: Avoid) -> _QueueScan:
    """Read one row for each kind that finds nothing, and ids of the other kinds as far as they find something."""
    examples = sandboxes.waiting_kinds(session)
    if not examples:
        return _QueueScan()
    batch = PlacementBatch(nodes.rooms(session), capacity.ceilings(session))
    waits: dict[str, NoRoom] = {}
    hopeful: list[_Kind] = []
    for want, example in examples.items():
        kind = _Kind(want, Requirements.of(example))
        answer = batch.judge(kind.needs)
        if isinstance(answer, NoRoom):
            waits[kind.needs.key] = answer
        else:
            hopeful.append(kind)
    settled: list[str] = []
    for _, sandbox_id, kind in heapq.merge(*(_turns(session, kind) for kind in hopeful), key=itemgetter(0, 1)):
        refused = avoid.get(sandbox_id)
        answer = batch.place(kind.needs if refused is None else replace(kind.needs, avoid=refused))
        if not isinstance(answer, NoRoom):
            settled.append(sandbox_id)
            if len(settled) == MAX_BATCH:
                return _QueueScan(tuple(settled), True, waits)
        elif refused is None:
            kind.exhausted = True
            waits[kind.needs.key] = answer
        else:
            waits[sandbox_id] = answer
    return _QueueScan(tuple(settled), False, waits)


def _turns(session: Session, kind: _Kind) -> Iterator[tuple[datetime, str, _Kind]]:
    for moment, sandbox_id in sandboxes.turns(session, kind.want, MAX_BATCH):
        if kind.exhausted:
            return
        yield moment, sandbox_id, kind


def _place_these(session: Session, only: Collection[str], avoid: Avoid, now: datetime) -> Written[None]:
    """Place those of ``only`` that still wait, oldest first."""
    lock_placement(session.connection())
    found = [sandboxes.get(session, sandbox_id) for sandbox_id in only]
    waiting = sorted(
        (sandbox for sandbox in found if sandbox is not None and sandbox.state is SandboxState.PENDING),
        key=lambda sandbox: (sandbox.created_at, sandbox.id),
    )
    needs = [(sandbox.id, Requirements.of(sandbox, avoid.get(sandbox.id, frozenset()))) for sandbox in waiting]
    answers = place_all(needs, nodes.rooms(session), capacity.ceilings(session))
    changed = [
        sandboxes.save(session, sandbox, _after(sandbox, answers[sandbox.id], now))
        for sandbox in waiting
        if not isinstance(answers[sandbox.id], NoRoom)
    ]
    return Written(None, tuple(changed))
