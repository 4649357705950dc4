"""Reading and writing prepared capacity.  Plain functions over a session."""

from dataclasses import fields, replace
from datetime import datetime
from typing import Any

from sqlalchemy import delete, func, insert, select, update
from sqlmodel import Session, col

from gateway.core.prepared import Prepared, PreparedKind
from gateway.store.db import StaleError, affected
from gateway.store.tables import PreparedRow
from gateway.wire.resources import Shape
from gateway.wire.sandboxes import SandboxSpec

_PLAIN = frozenset(field.name for field in fields(Prepared)) - {"kind", "shape"}


def get(session: Session, kind: PreparedKind, prepare_id: str, now: datetime) -> Prepared | None:
    """What is prepared under this id and has not expired."""
    row = session.get(PreparedRow, prepare_id)
    return None if row is None or row.kind != kind.value or row.expires_at <= now else _of(row)


def live(session: Session, now: datetime) -> list[Prepared]:
    """Everything that has not expired, what expires first to the front."""
    statement = (
        select(PreparedRow)
        .where(col(PreparedRow.expires_at) > now)
        .order_by(col(PreparedRow.expires_at), col(PreparedRow.id))
    )
    return [_of(row) for row in session.scalars(statement)]


def count(session: Session, now: datetime) -> int:
    """How many have not expired."""
    statement = select(func.count()).select_from(PreparedRow).where(col(PreparedRow.expires_at) > now)
    return session.scalar(statement) or 0


def put(session: Session, prepared: Prepared) -> None:
    """Writes it in the place of whatever has its id."""
    remove(session, prepared.id)
    session.execute(insert(PreparedRow).values(**_columns(prepared)))


def remove(session: Session, prepare_id: str) -> None:
    """Forgets it."""
    session.execute(delete(PreparedRow).where(col(PreparedRow.id) == prepare_id))


def claim(session: Session, spec: SandboxSpec, now: datetime) -> Prepared | None:
    """Takes one unit that is meant for a create of ``spec``, of what expires first; what it was taken from.

    Raises:
        StaleError: somebody else took one of the same meanwhile.
    """
    found = next((prepared for prepared in live(session, now) if prepared.is_for(spec)), None)
    if found is None:
        return None
    same = (col(PreparedRow.id) == found.id, col(PreparedRow.count) == found.count)
    if found.count == 1:
        done = session.execute(delete(PreparedRow).where(*same).execution_options(synchronize_session=False))
    else:
        taken = update(PreparedRow).where(*same).values(count=found.count - 1)
        done = session.execute(taken.execution_options(synchronize_session=False))
    if affected(done) != 1:
        raise StaleError(f"prepared capacity {found.id} is no longer at {found.count} units")
    return replace(found, count=found.count - 1)


def purge(session: Session, before: datetime) -> int:
    """Forgets what expired before that time; how many."""
    return affected(session.execute(delete(PreparedRow).where(col(PreparedRow.expires_at) < before)))


def _of(row: PreparedRow) -> Prepared:
    return Prepared(
        kind=PreparedKind(row.kind),
        shape=Shape.model_validate_json(row.shape),
        **{name: getattr(row, name) for name in _PLAIN},
    )


def _columns(prepared: Prepared) -> dict[str, Any]:
    columns: dict[str, Any] = {name: getattr(prepared, name) for name in _PLAIN}
    return columns | {"kind": prepared.kind.value, "shape": prepared.shape.model_dump_json()}
