"""One autoscaler acts at a time.

On one machine a file lock, which the kernel releases when its process dies by any means; with a journal in PostgreSQL
also an advisory lock there, which the server releases with the connection.  No clock is involved in either.

The file lock is an open file description lock (fcntl(2)), because that kind can be queried without being taken: a
command that only looks never gets in the way of a daemon that starts.  filelock and flock(2) cannot do that.
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

from autoscaler.errors import LockedError

# struct flock of Linux on 64-bit machines: type, whence, start, length, process id.
_FLOCK: Final = "hhqqi4x"
_WHOLE: Final = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold the file lock.

    Raises:
        LockedError: another process holds it.
        OSError: the file cannot be created.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+") as file:
        if not _take(file):
            file.seek(0)
            owner = file.read(200).strip() or "a process that has not written its name yet"
            raise LockedError(f"another autoscaler holds {path}: {owner}; stop it first")
        file.truncate(0)
        file.write(f"process {os.getpid()}, since {datetime.now(UTC).isoformat(timespec='seconds')}\n")
        file.flush()
        yield


def owner(path: Path) -> str | None:
    """Return who holds the file lock; ``None`` when nobody does.

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
    """Take the lock for this open file; return whether that succeeded."""
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, _WHOLE)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        raise
    return True


@contextlib.contextmanager
def held_in_database(engine: Engine, deployment: str) -> Iterator[Callable[[], None]]:
    """Hold the advisory lock of a deployment in PostgreSQL; any other database is a file, and has its own lock.

    Yields:
        A function to call before each round, which raises `LockedError` once the lock is no longer certain.

    Raises:
        LockedError: another process holds it.
    """
    if engine.dialect.name != "postgresql":
        yield lambda: None  # a file lock cannot be lost
        return
    key = int.from_bytes(hashlib.sha256(f"sandbox-fleet {deployment}".encode()).digest()[:8], signed=True)
    # A session's lock lives as long as its connection, so this one is kept out of the pool and out of transactions.
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        if not connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), {"key": key}):
            raise LockedError(f"another autoscaler of {deployment} holds the lock in its database; stop it first")
        connection.detach()  # closing it ends the session, and with it the lock
        yield lambda: _verify(connection, key)


def _verify(connection: Connection, key: int) -> None:
    """Raise unless the same session still holds the lock; a new connection would not."""
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
