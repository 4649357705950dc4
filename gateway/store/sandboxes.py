"""Read and write sandboxes: plain functions over a session, for use inside `Database.read` and `Database.write`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import BindParameter, bindparam, case, delete, func, insert, select, update
from sqlmodel import Session, SQLModel, col

from gateway.core.model import Sandbox
from gateway.core.placement import RESOURCES, Requirements
from gateway.store import capacity
from gateway.store.db import StaleError, affected
from gateway.store.tables import LabelRow, SandboxRow
from gateway.wire.errors import ErrorCode
from gateway.wire.resources import Shape
from gateway.wire.sandboxes import Isolation, RuntimeName, SandboxSpec
from gateway.wire.states import ENDED, DeathReason, SandboxState

CHUNK: Final = 500
"""Ids in one statement."""
MAX_CACHED_SPEC: Final = 4096
"""Longest text of a spec whose parsed value is kept."""

_PLAIN: Final = frozenset(field.name for field in fields(Sandbox)) - {"spec", "state", "reason", "error"}
_PENDING: Final = col(SandboxRow.state) == SandboxState.PENDING.value
_OVER: Final = tuple(state.value for state in ENDED - {SandboxState.DELETED})

# -- one sandbox ------------------------------------------------------------------------------------------------------


def get(session: Session, sandbox_id: str) -> Sandbox | None:
    """Return the sandbox of this id, deleted ones included."""
    row = session.get(SandboxRow, sandbox_id)
    return None if row is None else sandbox_of(row)


def add(session: Session, sandbox: Sandbox) -> Sandbox:
    """Write a sandbox of a new id."""
    session.execute(insert(SandboxRow).values(**_columns(sandbox)))
    _write_labels(session, sandbox)
    return sandbox


def replace_deleted(session: Session, before: Sandbox, after: Sandbox) -> Sandbox:
    """Write a new incarnation over the tombstone of an earlier one. Raises as `save`."""
    session.execute(delete(LabelRow).where(col(LabelRow.sandbox_id) == before.id))
    written = _write(session, before, after)
    _write_labels(session, after)
    return written


def save(session: Session, before: Sandbox, after: Sandbox, *, unused: bool = False) -> Sandbox:
    """Write ``after`` over ``before``; return ``after`` with its new version.

    A prepared unit that ``after`` has no longer goes back in the same transaction.

    Args:
        session: of the caller's transaction.
        before: the row as it was read.
        after: what it becomes.
        unused: whether a use since ``before`` was read makes it stale; by itself that is no change of the row.

    Raises:
        StaleError: the row is no longer ``before``.
    """
    written = _write(session, before, after, unused=unused)
    if before.batch is not None and after.batch is None:
        capacity.give_back(session, before.batch)
    return written


def _write(session: Session, before: Sandbox, after: Sandbox, *, unused: bool = False) -> Sandbox:
    used = after.active_at != before.active_at
    written = replace(after, version=before.version + 1, uses=before.uses + used)
    columns = _columns(written)
    # Uses are written beside the version: those that came since the row was read stay.
    del columns["active_at"], columns["uses"]
    if used:
        columns |= _one_more_use(after.active_at)
    statement = (
        update(SandboxRow)
        .where(col(SandboxRow.id) == before.id, col(SandboxRow.version) == before.version)
        .values(**columns)
        .execution_options(synchronize_session=False)
    )
    if unused:
        statement = statement.where(col(SandboxRow.uses) == before.uses)
    if affected(session.execute(statement)) != 1:
        raise StaleError(f"sandbox {before.id} is no longer at version {before.version}")
    return written


def _write_labels(session: Session, sandbox: Sandbox) -> None:
    labels: Sequence[dict[str, str]] = [
        {"sandbox_id": sandbox.id, "key": key, "value": value} for key, value in sandbox.spec.labels.items()
    ]
    if labels:
        session.execute(insert(LabelRow), labels)


# -- many sandboxes ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SandboxQuery:
    """Which sandboxes to list: those after ``after`` (creation time and id) that match everything given."""

    limit: int
    labels: Mapping[str, str] = field(default_factory=dict)
    state: SandboxState | None = None
    after: tuple[datetime, str] | None = None
    tenant: str | None = None
    """Whose; ``None`` takes everybody's."""


def page(session: Session, query: SandboxQuery) -> list[Sandbox]:
    """Return at most ``query.limit`` sandboxes, oldest first; deleted ones only when ``query.state`` asks for them."""
    statement = select(SandboxRow).order_by(col(SandboxRow.created_at), col(SandboxRow.id)).limit(query.limit)
    if query.state is None:
        statement = statement.where(col(SandboxRow.state) != SandboxState.DELETED.value)
    else:
        statement = statement.where(col(SandboxRow.state) == query.state.value)
    if query.tenant is not None:
        statement = statement.where(col(SandboxRow.tenant) == query.tenant)
    for key, value in query.labels.items():
        labelled = select(col(LabelRow.sandbox_id)).where(col(LabelRow.key) == key, col(LabelRow.value) == value)
        statement = statement.where(col(SandboxRow.id).in_(labelled))
    if query.after is not None:
        moment, last = query.after
        created = col(SandboxRow.created_at)
        statement = statement.where((created > moment) | ((created == moment) & (col(SandboxRow.id) > last)))
    return [sandbox_of(row) for row in session.scalars(statement)]


def in_states(session: Session, states: Iterable[SandboxState]) -> list[Sandbox]:
    """Return all sandboxes in these states, oldest first."""
    statement = (
        select(SandboxRow)
        .where(col(SandboxRow.state).in_([state.value for state in states]))
        .order_by(col(SandboxRow.created_at), col(SandboxRow.id))
    )
    return [sandbox_of(row) for row in session.scalars(statement)]


def count_in(session: Session, state: SandboxState) -> int:
    """Return how many sandboxes are in this state."""
    counted = session.scalar(select(func.count()).select_from(SandboxRow).where(col(SandboxRow.state) == state.value))
    return counted or 0


def on_node(session: Session, node_id: str) -> list[Sandbox]:
    """Return all sandboxes of a node that are not deleted."""
    statement = select(SandboxRow).where(
        col(SandboxRow.node_id) == node_id, col(SandboxRow.state) != SandboxState.DELETED.value
    )
    return [sandbox_of(row) for row in session.scalars(statement)]


def left_behind(session: Session, now: datetime, changed: datetime, asked: datetime, ended: datetime) -> list[Sandbox]:
    """Return what a gateway that died may have left.

    Args:
        session: of the caller's transaction.
        now: UTC; sandboxes whose ttl is over by then are returned.
        changed: orders that are unsettled since then are returned.
        asked: waiting sandboxes that nobody has asked for since then are returned.
        ended: those without a ttl that ended by then are returned.
    """
    ordered = [state.value for state in (SandboxState.CREATING, SandboxState.RESTORING, SandboxState.DELETING)]
    over = [SandboxState.DELETING.value, SandboxState.DELETED.value]
    statement = select(SandboxRow).where(
        (col(SandboxRow.state).in_(ordered) & (col(SandboxRow.updated_at) < changed))
        | (_PENDING & (col(SandboxRow.active_at) < asked))
        | (col(SandboxRow.state).not_in(over) & (col(SandboxRow.expires_at) <= now))
        | (
            col(SandboxRow.state).in_(_OVER)
            & col(SandboxRow.expires_at).is_(None)
            & (col(SandboxRow.ended_at) <= ended)
        )
    )
    return [sandbox_of(row) for row in session.scalars(statement)]


def write_activity(session: Session, active: Mapping[str, datetime]) -> None:
    """Write when sandboxes were last used. It is no change of the sandbox, and leaves the version alone."""
    table = SQLModel.metadata.tables[str(SandboxRow.__tablename__)]
    moment = bindparam("moment", type_=table.c.active_at.type)
    statement = update(table).where(table.c.id == bindparam("sandbox_id")).values(_one_more_use(moment))
    # One statement for all: thousands may have been used.  In one order, so that no two gateways wait in a circle.
    session.connection().execute(
        statement, [{"sandbox_id": name, "moment": last} for name, last in sorted(active.items())]
    )


def purge(session: Session, before: datetime) -> int:
    """Delete the rows of sandboxes that were deleted before that time; return how many."""
    statement = (
        delete(SandboxRow)
        .where(col(SandboxRow.state) == SandboxState.DELETED.value, col(SandboxRow.updated_at) < before)
        .execution_options(synchronize_session=False)
    )
    return affected(session.execute(statement))


# -- what they take of their nodes ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reservation:
    """What the sandboxes of one node take of it."""

    shape: Shape
    count: int
    """How many hold something."""
    last_change: datetime


def reservations(session: Session) -> dict[str, Reservation]:
    """Return by node what its sandboxes hold, and when that last changed."""
    held = [getattr(SandboxRow, f"held_{name}") for name in RESOURCES]
    holding = func.count(func.nullif(SandboxRow.held_disk_mb, 0))
    last_change = func.max(SandboxRow.updated_at)
    statement = (
        select(col(SandboxRow.node_id), holding, last_change, *(func.sum(column) for column in held))
        .where(col(SandboxRow.node_id).is_not(None))
        .group_by(col(SandboxRow.node_id))
    )
    return {
        node_id: Reservation(Shape(**dict(zip(RESOURCES, sums, strict=True))), count, changed)
        for node_id, count, changed, *sums in session.execute(statement)
    }


def claims(session: Session, tenant: str) -> Shape:
    """Return what all sandboxes of a tenant take of their nodes, or wait for."""
    held = [func.coalesce(func.sum(getattr(SandboxRow, f"held_{name}")), 0) for name in RESOURCES]
    sums = session.execute(select(*held).where(col(SandboxRow.tenant) == tenant)).one()
    return Shape(**dict(zip(RESOURCES, sums, strict=True)))


# -- those that wait for room -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class QueuedSandbox:
    """A sandbox that waits."""

    sandbox_id: str
    shape: Shape
    runtime: RuntimeName | None
    isolation: Isolation
    since: datetime


def waiting_kinds(session: Session) -> dict[str, Sandbox]:
    """Return by `Requirements.key` one of those that wait; however many wait, only these rows are read."""
    statement = select(func.min(SandboxRow.id)).where(_PENDING).group_by(col(SandboxRow.want))
    ids = list(session.scalars(statement))
    found: dict[str, Sandbox] = {}
    for start in range(0, len(ids), CHUNK):
        rows = session.scalars(select(SandboxRow).where(col(SandboxRow.id).in_(ids[start : start + CHUNK])))
        found |= {row.want: sandbox_of(row) for row in rows}
    return found


def queue(session: Session, tenant: str | None = None) -> list[QueuedSandbox]:
    """Return all that wait, oldest first; equal requirements are read once.

    Args:
        session: of the caller's transaction.
        tenant: whose; ``None`` returns everybody's.
    """
    needs = {want: Requirements.of(example) for want, example in waiting_kinds(session).items()}
    statement = select(col(SandboxRow.id), col(SandboxRow.want), col(SandboxRow.created_at)).where(_PENDING)
    if tenant is not None:
        statement = statement.where(col(SandboxRow.tenant) == tenant)
    # One that began to wait between the two queries is returned next time.
    rows = session.execute(statement.order_by(col(SandboxRow.created_at), col(SandboxRow.id)))
    return [
        QueuedSandbox(sandbox_id, need.shape, need.runtime, need.isolation, since)
        for sandbox_id, want, since in rows
        if (need := needs.get(want)) is not None
    ]


def turns(session: Session, want: str, page: int) -> Iterator[tuple[datetime, str]]:
    """Yield since when each sandbox of one kind waits, and its id, oldest first.

    Args:
        session: of the caller's transaction.
        want: `Requirements.key` of the kind.
        page: rows read at a time.
    """
    began, name = col(SandboxRow.created_at), col(SandboxRow.id)
    statement = select(began, name).where(_PENDING, col(SandboxRow.want) == want).order_by(began, name).limit(page)
    after: tuple[datetime, str] | None = None
    while True:
        later = statement
        if after is not None:
            later = statement.where((began > after[0]) | ((began == after[0]) & (name > after[1])))
        found = [(moment, sandbox_id) for moment, sandbox_id in session.execute(later)]
        yield from found
        if len(found) < page:
            return
        after = found[-1]


def _one_more_use(moment: datetime | BindParameter[datetime]) -> dict[str, Any]:
    """Return the columns of a row that was used; the time of a clock that is behind moves nothing back."""
    known = col(SandboxRow.active_at)
    return {"active_at": case((known < moment, moment), else_=known), "uses": col(SandboxRow.uses) + 1}


# -- rows and values --------------------------------------------------------------------------------------------------


def sandbox_of(row: SandboxRow) -> Sandbox:
    """Return the domain value of a row."""
    return Sandbox(
        spec=_spec(row.spec),
        state=SandboxState(row.state),
        reason=None if row.reason is None else DeathReason(row.reason),
        error=None if row.error is None else ErrorCode(row.error),
        **{name: getattr(row, name) for name in _PLAIN},
    )


# Parsed values are frozen, and rows are read far more often than this column changes.
_cached_spec = lru_cache(4096)(SandboxSpec.model_validate_json)


def _spec(text: str) -> SandboxSpec:
    return _cached_spec(text) if len(text) <= MAX_CACHED_SPEC else SandboxSpec.model_validate_json(text)


def _columns(sandbox: Sandbox) -> dict[str, Any]:
    """Return the columns of a sandbox, ``id`` included."""
    columns: dict[str, Any] = {name: getattr(sandbox, name) for name in _PLAIN}
    held = sandbox.claimed
    return columns | {
        "id": sandbox.id,
        "spec": sandbox.spec.model_dump_json(),
        "want": Requirements.of(sandbox).key,
        "state": sandbox.state.value,
        "reason": sandbox.reason and sandbox.reason.value,
        "error": sandbox.error and sandbox.error.value,
        **{f"held_{name}": getattr(held, name) for name in RESOURCES},
    }
