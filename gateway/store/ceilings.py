"""Reading and writing the ceilings of the pools.  Plain functions over a session."""

from collections.abc import Sequence

from sqlalchemy import delete, insert, select
from sqlmodel import Session, col

from gateway.store.tables import CeilingRow
from gateway.wire.capacity import PoolCeiling


def told(session: Session) -> list[PoolCeiling]:
    """What the autoscaler said last, by pool name."""
    rows = session.scalars(select(CeilingRow).order_by(col(CeilingRow.pool)))
    return [PoolCeiling.model_validate_json(row.ceiling) for row in rows]


def replace_all(session: Session, pools: Sequence[PoolCeiling]) -> None:
    """Forgets what was said before."""
    session.execute(delete(CeilingRow))
    if pools:
        session.execute(insert(CeilingRow), [{"pool": pool.pool, "ceiling": pool.model_dump_json()} for pool in pools])
