"""Taking in a create: the row that says what will be done, before anything is done."""

from dataclasses import dataclass, replace
from datetime import datetime

from sqlmodel import Session

from gateway.core import transitions
from gateway.core.model import Sandbox
from gateway.core.placement import NeverFits, NoRoom, Wanted
from gateway.errors import ApiError
from gateway.services import scheduler
from gateway.services.unit_of_work import Written
from gateway.store import prepared, sandboxes
from gateway.wire.errors import ErrorCode
from gateway.wire.sandboxes import SandboxSpec
from gateway.wire.states import SANDBOX_TRANSITIONS, SandboxState, next_state


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
    answer = scheduler.judge(session, Wanted.of(fresh))
    if isinstance(answer, NeverFits):
        raise ApiError(
            ErrorCode.NEVER_FITS,
            scheduler.never_fits(fresh, answer),
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
    batch = prepared.claim(session, application.spec, application.now, None if tombstone is None else tombstone.batch)
    sandbox = replace(scheduler.after(fresh, answer, application.now), batch=batch)
    if tombstone is None:
        sandboxes.add(session, sandbox)
    else:
        sandbox = sandboxes.replace_deleted(session, tombstone, sandbox)
    reasons = answer.reasons if isinstance(answer, NoRoom) else ()
    return Written(Admitted(sandbox, recovered=False, reasons=reasons), (sandbox,))
