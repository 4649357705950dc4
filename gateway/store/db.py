"""The database of the gateway: opened, migrated, and reached from the event loop.

SQLite runs with one writer thread and transactions that take the write lock when they begin; PostgreSQL takes the same
code. A function that is handed to `Database.write` or `Database.read` runs on a thread with a session of its own,
in one transaction, and never touches the event loop.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, TypeVar
from uuid import uuid4

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import (
    URL,
    ColumnClause,
    Connection,
    CursorResult,
    Engine,
    column,
    create_engine,
    event,
    make_url,
    table,
    text,
    update,
)
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlmodel import Session

from gateway.errors import StoreError
from gateway.store import calls, failures
from gateway.store.calls import BoundedCalls
from gateway.store.reserve import DiskReserve, RoomOnDisk
from gateway.wire import postgresql
from gateway.wire.postgresql import PATIENCE, Patience

T = TypeVar("T")

READERS: Final = 4
ATTEMPTS: Final = 10
BUSY_TIMEOUT_MS: Final = 10_000
MIGRATION_SECONDS: Final = 60
"""For another gateway's migration, which the start of this one waits for."""
PLACEMENT_LOCK: Final = 0x5A17_B0C5
"""Key of the PostgreSQL advisory lock under which placement is decided; any number will do."""


class StaleError(Exception):
    """A row changed since it was read: the transaction is rolled back, and the function runs again."""


class Database:
    """An open database with the present schema."""

    def __init__(self, engine: Engine, patience: Patience = PATIENCE) -> None:
        self._engine = engine
        self._reserve = _reserve_of(engine.url)
        self._notices_url = engine.url
        self._name = uuid4().hex
        seconds = patience.call if self.shared else None
        self._writer = BoundedCalls(1, "store-write", seconds)
        self._readers = BoundedCalls(READERS, "store-read", seconds)

    @classmethod
    def open(cls, url: str, patience: Patience = PATIENCE) -> "Database":
        """Open the database at this SQLAlchemy URL, make it if it is a missing SQLite file, and migrate it.

        Args:
            url: of the database.
            patience: how long anything may take on PostgreSQL.

        Raises:
            StoreError: unreachable, not writable, full disk, or written by a newer version.
        """
        engine = make_engine(url, patience)
        try:
            _prepare(engine)
        except DBAPIError as error:
            engine.dispose()
            raise StoreError(f"database {engine.url.render_as_string()}: {failures.why_unusable(error)}") from error
        except StoreError:
            engine.dispose()
            raise
        return cls(engine, patience)

    async def write(self, fn: Callable[[Session], T], *, reserved: bool = False) -> T:
        """Run ``fn`` in a transaction that is committed when it returns, and return its answer.

        ``fn`` runs again, on fresh rows, when it raises `StaleError`; so it must have no other effect.

        Args:
            fn: the transaction.
            reserved: it makes room, or takes a right away, and so may use the reserve of a full disk.

        Raises:
            ApiError: ``DISK_FULL``, ``BUSY``.
        """
        return await self._run(self._writer, fn, reserved)

    async def read(self, fn: Callable[[Session], T]) -> T:
        """Run ``fn`` in a transaction of its own, beside the writer. Raises as `write`."""
        return await self._run(self._readers, fn)

    def want_reserve(self, size: int) -> None:
        """Set how many bytes of the disk `keep_reserve` keeps; on PostgreSQL there are none."""
        if self._reserve is not None:
            self._reserve.wanted = size

    async def keep_reserve(self) -> bool:
        """Take what is missing of the disk's reserve; return whether it is whole, as where there is none."""
        if self._reserve is None or self._reserve.is_whole():
            return True
        return await asyncio.to_thread(self._reserve.fill)

    async def probe(self) -> None:
        """Return once a write was committed, which changes nothing.

        It takes the lock without which nothing is placed, and touches the row that says which schema this is.

        Raises:
            ApiError: as `write`, and ``BUSY`` where another version has changed the schema.
        """
        await self.write(_touch)

    @property
    def url(self) -> str:
        """The SQLAlchemy URL, with its password."""
        return self._engine.url.render_as_string(hide_password=False)

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

    def hear_notices_on(self, direct_url: str | None) -> None:
        """Choose the connection on which other gateways are heard (blocking).

        Args:
            direct_url: of the same database past a pooler; ``None`` where the database's own URL leads to no pooler.

        Raises:
            StoreError: nothing would be heard on it.
        """
        if self.shared:
            from gateway.store import notify

            direct = None if direct_url is None else make_url(direct_url)
            self._notices_url = notify.require_direct(self._engine, direct)

    async def notices(self) -> AsyncGenerator[list[str] | None, None]:
        """Yield what other gateways announce, see `gateway.store.notify.listen`; nothing where there can be none."""
        if self.shared:
            from gateway.store import notify

            async with contextlib.aclosing(notify.listen(self._notices_url, self._name)) as notices:
                async for ids in notices:
                    yield ids

    def close(self) -> None:
        """Wait for what runs and close all connections."""
        self._writer.close()
        self._readers.close()
        self._engine.dispose()

    async def _run(self, threads: BoundedCalls, fn: Callable[[Session], T], reserved: bool = False) -> T:
        return await threads.run(partial(self._in_session, fn, threads is self._readers, reserved))

    def _in_session(self, fn: Callable[[Session], T], read_only: bool, reserved: bool) -> T:
        engine = self._engine.execution_options(read_only=read_only)
        room = RoomOnDisk(engine, self._reserve if reserved else None)
        attempts = ATTEMPTS
        while attempts > 0:
            attempts -= 1
            committing = False
            try:
                with Session(engine, expire_on_commit=False) as session:
                    answer = fn(session)
                    committing = True
                    session.commit()
                    return answer
            except StaleError:
                continue
            except SQLAlchemyError as error:
                # What was lost before its commit was not done. Of a commit that was lost nobody knows.
                if failures.runs_again(error, committing=committing) and not calls.is_cut():
                    continue
                if failures.wants_room(error) and room.make():
                    attempts += 1
                    continue
                raise failures.refusal(error) from error
        raise failures.too_busy()


def _reserve_of(url: URL) -> DiskReserve | None:
    """Return the reserve beside a SQLite file."""
    if url.get_backend_name() != "sqlite" or not url.database:
        return None
    return DiskReserve(Path(f"{url.database}.reserve"))


def _prepare(engine: Engine) -> None:
    """Migrate the database; on a full disk with what its reserve gives.

    Raises:
        DBAPIError, StoreError: it cannot be used.
    """
    room = RoomOnDisk(engine, _reserve_of(engine.url))
    while True:
        try:
            with engine.begin() as connection:
                _wait_for_migrations(connection)
                migrate(connection)
                return
        except DBAPIError as error:
            if not (failures.wants_room(error) and room.make()):
                raise


def lock_placement(connection: Connection) -> None:
    """Hold off every other placement (and migration) on this database until the transaction ends."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": PLACEMENT_LOCK})


def _wait_for_migrations(connection: Connection) -> None:
    """Hold off another gateway's migration, or wait for it; on SQLite the transaction does."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{MIGRATION_SECONDS}s'")
        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
    lock_placement(connection)


def _touch(session: Session) -> None:
    lock_placement(session.connection())
    version: ColumnClause[str] = column("version_num")
    versions = table("alembic_version", version)
    touched = session.execute(update(versions).where(version == schema_version()).values(version_num=version))
    if affected(touched) != 1:
        raise failures.other_schema()


def affected(result: Any) -> int:
    """Return how many rows a statement wrote."""
    assert isinstance(result, CursorResult)  # noqa: S101 - narrows for the type checker; every DML statement gives one
    return result.rowcount


# -- opening ----------------------------------------------------------------------------------------------------------


def make_engine(url: str, patience: Patience = PATIENCE) -> Engine:
    """Return an engine with the settings that this store needs, not yet connected.

    Raises:
        StoreError: the directory of the SQLite file cannot be made, or the URL's driver is missing.
    """
    parsed = make_url(url)
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.get_backend_name() != "sqlite":
        return _make_postgresql_engine(parsed, patience)
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
    config = _config()
    config.attributes["connection"] = connection
    script = _migrations()
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


@cache
def schema_version() -> str | None:
    """Return this version's schema."""
    return _migrations().get_current_head()


def _migrations() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def _make_postgresql_engine(url: URL, patience: Patience) -> Engine:
    arguments = {name: value for name, value in postgresql.connect_args(patience).items() if name not in url.query}
    try:
        # Nothing asks whether a pooled connection still lives: a transaction on one that does not runs again.
        engine = create_engine(url, pool_size=READERS + 1, connect_args=arguments)
    except ModuleNotFoundError as error:
        raise StoreError(f"database {url.render_as_string()}: the driver {error.name} is not installed") from error
    for name in ("connect", "checkout"):
        event.listen(engine, name, calls.on_connection)
    for name, listener in postgresql.listeners(patience).items():
        event.listen(engine, name, listener)
    return engine


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
