"""The change feed between gateways on one PostgreSQL: ids of sandboxes that one of them has changed.

A notice is sent with the transaction and is only a hint: its receiver reads the row. One that is missed costs time,
and nothing else. It may be sent past a pooler, but only a connection to the server itself hears it.
"""

import json
from collections.abc import AsyncGenerator, Sequence
from typing import Final

import psycopg
from psycopg.conninfo import make_conninfo
from sqlalchemy import URL, Engine, func, select, text
from sqlmodel import Session

from gateway.errors import ApiError, StoreError
from gateway.wire import postgresql, tenants
from gateway.wire.errors import ErrorCode

CHANNEL: Final = "sandbox_fleet"
IDS_A_NOTICE: Final = 7900 // (tenants.MAX_QUALIFIED_LENGTH + len('"", '))
"""PostgreSQL takes 8000 bytes."""
_WHO: Final = "SELECT pg_postmaster_start_time()::text, current_database()::text"
"""Tells one database of one server from every other."""


def announce(session: Session, sender: str, ids: Sequence[str]) -> None:
    """Send the ids to every listener once this transaction is committed."""
    for start in range(0, len(ids), IDS_A_NOTICE):
        notice = json.dumps([sender, *ids[start : start + IDS_A_NOTICE]])
        session.execute(select(func.pg_notify(CHANNEL, notice)))


def require_direct(engine: Engine, direct: URL | None) -> URL:
    """Return the URL on which notices are heard, after a look whether they are.

    Args:
        engine: of the database.
        direct: URL of the same database past a pooler; ``None`` takes the engine's own.

    Raises:
        StoreError: it cannot be reached, leads to a pooler, or to another database.
    """
    url = engine.url if direct is None else direct
    shown = url.render_as_string()
    try:
        with psycopg.connect(_libpq(url)) as connection:
            if postgresql.is_pooled(connection):
                raise StoreError(
                    f"database {shown}: a pooler such as PgBouncer stands before it, and passes no notices on; set"
                    " database_direct_url to the server's own address, where this gateway hears of the others' changes"
                )
            here = connection.execute(_WHO).fetchone()
    except psycopg.Error as error:
        raise StoreError(f"database {shown}: {' '.join(str(error).split())}") from error
    if direct is not None:
        with engine.connect() as pooled:
            there = pooled.execute(text(_WHO)).one()
        if tuple(there) != here:
            raise StoreError(f"database_direct_url {shown}: it leads to another database than database_url")
    return url


async def listen(url: URL, receiver: str) -> AsyncGenerator[list[str] | None, None]:
    """Yield ``None`` once it listens, and then for ever the ids of every notice that others than ``receiver`` sent.

    Raises:
        ApiError: ``BUSY``: the connection is lost; notices sent meanwhile are missed.
    """
    try:
        opened = psycopg.AsyncConnection.connect(_libpq(url), autocommit=True)
        async with await opened as connection:
            await connection.execute(f"LISTEN {CHANNEL}")
            yield None
            async for notice in connection.notifies():
                sender, *ids = json.loads(notice.payload)
                if sender != receiver:
                    yield ids
    except psycopg.Error as error:
        raise ApiError(ErrorCode.BUSY, f"the change feed of other gateways is lost: {error}", retry_after=1) from error


def _libpq(url: URL) -> str:
    missing = {name: value for name, value in postgresql.connect_args().items() if name not in url.query}
    return make_conninfo(url.set(drivername="postgresql").render_as_string(hide_password=False), **missing)
