"""Write and read what sandboxes have used: plain functions over a session."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, delete, func, insert, select, tuple_, update
from sqlmodel import Session, col

from gateway.store.db import affected
from gateway.store.tables import MeterRow, UsageRow
from gateway.wire.tenants import tenant_of
from gateway.wire.usage import UsageAmounts, UsageBy, UsageItem, UsageReport

HOUR: Final = timedelta(hours=1)
_AMOUNTS: Final = tuple(UsageAmounts.model_fields)
Position = tuple[str | int | datetime, ...]
"""Where an item is in its order: the values of the columns that name it."""


def book(session: Session, reports: Sequence[UsageReport], now: datetime, oldest: datetime) -> None:
    """Add to the hours what each meter counted since its last reading here.

    A reading that is not newer than the last one adds nothing, so reports may be repeated and come in any order.

    Args:
        session: of the caller's transaction.
        reports: of one node.
        now: UTC.
        oldest: what was used earlier is booked on this time.
    """
    found = select(MeterRow).where(col(MeterRow.id).in_([report.meter_id for report in reports]))
    known = {row.id: row for row in session.scalars(found)}
    for report in reports:
        row = known.get(report.meter_id)
        read_at = max(oldest, now - timedelta(seconds=min(report.age_seconds, (now - oldest).total_seconds())))
        before = UsageAmounts() if row is None else _amounts_of(row)
        new = report.total.since(before)
        if row is None:
            span = min(report.span_seconds, (read_at - oldest).total_seconds())
            begin = read_at - timedelta(seconds=span)
            values = report.total.model_dump() | {"id": report.meter_id, "read_at": read_at}
            session.execute(insert(MeterRow).values(**values))
        else:
            begin = min(max(row.read_at, oldest), read_at)
            # A meter never shrinks: an older reading must not make the next one count twice.
            total = before.plus(**new.model_dump())
            values = total.model_dump() | {"read_at": max(row.read_at, read_at)}
            session.execute(update(MeterRow).where(col(MeterRow.id) == report.meter_id).values(**values))
        if any(new.model_dump().values()):
            _add(session, report, new, begin, read_at)


def _add(session: Session, report: UsageReport, new: UsageAmounts, begin: datetime, end: datetime) -> None:
    for hour, share in shares_of_hours(begin, end):
        amounts = {name: amount * share for name, amount in new.model_dump().items()}
        changed = (
            update(UsageRow)
            .where(
                col(UsageRow.sandbox_id) == report.sandbox_id,
                col(UsageRow.generation) == report.generation,
                col(UsageRow.hour) == hour,
            )
            .values(**{name: col(getattr(UsageRow, name)) + amount for name, amount in amounts.items()})
            .execution_options(synchronize_session=False)
        )
        if affected(session.execute(changed)):
            continue
        key = {"sandbox_id": report.sandbox_id, "generation": report.generation, "hour": hour}
        session.execute(insert(UsageRow).values(**key, tenant=tenant_of(report.sandbox_id), **amounts))


def page(
    session: Session, by: UsageBy, since: datetime, until: datetime, tenant: str | None, after: Position, limit: int
) -> Iterator[tuple[Position, UsageItem]]:
    """Yield the sums over whole hours, each with its position.

    Args:
        session: of the caller's transaction.
        by: what one item sums up.
        since: the first hour.
        until: the end of the last hour.
        tenant: whose; ``None`` for everybody's.
        after: position after which to begin; empty for the first page.
        limit: most items.
    """
    keys = _keys(by)
    where: list[ColumnElement[bool]] = [col(UsageRow.hour) >= since, col(UsageRow.hour) < until]
    if tenant is not None:
        where.append(col(UsageRow.tenant) == tenant)
    if after:
        where.append(tuple_(*keys) > tuple_(*after))
    sums = [func.sum(getattr(UsageRow, name)).label(name) for name in _AMOUNTS]
    ends = (func.min(UsageRow.tenant), func.min(UsageRow.hour), func.max(UsageRow.hour))
    statement = select(*keys, *ends, *sums).where(*where).group_by(*keys).order_by(*keys).limit(limit)
    for row in session.execute(statement):
        position, (owner, first, last) = tuple(row[: len(keys)]), row[len(keys) : len(keys) + len(ends)]
        amounts = dict(zip(_AMOUNTS, row[len(keys) + len(ends) :], strict=True))
        yield (
            position,
            UsageItem(
                tenant=owner,
                sandbox_id=None if by == "tenant" else position[0],
                generation=position[1] if by == "hour" else None,
                begin=first,
                end=last + HOUR,
                amounts=UsageAmounts(**amounts),
            ),
        )


def purge(session: Session, before: datetime) -> int:
    """Delete hours, and meters that were read for the last time, before that time; return how many."""
    hours = affected(session.execute(delete(UsageRow).where(col(UsageRow.hour) < before)))
    return hours + affected(session.execute(delete(MeterRow).where(col(MeterRow.read_at) < before)))


def _keys(by: UsageBy) -> tuple[Any, ...]:
    if by == "tenant":
        return (col(UsageRow.tenant),)
    if by == "sandbox":
        return (col(UsageRow.sandbox_id),)
    return col(UsageRow.sandbox_id), col(UsageRow.generation), col(UsageRow.hour)


def _amounts_of(row: MeterRow) -> UsageAmounts:
    return UsageAmounts(**{name: getattr(row, name) for name in _AMOUNTS})


# -- hours ----------------------------------------------------------------------------------------------------


def hour_of(moment: datetime) -> datetime:
    """Return the beginning of the hour in which ``moment`` is."""
    return moment.replace(minute=0, second=0, microsecond=0)


def shares_of_hours(begin: datetime, end: datetime) -> Iterator[tuple[datetime, float]]:
    """Yield each hour between ``begin`` and ``end`` with its share of that time; the shares add up to one."""
    whole, hour = (end - begin).total_seconds(), hour_of(begin)
    if whole <= 0:
        yield hour, 1.0
        return
    while hour < end:
        inside = min(end, hour + HOUR) - max(begin, hour)
        yield hour, inside.total_seconds() / whole
        hour += HOUR
