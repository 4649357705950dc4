"""The database of the gateway: opened, migrated, and reached from the event loop.

SQLite runs with one writer thread and transactions that take the write lock when they begin; PostgreSQL takes the same
code. A function that is handed to `Database.write` or `Database.read` runs on a thread with a session of its own,
in one transaction, and never touches the event loop.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from pathlib import Path
from typing import Any, Final, TypeVar
from uuid import uuid4

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, CursorResult, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlmodel import Session

from gateway.errors import ApiError, StoreError
from gateway.wire.errors import ErrorCode

T = TypeVar("T")

READERS: Final = 4
ATTEMPTS: Final = 10
BUSY_TIMEOUT_MS: Final = 10_000
PLACEMENT_LOCK: Final = 0x5A17_B0C5
"""Key of the PostgreSQL advisory lock under which placement is decided; any number will do."""


class StaleError(Exception):
    """A row changed since it was read: the transaction is rolled back, and the function runs again."""


class Database:
    """An open database with the present schema."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._name = uuid4().hex
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="store-write")
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="store-read")

    @classmethod
    def open(cls, url: str) -> "Database":
        """Open the database at this SQLAlchemy URL, make it if it is a missing SQLite file, and migrate it.

        Raises:
            StoreError: unreachable, not writable, full disk, or written by a newer version.
        """
        engine = make_engine(url)
        try:
            with engine.begin() as connection:
                lock_placement(connection)  # holds off another gateway's migration; on SQLite the transaction does
                migrate(connection)
        except DBAPIError as error:
            engine.dispose()
            raise StoreError(f"database {engine.url.render_as_string()}: {_why_unusable(error)}") from error
        except StoreError:
            engine.dispose()
            raise
        return cls(engine)

    async def write(self, fn: Callable[[Session], T]) -> T:
        """Run ``fn`` in a transaction that is committed when it returns, and return its answer.

        ``fn`` runs again, on fresh rows, when it raises `StaleError`; so it must have no other effect.

        Raises:
            ApiError: ``DISK_FULL``, ``BUSY``.
        """
        return await self._run(self._writer, fn)

    async def read(self, fn: Callable[[Session], T]) -> T:
        """Run ``fn`` in a transaction of its own, beside the writer. Raises as `write`."""
        return await self._run(self._readers, fn)

    @property
    def shared(self) -> bool:
        """Whether several gateways may use it at once."""
        return self._engine.dialect.name == "postgresql"

    def announce(self, session: Session, ids: Sequence[str]) -> None:
        """Tell the other gateways on this database that these sandboxes change with the transaction."""
        if self.shared:
            # The driver of PostgreSQL is there only where that is used.
            from gateway.store import notify

            notify.announce(session, self._name, ids)

    async def notices(self) -> AsyncGenerator[list[str] | None, None]:
        """Yield what other gateways announce, see `gateway.store.notify.listen`; nothing where there can be none."""
        if self.shared:
            from gateway.store import notify

            async with contextlib.aclosing(notify.listen(self._engine, self._name)) as notices:
                async for ids in notices:
                    yield ids

    def close(self) -> None:
        """Wait for what runs and close all connections."""
        self._writer.shutdown()
        self._readers.shutdown()
        self._engine.dispose()

    async def _run(self, executor: ThreadPoolExecutor, fn: Callable[[Session], T]) -> T:
        read_only = executor is self._readers
        return await asyncio.get_running_loop().run_in_executor(executor, self._in_session, fn, read_only)

    def _in_session(self, fn: Callable[[Session], T], read_only: bool) -> T:
        engine = self._engine.execution_options(read_only=read_only)
        for _ in range(ATTEMPTS):
            try:
                with Session(engine, expire_on_commit=False) as session:
                    answer = fn(session)
                    session.commit()
                    return answer
            except (StaleError, IntegrityError):
                # Another process on the same PostgreSQL was quicker; on SQLite the write lock rules it out.
                continue
            except DBAPIError as error:
                raise _in_use_error(error) from error
        raise ApiError(ErrorCode.BUSY, "the gateway's database is too busy for this change; try again", retry_after=1)


def lock_placement(connection: Connection) -> None:
    """Hold off every other placement (and migration) on this database until the transaction ends."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": PLACEMENT_LOCK})


def affected(result: Any) -> int:
    """Return how many rows a statement wrote."""
    assert isinstance(result, CursorResult)  # noqa: S101 - narrows for the type checker; every DML statement gives one
    return result.rowcount


# -- opening ----------------------------------------------------------------------------------------------------------


def make_engine(url: str) -> Engine:
    """Return an engine with the settings that this store needs, not yet connected.

    Raises:
        StoreError: the directory of the SQLite file cannot be made, or the URL's driver is missing.
    """
    parsed = make_url(url)
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.get_backend_name() != "sqlite":
        try:
            return create_engine(parsed, pool_size=READERS + 1, pool_pre_ping=True)
        except ModuleNotFoundError as error:
            raise StoreError(
                f"database {parsed.render_as_string()}: the driver {error.name} is not installed"
            ) from error
    _make_private(parsed.database)
    engine = create_engine(parsed, connect_args={"timeout": BUSY_TIMEOUT_MS / 1000})
    event.listen(engine, "connect", _on_sqlite_connect)
    event.listen(engine, "begin", _on_sqlite_begin)
    return engine


def migrate(connection: Connection) -> None:
    """Run every migration that the database lacks, inside the caller's transaction.

    Raises:
        StoreError: the database was written by a newer version.
    """
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    script = ScriptDirectory.from_config(config)
    present = MigrationContext.configure(connection).get_current_heads()
    unknown = [head for head in present if head not in {revision.revision for revision in script.walk_revisions()}]
    if unknown:
        raise StoreError(
            f"database {connection.engine.url.render_as_string()}: it was written by a newer version (schema"
            f" {unknown[0]}, this version knows {script.get_current_head()});"
            " install that version again, or restore a backup from before the update"
        )
    if set(present) != set(script.get_heads()):
        command.upgrade(config, "head")


def _make_private(database: str | None) -> None:
    """Make the file, which only its owner may read wherever it lies; SQLite gives its side files the same mode."""
    if not database or database == ":memory:":
        raise StoreError("the gateway's SQLite database must be a file: sqlite:///PATH")
    file = Path(database)
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"directory {file.parent} of the gateway's database: {error.strerror}") from error
    # A file that cannot be made or changed is for SQLite to refuse, in words of its own.
    with contextlib.suppress(OSError):
        file.touch(mode=0o600)
        file.chmod(0o600)


def _on_sqlite_connect(connection: sqlite3.Connection, record: object) -> None:
    # The driver's own transaction control begins late and deferred; ours begins in `_on_sqlite_begin`.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in (
        f"busy_timeout = {BUSY_TIMEOUT_MS}",
        "journal_mode = WAL",
        "synchronous = NORMAL",
        "foreign_keys = ON",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _on_sqlite_begin(connection: Connection) -> None:
    # A deferred transaction that turns into a writer fails with "database is locked" whatever the busy timeout.
    deferred = connection.get_execution_options().get("read_only", False)
    connection.exec_driver_sql("BEGIN" if deferred else "BEGIN IMMEDIATE")


# -- errors of the drivers --------------------------------------------------------------------------------------------


class _Cause(Enum):
    """Why a database refuses."""

    FULL = "full"
    BROKEN = "broken"
    LOCKED = "locked"
    READ_ONLY = "read_only"
    OTHER = "other"


_SQLITE_CAUSES: Final = {
    sqlite3.SQLITE_FULL: _Cause.FULL,
    sqlite3.SQLITE_IOERR: _Cause.BROKEN,
    sqlite3.SQLITE_BUSY: _Cause.LOCKED,
    sqlite3.SQLITE_LOCKED: _Cause.LOCKED,
    sqlite3.SQLITE_READONLY: _Cause.READ_ONLY,
    sqlite3.SQLITE_CANTOPEN: _Cause.READ_ONLY,
}
"""By primary result code, https://sqlite.org/rescode.html."""
_POSTGRESQL_CAUSES: Final = {"53100": _Cause.FULL, "58030": _Cause.BROKEN, "55P03": _Cause.LOCKED}
"""By SQLSTATE, https://www.postgresql.org/docs/current/errcodes-appendix.html."""


def _cause_of(error: DBAPIError) -> _Cause:
    code = getattr(error.orig, "sqlite_errorcode", None)
    if code is not None:
        return _SQLITE_CAUSES.get(code & 0xFF, _Cause.OTHER)
    return _POSTGRESQL_CAUSES.get(getattr(error.orig, "sqlstate", None) or "", _Cause.OTHER)


def _why_unusable(error: DBAPIError) -> str:
    """Return one sentence about a database that cannot be opened."""
    message = str(error.orig).strip() if error.orig is not None else ""
    said = (message or str(error)).splitlines()[0]
    match _cause_of(error):
        case _Cause.FULL:
            return "the disk is full; free some space and start again"
        case _Cause.BROKEN:
            return "reading or writing failed (disk I/O error); the disk is full or broken"
        case _Cause.LOCKED:
            return "another process holds it locked; stop that one and start again"
        case _Cause.READ_ONLY:
            return f"it cannot be opened for writing ({said}); check the path and its owner"
        case _:
            return said


def _in_use_error(error: DBAPIError) -> Exception:
    """Return the refusal for a database that fails in use; the error itself when it is a bug."""
    cause = _cause_of(error)
    if cause is _Cause.FULL:
        return ApiError(
            ErrorCode.DISK_FULL, "the gateway's database cannot grow: its disk is full", retryable=True, retry_after=5
        )
    if cause is _Cause.LOCKED:
        return ApiError(ErrorCode.BUSY, "the gateway's database is locked by another process; try again", retry_after=1)
    if isinstance(error, OperationalError) and error.connection_invalidated:
        return ApiError(ErrorCode.BUSY, "the gateway lost its database; try again", retry_after=2)
    return error
