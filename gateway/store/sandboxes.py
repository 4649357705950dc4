"""Reading and writing sandboxes.  Plain functions over a session, for use inside `Database.read` and `write`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from sqlalchemy import bindparam, delete, func, insert, select, update
from sqlmodel import Session, SQLModel, col

from gateway.core.inventory import bumped
from gateway.core.model import Sandbox
from gateway.store import prepared
from gateway.store.db import StaleError, affected
from gateway.store.mapping import sandbox_columns, sandbox_of
from gateway.store.tables import LabelRow, SandboxRow
from gateway.wire.resources import Shape
from gateway.wire.states import SandboxState


@dataclass(frozen=True)
class Query:
    """Which sandboxes to list: those after ``after`` (creation time and id) that match everything given."""

    limit: int
    labels: Mapping[str, str] = field(default_factory=dict)
    state: SandboxState | None = None
    after: tuple[datetime, str] | None = None


def get(session: Session, sandbox_id: str) -> Sandbox | None:
    """The sandbox of this id, deleted ones included."""
    row = session.get(SandboxRow, sandbox_id)
    return None if row is None else sandbox_of(row)


def page(session: Session, query: Query) -> list[Sandbox]:
    """At most ``query.limit`` sandboxes, oldest first; deleted ones only when the query's state asks for them."""
    statement = select(SandboxRow).order_by(col(SandboxRow.created_at), col(SandboxRow.id)).limit(query.limit)
    if query.state is None:
        statement = statement.where(col(SandboxRow.state) != SandboxState.DELETED.value)
    else:
        statement = statement.where(col(SandboxRow.state) == query.state.value)
    for key, value in query.labels.items():
        tagged = select(col(LabelRow.sandbox_id)).where(col(LabelRow.key) == key, col(LabelRow.value) == value)
        statement = statement.where(col(SandboxRow.id).in_(tagged))
    if query.after is not None:
        moment, last = query.after
        created = col(SandboxRow.created_at)
        statement = statement.where((created > moment) | ((created == moment) & (col(SandboxRow.id) > last)))
    return [sandbox_of(row) for row in session.scalars(statement)]


def in_states(session: Session, states: Iterable[SandboxState], limit: int | None = None) -> list[Sandbox]:
    """All sandboxes in these states, oldest first."""
    statement = (
        select(SandboxRow)
        .where(col(SandboxRow.state).in_([state.value for state in states]))
        .order_by(col(SandboxRow.created_at), col(SandboxRow.id))
        .limit(limit)
    )
    return [sandbox_of(row) for row in session.scalars(statement)]


def left_behind(session: Session, now: datetime, changed: datetime, asked: datetime) -> list[Sandbox]:
    """What a gateway that died may have left: orders unsettled since ``changed``, waits that nobody has asked for since
    ``asked``, and sandboxes whose time is over.
    """
    ordered = [state.value for state in (SandboxState.CREATING, SandboxState.RESTORING, SandboxState.DELETING)]
    over = [SandboxState.DELETING.value, SandboxState.DELETED.value]
    statement = select(SandboxRow).where(
        (col(SandboxRow.state).in_(ordered) & (col(SandboxRow.updated_at) < changed))
        | ((col(SandboxRow.state) == SandboxState.PENDING.value) & (col(SandboxRow.active_at) < asked))
        | (col(SandboxRow.state).not_in(over) & (col(SandboxRow.expires_at) <= now))
    )
    return [sandbox_of(row) for row in session.scalars(statement)]


def count_in(session: Session, state: SandboxState) -> int:
    """How many are in this state."""
    counted = session.scalar(select(func.count()).select_from(SandboxRow).where(col(SandboxRow.state) == state.value))
    return counted or 0


def on_node(session: Session, node_id: str) -> list[Sandbox]:
    """All sandboxes of a node that are not deleted."""
    statement = select(SandboxRow).where(
        col(SandboxRow.node_id) == node_id, col(SandboxRow.state) != SandboxState.DELETED.value
    )
    return [sandbox_of(row) for row in session.scalars(statement)]


@dataclass(frozen=True)
class Load:
    """What the sandboxes of one node take of it."""

    reserved: Shape
    count: int
    last_change: datetime


def loads(session: Session) -> dict[str, Load]:
    """By node: the sum of what is held, how many sandboxes hold something, and when that last changed."""
    held = [getattr(SandboxRow, f"held_{name}") for name in ("cpus", "memory_mb", "disk_mb", "gpus", "slots")]
    holding = func.count(func.nullif(SandboxRow.held_disk_mb, 0))
    statement = (
        select(
            col(SandboxRow.node_id), *(func.sum(column) for column in held), holding, func.max(SandboxRow.updated_at)
        )
        .where(col(SandboxRow.node_id).is_not(None))
        .group_by(col(SandboxRow.node_id))
    )
    answer: dict[str, Load] = {}
    for node_id, cpus, memory_mb, disk_mb, gpus, slots, count, changed in session.execute(statement):
        reserved = Shape(cpus=cpus, memory_mb=memory_mb, disk_mb=disk_mb, gpus=gpus, slots=slots)
        answer[node_id] = Load(reserved, count, changed)
    return answer


def add(session: Session, sandbox: Sandbox) -> Sandbox:
    """Writes a sandbox of a new id."""
    session.execute(insert(SandboxRow).values(**sandbox_columns(sandbox)))
    _write_labels(session, sandbox)
    return sandbox


def replace_deleted(session: Session, before: Sandbox, after: Sandbox) -> Sandbox:
    """Writes a new incarnation over the tombstone of an earlier one."""
    session.execute(delete(LabelRow).where(col(LabelRow.sandbox_id) == before.id))
    written = _write(session, before, after)
    _write_labels(session, after)
    return written


def save(session: Session, before: Sandbox, after: Sandbox) -> Sandbox:
    """Writes ``after`` over ``before``; the answer is ``after`` with its new version.

    A prepared unit that ``after`` has no longer goes back in the same transaction.

    Raises:
        StaleError: the row is no longer ``before``.
    """
    written = _write(session, before, after)
    if before.batch is not None and after.batch is None:
        prepared.give_back(session, before.batch)
    return written


def _write(session: Session, before: Sandbox, after: Sandbox) -> Sandbox:
    written = bumped(replace(after, version=before.version))
    statement = (
        update(SandboxRow)
        .where(col(SandboxRow.id) == before.id, col(SandboxRow.version) == before.version)
        .values(**sandbox_columns(written))
        .execution_options(synchronize_session=False)
    )
    if affected(session.execute(statement)) != 1:
        raise StaleError(f"sandbox {before.id} is no longer at version {before.version}")
    return written


def change(session: Session, sandbox_id: str, decide: Callable[[Sandbox], Sandbox | None]) -> Sandbox | None:
    """Writes what ``decide`` makes of the present row; ``None`` when there is no row or it decides for nothing."""
    before = get(session, sandbox_id)
    after = None if before is None else decide(before)
    return None if before is None or after is None else save(session, before, after)


def write_activity(session: Session, active: Mapping[str, datetime]) -> None:
    """Writes when sandboxes were last used.  It is no change of the sandbox, and leaves the version alone."""
    table = SQLModel.metadata.tables[str(SandboxRow.__tablename__)]
    moment = bindparam("moment", type_=table.c.active_at.type)
    statement = (
        update(table).where(table.c.id == bindparam("sandbox_id"), table.c.active_at < moment).values(active_at=moment)
    )
    # One statement for all: thousands may have been used.
    session.connection().execute(statement, [{"sandbox_id": name, "moment": last} for name, last in active.items()])


def purge(session: Session, before: datetime) -> int:
    """Forgets the sandboxes that were deleted before that time; how many."""
    statement = (
        delete(SandboxRow)
        .where(col(SandboxRow.state) == SandboxState.DELETED.value, col(SandboxRow.updated_at) < before)
        .execution_options(synchronize_session=False)
    )
    return affected(session.execute(statement))


def _write_labels(session: Session, sandbox: Sandbox) -> None:
    labels: Sequence[dict[str, str]] = [
        {"sandbox_id": sandbox.id, "key": key, "value": value} for key, value in sandbox.spec.labels.items()
    ]
    if labels:
        session.execute(insert(LabelRow), labels)
