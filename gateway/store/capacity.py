"""Read and write what capacity was asked for ahead, and what the pools can hold: plain functions over a session."""

from collections.abc import Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, delete, func, insert, select, update
from sqlmodel import Session, col

from gateway.core.model import PreparedBatch, PreparedKind, Sandbox
from gateway.store.db import StaleError, affected
from gateway.store.tables import CeilingRow, CreatePaceRow, PreparedRow
from gateway.wire.capacity import PoolCeiling
from gateway.wire.resources import Shape

_PLAIN: Final = frozenset(field.name for field in fields(PreparedBatch)) - {"kind", "shape"}

# -- prepared units ---------------------------------------------------------------------------------------------------


def get(session: Session, kind: PreparedKind, prepare_id: str, now: datetime) -> PreparedBatch | None:
    """Return what is prepared under this id and has not expired, also when every unit is claimed."""
    row = session.get(PreparedRow, prepare_id)
    return None if row is None or row.kind != kind.value or row.expires_at <= now else _units_of(row)


def unclaimed(session: Session, now: datetime, tenant: str | None = None) -> list[PreparedBatch]:
    """Return what has not expired and has unclaimed units, what expires first to the front.

    Args:
        session: of the caller's transaction.
        now: UTC.
        tenant: whose; ``None`` returns everybody's.
    """
    found = select(PreparedRow).where(*_unclaimed(now, tenant))
    statement = found.order_by(col(PreparedRow.expires_at), col(PreparedRow.id))
    return [_units_of(row) for row in session.scalars(statement)]


def count_unclaimed(session: Session, now: datetime, tenant: str) -> int:
    """Return how many requests of a tenant have not expired and have unclaimed units."""
    statement = select(func.count()).select_from(PreparedRow).where(*_unclaimed(now, tenant))
    return session.scalar(statement) or 0


def unclaimed_units(session: Session, now: datetime, tenant: str) -> int:
    """Return how many units of a tenant's nobody has claimed, sandboxes and builders together."""
    return session.scalar(select(func.sum(PreparedRow.count)).where(*_unclaimed(now, tenant))) or 0


def put(session: Session, prepared: PreparedBatch) -> None:
    """Write prepared units in the place of whatever has their id."""
    remove(session, prepared.id)
    columns: dict[str, Any] = {name: getattr(prepared, name) for name in _PLAIN}
    columns |= {"kind": prepared.kind.value, "shape": prepared.shape.model_dump_json()}
    session.execute(insert(PreparedRow).values(**columns))


def remove(session: Session, prepare_id: str) -> None:
    """Delete prepared units, claimed or not."""
    session.execute(delete(PreparedRow).where(col(PreparedRow.id) == prepare_id))


def claim(session: Session, sandbox: Sandbox, now: datetime) -> str | None:
    """Give a new sandbox a prepared unit that is meant for it, where there is one; return the unit's batch.

    Args:
        session: of the caller's transaction.
        sandbox: what is created; its ``batch`` is that of the unit that an earlier sandbox of its id has. While those
            units last, that one serves the new sandbox too; otherwise one is taken of what expires first.
        now: UTC.

    Raises:
        StaleError: somebody else took one of the same meanwhile.
    """
    if sandbox.batch is not None and _serves_again(session, sandbox.batch, sandbox, now):
        return sandbox.batch
    own = unclaimed(session, now, sandbox.tenant)
    found = next((prepared for prepared in own if prepared.is_for(sandbox.tenant, sandbox.spec)), None)
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
    """Put back a unit that was claimed; nothing happens once those units were replaced or taken back."""
    session.execute(
        update(PreparedRow)
        .where(col(PreparedRow.batch) == batch)
        .values(count=PreparedRow.count + 1)
        .execution_options(synchronize_session=False)
    )


def purge(session: Session, before: datetime) -> int:
    """Delete what expired before that time; return how many."""
    return affected(session.execute(delete(PreparedRow).where(col(PreparedRow.expires_at) < before)))


def _unclaimed(now: datetime, tenant: str | None) -> tuple[ColumnElement[bool], ...]:
    owned = () if tenant is None else (col(PreparedRow.tenant) == tenant,)
    return (*owned, col(PreparedRow.expires_at) > now, col(PreparedRow.count) > 0)


def _serves_again(session: Session, batch: str, sandbox: Sandbox, now: datetime) -> bool:
    statement = select(PreparedRow).where(col(PreparedRow.batch) == batch, col(PreparedRow.expires_at) > now)
    row = session.scalars(statement).first()
    return row is not None and _units_of(row).is_for(sandbox.tenant, sandbox.spec)


def _units_of(row: PreparedRow) -> PreparedBatch:
    return PreparedBatch(
        kind=PreparedKind(row.kind),
        shape=Shape.model_validate_json(row.shape),
        **{name: getattr(row, name) for name in _PLAIN},
    )


# -- creates per second -----------------------------------------------------------------------------------------------


def create_due(session: Session, tenant: str) -> datetime | None:
    """Return when the next create of a tenant is due; ``None`` before its first."""
    row = session.get(CreatePaceRow, tenant)
    return None if row is None else row.due


def set_create_due(session: Session, tenant: str, due: datetime) -> None:
    """Write when the next create of a tenant is due."""
    session.merge(CreatePaceRow(tenant=tenant, due=due))


# -- ceilings of the pools --------------------------------------------------------------------------------------------


def ceilings(session: Session) -> list[PoolCeiling]:
    """Return the ceilings that the autoscaler reported last, by pool name."""
    rows = session.scalars(select(CeilingRow).order_by(col(CeilingRow.pool)))
    return [PoolCeiling.model_validate_json(row.ceiling) for row in rows]


def replace_ceilings(session: Session, pools: Sequence[PoolCeiling]) -> None:
    """Write the ceilings of all pools in the place of those reported before."""
    session.execute(delete(CeilingRow))
    if pools:
        session.execute(insert(CeilingRow), [{"pool": pool.pool, "ceiling": pool.model_dump_json()} for pool in pools])
