"""What tenants have used, as it is asked for: whole hours, summed up by tenant or sandbox, or one by one."""

import base64
import binascii
import json
from datetime import UTC, datetime, timedelta

from gateway.errors import ApiError
from gateway.settings import GatewaySettings
from gateway.store import capacity, sandboxes, usage
from gateway.store.db import Database
from gateway.store.usage import HOUR, Position, hour_of
from gateway.wire.errors import ErrorCode, FieldError
from gateway.wire.limits import MAX_COUNTER
from gateway.wire.resources import Shape
from gateway.wire.tenants import is_qualified
from gateway.wire.usage import UsageBy, UsagePage, UsageQuery


class UsageService:
    """Reads what nodes have reported."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def page(self, query: UsageQuery) -> UsagePage:
        """Return one page of sums over whole hours.

        Raises:
            ApiError: ``INVALID_REQUEST``: the cursor is not of a page before.
        """
        since = hour_of(query.since.astimezone(UTC))
        until = hour_of(query.until.astimezone(UTC) + HOUR - timedelta(microseconds=1))
        after = () if query.cursor is None else _position(query.by, query.cursor)
        found = await self._db.read(
            lambda session: list(usage.page(session, query.by, since, until, query.tenant, after, query.limit + 1))
        )
        more = len(found) > query.limit
        found = found[: query.limit]
        return UsagePage(items=[item for _, item in found], next_cursor=_cursor(found[-1][0]) if more else None)

    async def standing(self, tenant: str, now: datetime) -> tuple[Shape, int]:
        """Return what counts against a tenant's quota now: what it claims, and its unclaimed prepared units."""
        return await self._db.read(
            lambda session: (sandboxes.claims(session, tenant), capacity.unclaimed_units(session, now, tenant))
        )


def oldest_kept(settings: GatewaySettings, now: datetime) -> datetime:
    """Return the time before which no usage is kept."""
    return now - timedelta(days=settings.usage_days)


def _cursor(position: Position) -> str:
    values = [value.isoformat() if isinstance(value, datetime) else value for value in position]
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode()


def _position(by: UsageBy, cursor: str) -> Position:
    try:
        name, *rest = json.loads(base64.urlsafe_b64decode(cursor.encode()))
        if not is_qualified(name) or len(rest) != (2 if by == "hour" else 0):
            raise ValueError("not a cursor")
        if not rest:
            return (name,)
        generation, hour = rest
        if type(generation) is not int or not 0 < generation <= MAX_COUNTER:
            raise ValueError("no generation")
        return name, generation, datetime.fromisoformat(hour).astimezone(UTC)
    except (ValueError, TypeError, OverflowError, binascii.Error, RecursionError) as error:
        problem = "must be the next_cursor of the page before, of the same query"
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"cursor: {problem}", fields=[FieldError(field="cursor", problem=problem)]
        ) from error
