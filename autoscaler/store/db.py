"""The journal's database: its engine, its pragmas and its migrations."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.pool import StaticPool

from autoscaler.errors import JournalError
from gateway.wire import postgresql

MIGRATIONS: Final = Path(__file__).parent / "migrations"
BUSY_SECONDS: Final = 10
MIGRATION_SECONDS: Final = 60
MIGRATION_LOCK: Final = 0x5A17_A5CA
"""Key of the PostgreSQL advisory lock under which a journal is migrated; any number will do."""


def open_engine(url: str) -> Engine:
    """Open the engine of a journal, and migrate its schema.

    Raises:
        JournalError: it cannot be opened, or was written by a newer version.
    """
    if (path := _file(url)) is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Only its owner may read it; SQLite gives its side files the same mode, and refuses what cannot be made.
        with contextlib.suppress(OSError):
            path.touch(mode=0o600)
            path.chmod(0o600)
    with _journal_errors(url):
        engine = _engine(url)
        with engine.begin() as connection:
            _wait_for_migrations(connection)
            _migrate(connection)
    return engine


def _engine(url: str) -> Engine:
    if url.startswith("sqlite"):
        engine = create_engine(url, connect_args={"timeout": BUSY_SECONDS})
        event.listen(engine, "connect", _set_pragmas)
        event.listen(engine, "begin", _begin)
        return engine
    parsed = make_url(url)
    arguments = {name: value for name, value in postgresql.connect_args().items() if name not in parsed.query}
    engine = create_engine(parsed, pool_pre_ping=True, connect_args=arguments)
    for name, listener in postgresql.listeners().items():
        event.listen(engine, name, listener)
    return engine


def open_copy(url: str) -> Engine:
    """Open a journal to look at, and leave it unchanged: a file is copied into memory, a missing one is empty.

    Raises:
        JournalError: it cannot be read, or was written by another version.
    """
    path = _file(url)
    with _journal_errors(url):
        if path is None:
            engine = _engine(url)
            with engine.connect() as connection:
                _check(connection)
            return engine
        engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
        event.listen(engine, "connect", _set_pragmas)
        if path.exists():
            with contextlib.closing(_reading(path)) as source:
                source.backup(engine.raw_connection().driver_connection)  # type: ignore[arg-type]  # it is sqlite3's
        with engine.begin() as connection:
            _migrate(connection)
    return engine


def is_away(error: DBAPIError) -> bool:
    """Return whether a statement failed for what passes by itself: the database is away, or ended the connection."""
    return error.connection_invalidated or isinstance(error, OperationalError | InterfaceError)


def _reading(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)


def _file(url: str) -> Path | None:
    return Path(url.removeprefix("sqlite:///")) if url.startswith("sqlite:///") else None


@contextlib.contextmanager
def _journal_errors(url: str) -> Iterator[None]:
    """Translate errors of the database, its driver and its URL into one sentence without the password."""
    try:
        yield
    except (ArgumentError, ImportError) as error:
        raise JournalError(
            f"database_url: {error}; sqlite:///PATH and postgresql+psycopg://USER@HOST/NAME can be used"
        ) from error
    except ValueError as error:  # such as a port that is no number; the text may hold a password
        raise JournalError(
            "database_url is no URL; sqlite:///PATH and postgresql+psycopg://USER@HOST/NAME can be used"
        ) from error
    except (DatabaseError, sqlite3.Error) as error:
        shown = make_url(url).render_as_string(hide_password=True)
        reason = " ".join(str(getattr(error, "orig", None) or error).split())
        cure = "check the path and disk" if _file(url) is not None else "check the server and its address"
        raise JournalError(f"the journal {shown} cannot be opened: {reason}; {cure}") from error


def _set_pragmas(connection: Any, _record: Any) -> None:
    # The driver's own transactions begin deferred, which two writers turn into "database is locked".
    connection.isolation_level = None
    cursor = connection.cursor()
    # FULL: a row that was answered is on disk before anything is bought.
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _wait_for_migrations(connection: Connection) -> None:
    """Hold off the migration of another autoscaler on this database, or wait for it; a file is one process's."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{MIGRATION_SECONDS}s'")
        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})")


def _migrate(connection: Connection) -> None:
    _revision(connection)
    command.upgrade(_config(connection), "head")


def _check(connection: Connection) -> None:
    """Raise unless the schema is this version's."""
    current = _revision(connection)
    if current != ScriptDirectory.from_config(_config(connection)).get_current_head():
        raise JournalError(
            f"the journal has schema {current or 'none'}, which is not this version's;"
            " the autoscaler migrates it when it starts"
        )


def _revision(connection: Connection) -> str | None:
    known = {script.revision for script in ScriptDirectory.from_config(_config(connection)).walk_revisions()}
    current = MigrationContext.configure(connection).get_current_revision()
    if current is not None and current not in known:
        raise JournalError(
            f"the journal has schema {current}, which this version does not know; install the version that wrote it"
        )
    return current


def _config(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = connection
    return config
