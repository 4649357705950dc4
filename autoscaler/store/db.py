"""The database: its engine, its pragmas and its migrations."""

from pathlib import Path
from typing import Any, Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DatabaseError

MIGRATIONS: Final = Path(__file__).parent / "migrations"
BUSY_SECONDS: Final = 10


class JournalError(Exception):
    """The journal cannot be used; the message says why and what to do."""


def open_engine(url: str) -> Engine:
    """The engine of a journal, its schema brought up to date.

    Raises:
        JournalError: it cannot be opened, or a newer version of this program wrote it.
    """
    if url.startswith("sqlite:///"):
        Path(url.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
    try:
        engine = create_engine(url, connect_args={"timeout": BUSY_SECONDS} if url.startswith("sqlite") else {})
        if engine.dialect.name == "sqlite":
            event.listen(engine, "connect", _set_up)
            event.listen(engine, "begin", _begin)
        with engine.begin() as connection:
            _migrate(connection)
    except DatabaseError as error:
        raise JournalError(
            f"the journal {url} cannot be opened: {error.orig or error}; check the path and disk"
        ) from error
    return engine


def _set_up(connection: Any, _record: Any) -> None:
    # The driver's own transactions begin deferred, which two writers turn into "database is locked".
    connection.isolation_level = None
    cursor = connection.cursor()
    # FULL: a row that was answered is on disk before anything is bought.
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _migrate(connection: Connection) -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = connection
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    current = MigrationContext.configure(connection).get_current_revision()
    if current is not None and current not in known:
        raise JournalError(
            f"the journal has schema {current}, which this version does not know; install the version that wrote it"
        )
    command.upgrade(config, "head")
