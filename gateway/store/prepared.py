"""Reading and writing prepared capacity.  Plain functions over a session."""

from dataclasses import fields
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, delete, func, insert, select, update
from sqlmodel import Session, col

from gateway.core.prepared import Prepared, PreparedKind
from gateway.store.db import StaleError, affected
from gateway.store.tables import PreparedRow
from gateway.wire.resources import Shape
from gateway.wire.sandboxes import SandboxSpec

_PLAIN = frozenset(field.name for field in fields(Prepared)) - {"kind", "shape"}


def get(session: Session, kind: PreparedKind, prepare_id: str, now: datetime) -> Prepared | None:
    """What is prepared under this id and has not expired, also when every unit is claimed."""
    row = session.get(PreparedRow, prepare_id)
    return None if row is None or row.kind != kind.value or row.expires_at <= now else _of(row)


def live(session: Session, now: datetime) -> list[Prepared]:
    """Everything that has not expired and has unclaimed units, what expires first to the front."""
    statement = select(PreparedRow).where(*_unclaimed(now)).order_by(col(PreparedRow.expires_at), col(PreparedRow.id))
    return [_of(row) for row in session.scalars(statement)]


def count(session: Session, now: datetime) -> int:
    """How many have not expired and have unclaimed units."""
    statement = select(func.count()).select_from(PreparedRow).where(*_unclaimed(now))
    return session.scalar(statement) or 0


def put(session: Session, prepared: Prepared) -> None:
    """Writes it in the place of whatever has its id."""
    remove(session, prepared.id)
    session.execute(insert(PreparedRow).values(**_columns(prepared)))


def remove(session: Session, prepare_id: str) -> None:
    """Forgets it."""
    session.execute(delete(PreparedRow).where(col(PreparedRow.id) == prepare_id))


def claim(session: Session, spec: SandboxSpec, now: datetime, held: str | None) -> str | None:
    """Sees to it that a create of ``spec`` has a unit that is meant for it, where there is one; the unit's batch.

    Args:
        spec: what is created.
        now: UTC.
        held: batch of the unit that an earlier sandbox of this id has.  While those units last, that one serves the
            new sandbox too; otherwise one is taken of what expires first.

    Raises:
        StaleError: somebody else took one of the same meanwhile.
    """
    if held is not None and _serves_again(session, held, spec, now):
        return held
    found = next((prepared for prepared in live(session, now) if prepared.is_for(spec)), None)
    if found is None:
        return None
    taken = (
        update(PreparedRow)
        .where(col(PreparedRow.batch) == found.batch, col(PreparedRow.count) == found.count)
        .values(count=found.count - 1)
        .execution_options(synchronize_session=False)
    )
    if affected(session.execute(taken)) != 1:
        raise StaleError(f"prepared capacity {found.id} is no longer at {found.count} units")
    return found.batch


def give_back(session: Session, batch: str) -> None:
    """Puts back a unit that was claimed; nothing happens once those units were replaced or taken back."""
    session.execute(
        update(PreparedRow)
        .where(col(PreparedRow.batch) == batch)
        .values(count=PreparedRow.count + 1)
        .execution_options(synchronize_session=False)
    )


def purge(session: Session, before: datetime) -> int:
    """Forgets what expired before that time; how many."""
    return affected(session.execute(delete(PreparedRow).where(col(PreparedRow.expires_at) < before)))


def _unclaimed(now: datetime) -> tuple[ColumnElement[bool], ...]:
    return (col(PreparedRow.expires_at) > now, col(PreparedRow.count) > 0)


def _serves_again(session: Session, batch: str, spec: SandboxSpec, now: datetime) -> bool:
    statement = select(PreparedRow).where(col(PreparedRow.batch) == batch, col(PreparedRow.expires_at) > now)
    row = session.scalars(statement).first()
    return row is not None and _of(row).is_for(spec)


def _of(row: PreparedRow) -> Prepared:
    return Prepared(
        kind=PreparedKind(row.kind),
        shape=Shape.model_validate_json(row.shape),
        **{name: getattr(row, name) for name in _PLAIN},
    )


def _columns(prepared: Prepared) -> dict[str, Any]:
    columns: dict[str, Any] = {name: getattr(prepared, name) for name in _PLAIN}
    return columns | {"kind": prepared.kind.value, "shape": prepared.shape.model_dump_json()}
