"""One autoscaler acts at a time.

On one machine a file lock that the kernel lets go of when its process dies by any means; with a journal in PostgreSQL
also an advisory lock there, that the server lets go of with the connection.  No clock is involved in either.

The file lock belongs to the open file (fcntl(2), "open file description locks"), and can be asked for without being
taken: who only looks never stands in the way of who starts.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import struct
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Final

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import SQLAlchemyError

# struct flock of Linux on 64-bit machines: type, whence, start, length, process id.
_FLOCK: Final = "hhqqi4x"
_WHOLE: Final = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


class LockedError(Exception):
    """Another process has the lock; the message names it."""


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Holds the lock.

    Raises:
        LockedError: another process holds it.
        OSError: the file cannot be made.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+") as file:
        if not _take(file):
            file.seek(0)
            owner = file.read(200).strip() or "a process that has not said its name yet"
            raise LockedError(f"another autoscaler has {path}: {owner}; end it first")
        file.truncate(0)
        file.write(f"process {os.getpid()}, since {datetime.now(UTC).isoformat(timespec='seconds')}\n")
        file.flush()
        yield


def owner(path: Path) -> str | None:
    """Who holds the lock; ``None`` when nobody does.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        with path.open("r") as file:
            kind, *_ = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_OFD_GETLK, _WHOLE))
            return None if kind == fcntl.F_UNLCK else file.read(200).strip()
    except FileNotFoundError:
        return None


def _take(file: IO[str]) -> bool:
    """Whether the lock is this open file's now."""
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, _WHOLE)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        raise
    return True


@contextlib.contextmanager
def held_in_database(engine: Engine, deployment: str) -> Iterator[Callable[[], None]]:
    """Holds the advisory lock of a deployment in PostgreSQL; any other database is a file, and has its own lock.

    Yields:
        What is to be called before each round: raises `LockedError` once the lock is not certain any more.

    Raises:
        LockedError: another process holds it.
    """
    if engine.dialect.name != "postgresql":
        yield _nothing
        return
    key = int.from_bytes(hashlib.sha256(f"sandbox-fleet {deployment}".encode()).digest()[:8], signed=True)
    # A session's lock lives as long as its connection, so this one is kept out of the pool and out of transactions.
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        if not connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), {"key": key}):
            raise LockedError(f"another autoscaler of {deployment} has the lock in its database; end it first")
        connection.detach()  # closing it ends the session, and with it the lock
        yield lambda: _assure(connection, key)


def _assure(connection: Connection, key: int) -> None:
    """The same session still has the lock; a new connection would not."""
    query = (
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND granted"
        " AND ((classid::bigint << 32) | objid::bigint) = :key"
    )
    try:
        found = connection.scalar(text(query), {"key": key})
    except SQLAlchemyError as error:
        raise LockedError(f"the connection that held the lock is lost: {error}") from error
    if not found:
        raise LockedError("the lock in the database is lost")


def _nothing() -> None:
    """A file lock cannot be lost."""
