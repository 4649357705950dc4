"""PostgreSQL that freezes, goes away and comes back; and another gateway that holds its locks."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest
from sqlalchemy import make_url, text
from sqlmodel import Session

from gateway.errors import ApiError
from gateway.store.db import Database, lock_placement
from gateway.wire.errors import ErrorCode
from gateway.wire.postgresql import Patience
from tests.engines.postgres import Server

SHORT = Patience(connect=2, lock=0.3, statement=1.0, idle=0.5, call=1.5)
LONGEST = 30
"""Seconds after which a call counts as one that never ends."""

HOLDER = """
import asyncio, sys, threading
from gateway.store.db import Database, lock_placement
from gateway.wire.postgresql import Patience

def hold(session):
    lock_placement(session.connection())
    print("holds", flush=True)
    threading.Event().wait()

asyncio.run(Database.open(sys.argv[1], Patience(lock=0.3, idle=0.5)).write(hold))
"""


@contextlib.contextmanager
def frozen_gateway(url: str) -> Iterator["subprocess.Popen[str]"]:
    """A process that was stopped (SIGSTOP) in the transaction in which it places sandboxes."""
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, url], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "holds\n"
        os.kill(holder.pid, signal.SIGSTOP)
        yield holder
    finally:
        holder.kill()
        holder.communicate(timeout=20)


@pytest.fixture
async def db(postgres_server: Server) -> AsyncIterator[Database]:
    with postgres_server.database() as url:
        made = await asyncio.to_thread(Database.open, url, SHORT)
        yield made
        await asyncio.to_thread(made.close)


def name_of(db: Database) -> str:
    return make_url(db.url).database or ""


def place(session: Session) -> int:
    lock_placement(session.connection())
    return int(session.execute(text("SELECT 1")).scalar_one())


async def outcome(call: "asyncio.Future[int] | asyncio.Task[int]") -> int | ErrorCode:
    """What came of a call within `LONGEST`."""
    try:
        return await asyncio.wait_for(call, LONGEST)
    except ApiError as error:
        assert error.retryable
        assert error.retry_after is not None
        return error.code


async def test_a_gateway_frozen_in_a_transaction_holds_the_others_up_for_a_moment_only(
    postgres_server: Server, db: Database
) -> None:
    with frozen_gateway(db.url) as holder:
        outcomes = []
        while not outcomes or outcomes[-1] is ErrorCode.BUSY:
            outcomes.append(await outcome(asyncio.ensure_future(db.write(place))))
        assert outcomes[-1] == 1
        assert holder.poll() is None


async def test_a_server_that_is_away_is_busy_and_nothing_has_to_be_opened_again(
    postgres_server: Server, db: Database
) -> None:
    assert await db.write(place) == 1
    await asyncio.to_thread(postgres_server.stop)
    try:
        assert await outcome(asyncio.ensure_future(db.write(place))) is ErrorCode.BUSY
        assert await outcome(asyncio.ensure_future(db.read(place))) is ErrorCode.BUSY
        with pytest.raises(ApiError) as refused:
            await db.probe()
        assert refused.value.code is ErrorCode.BUSY
    finally:
        await asyncio.to_thread(postgres_server.start)
    assert await db.write(place) == 1
    await db.probe()


@pytest.mark.parametrize("mode", ["immediate", "fast"])
async def test_a_restart_of_the_server_between_two_calls_is_not_noticed(
    postgres_server: Server, db: Database, mode: str
) -> None:
    assert await db.write(place) == 1
    await asyncio.to_thread(postgres_server.stop, mode)
    await asyncio.to_thread(postgres_server.start)
    assert await db.write(place) == 1


async def test_a_transaction_whose_connection_ends_runs_again_on_another(postgres_server: Server, db: Database) -> None:
    runs = []

    def fn(session: Session) -> int:
        runs.append(session.execute(text("SELECT pg_backend_pid()")).scalar_one())
        if len(runs) == 1:
            with postgres_server.admin() as admin:
                admin.execute("SELECT pg_terminate_backend(%s, 10000)", runs)
        return place(session)

    assert await db.write(fn) == 1
    assert len(set(runs)) == 2


async def test_a_transaction_that_froze_before_its_commit_runs_again(postgres_server: Server, db: Database) -> None:
    runs = []

    def fn(session: Session) -> int:
        runs.append(place(session))
        if len(runs) == 1:
            with postgres_server.admin() as admin:  # silent for longer than it may be
                ended = "SELECT count(*) = 0 FROM pg_locks WHERE locktype = 'advisory'"
                while admin.execute(ended).fetchone() != (True,):
                    time.sleep(0.01)
        return len(runs)

    assert await db.write(fn) == 2


async def test_no_connection_left_is_busy(postgres_server: Server, db: Database) -> None:
    with contextlib.ExitStack() as stack:
        admin = stack.enter_context(postgres_server.admin())
        admin.execute("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = %s", [name_of(db)])
        with contextlib.suppress(psycopg.OperationalError):
            while True:
                stack.enter_context(postgres_server.admin())
        assert await outcome(asyncio.ensure_future(db.read(place))) is ErrorCode.BUSY
        assert await outcome(asyncio.ensure_future(db.write(place))) is ErrorCode.BUSY
    assert await db.write(place) == 1


async def test_a_frozen_server_is_busy_within_a_bound(postgres_server: Server, db: Database) -> None:
    assert await db.read(place) == 1
    await asyncio.to_thread(postgres_server.freeze)
    try:
        calls = [asyncio.ensure_future(db.read(place)) for _ in range(12)]
        calls.append(asyncio.ensure_future(db.write(place)))
        assert {await outcome(call) for call in calls} == {ErrorCode.BUSY}
    finally:
        await asyncio.to_thread(postgres_server.thaw)
    assert await db.write(place) == 1


@pytest.mark.parametrize("statement", ["SELECT pg_sleep(60)", "LOCK sandboxes"])
async def test_a_statement_that_takes_too_long_is_busy(postgres_server: Server, db: Database, statement: str) -> None:
    def fn(session: Session) -> int:
        session.execute(text(statement))
        return 1

    with postgres_server.admin(name_of(db)) as other, other.transaction():
        other.execute("LOCK sandboxes")
        assert await outcome(asyncio.ensure_future(db.write(fn))) is ErrorCode.BUSY


async def test_a_read_only_server_is_not_ready(postgres_server: Server, db: Database) -> None:
    await db.probe()
    with postgres_server.admin() as admin:
        name = name_of(db)
        admin.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
        admin.execute("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = %s", [name])
    with pytest.raises(ApiError) as refused:
        await db.probe()
    assert refused.value.code is ErrorCode.BUSY
