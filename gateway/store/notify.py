"""The change feed between gateways on one PostgreSQL: ids of sandboxes that one of them has changed.

A notice is sent with the transaction and is only a hint: its receiver reads the row. One that is missed costs time,
and nothing else.
"""

import json
from collections.abc import AsyncGenerator, Sequence
from typing import Final

import psycopg
from sqlalchemy import Engine, func, select
from sqlmodel import Session

from gateway.errors import ApiError
from gateway.wire import tenants
from gateway.wire.errors import ErrorCode

CHANNEL: Final = "sandbox_fleet"
IDS_A_NOTICE: Final = 7900 // (tenants.MAX_QUALIFIED_LENGTH + len('"", '))
"""PostgreSQL takes 8000 bytes."""
KEEPALIVE: Final = 10
"""Seconds of silence after which the server is asked whether it is there: a listener that sends nothing would else
notice after hours that it is gone."""


def announce(session: Session, sender: str, ids: Sequence[str]) -> None:
    """Send the ids to every listener once this transaction is committed."""
    for start in range(0, len(ids), IDS_A_NOTICE):
        notice = json.dumps([sender, *ids[start : start + IDS_A_NOTICE]])
        session.execute(select(func.pg_notify(CHANNEL, notice)))


async def listen(engine: Engine, receiver: str) -> AsyncGenerator[list[str] | None, None]:
    """Yield ``None`` once it listens, and then for ever the ids of every notice that others than ``receiver`` sent.

    Raises:
        ApiError: ``BUSY``: the connection is lost; notices sent meanwhile are missed.
    """
    url = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    try:
        opened = psycopg.AsyncConnection.connect(
            url, autocommit=True, keepalives_idle=KEEPALIVE, keepalives_interval=KEEPALIVE, keepalives_count=3
        )
        async with await opened as connection:
            await connection.execute(f"LISTEN {CHANNEL}")
            yield None
            async for notice in connection.notifies():
                sender, *ids = json.loads(notice.payload)
                if sender != receiver:
                    yield ids
    except psycopg.Error as error:
        raise ApiError(ErrorCode.BUSY, f"the change feed of other gateways is lost: {error}", retry_after=1) from error
