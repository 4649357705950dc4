"""One autoscaler acts at a time.

In one state directory there is a file lock, which the kernel releases when its process dies.  It is an open file
description lock (fcntl(2)), because that kind can be queried without being taken: a command that only looks never gets
in the way of a daemon that starts.  filelock and flock(2) cannot do that.

On one journal in PostgreSQL, which autoscalers on several machines may share, there is a lease, which runs out unless
it is renewed. It is a row with an owner, a number and an expiry by the clock of the database; so it needs no session,
and holds past a pooler too. Its owner renews it every third of its length, and acts only until a third before its end,
by a clock of its own that counts from before the renewal was sent. So one that is frozen, starved or cut off has
stopped by the time that another may begin.

Each change of owner raises the number. Every write to the journal looks whether the row still has the writer's, in the
same transaction; and since the journal comes before every call, one that was overtaken calls nothing new.
"""

import contextlib
import errno
import fcntl
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Final
from uuid import uuid4

from sqlalchemy import Engine, text
from sqlalchemy.exc import SQLAlchemyError
from sqlmodel import Session

from autoscaler.errors import LockedError
from autoscaler.throttled_log import ThrottledLog

log = logging.getLogger(__name__)

# -- the file lock ----------------------------------------------------------------------------------------------------

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


# -- the lease --------------------------------------------------------------------------------------------------------

LEASE_SECONDS: Final = 30.0
NOT_RENEWED: Final = "the lease cannot be renewed"

_TAKE: Final = text(
    "INSERT INTO lease (deployment, owner, number, expires_at)"
    " VALUES (:deployment, :owner, 1, clock_timestamp() + make_interval(secs => :seconds))"
    " ON CONFLICT (deployment) DO UPDATE SET owner = excluded.owner, expires_at = excluded.expires_at,"
    " number = CASE WHEN lease.owner = excluded.owner THEN lease.number ELSE lease.number + 1 END"
    " WHERE lease.owner = excluded.owner OR lease.expires_at <= clock_timestamp()"
    " RETURNING number"
)
_GIVE_BACK: Final = text(
    "UPDATE lease SET expires_at = clock_timestamp() WHERE deployment = :deployment AND owner = :owner"
)
_LOOK: Final = text("SELECT owner FROM lease WHERE deployment = :deployment")
# Shared, so that the lanes of one owner do not wait for one another, and nobody takes the lease during the transaction.
_FENCE: Final = text(
    "SELECT 1 FROM lease WHERE deployment = :deployment AND owner = :owner AND number = :number FOR SHARE"
)


def _awake_seconds() -> float:
    """Return seconds that also pass while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True)
class _Held:
    number: int
    until: float
    """By this process's clock."""


class Lease:
    """The right of one process to act for a deployment.

    Args:
        engine: of the journal's database.
        deployment: for which only one may act.
        seconds: its length, after which another may take it.
        clock: returns seconds.
    """

    def __init__(
        self,
        engine: Engine,
        deployment: str,
        seconds: float = LEASE_SECONDS,
        clock: Callable[[], float] = _awake_seconds,
    ) -> None:
        self._engine = engine
        self._deployment = deployment
        self._seconds = seconds
        self._clock = clock
        self._held: _Held | None = None
        self._over = threading.Event()
        self._log = ThrottledLog(log, time.monotonic)
        self.owner = f"{socket.gethostname()} process {os.getpid()} {uuid4().hex[:8]}"
        self.overtaken = False
        """Whether another has acted since this one did; what it knows of the world is then no longer true."""

    def is_held(self) -> bool:
        """Return whether this process may act now."""
        held = self._held
        return held is not None and not self.overtaken and self._clock() < held.until

    def renew(self) -> bool:
        """Take the lease, or hold it for longer; return whether that succeeded.

        Raises:
            SQLAlchemyError: nobody knows; what is held already runs out.
        """
        sent = self._clock()
        with self._engine.begin() as connection:
            values = {"deployment": self._deployment, "owner": self.owner, "seconds": self._seconds}
            number = connection.execute(_TAKE, values).scalar_one_or_none()
        before = self._held
        if before is not None and number != before.number:
            self.overtaken = True
        if number is None or self.overtaken:
            return False
        self._held = _Held(number, sent + self._seconds * 2 / 3)
        return True

    def holder(self) -> str:
        """Return who has the lease or had it last."""
        with self._engine.begin() as connection:
            return str(connection.execute(_LOOK, {"deployment": self._deployment}).scalar_one_or_none() or "nobody")

    def guard(self, session: Session) -> None:
        """Let the transaction commit only while the lease is this process's.

        Raises:
            LockedError: it is another's.
        """
        number = None if self._held is None else self._held.number
        values = {"deployment": self._deployment, "owner": self.owner, "number": number}
        if session.execute(_FENCE, values).first() is None:
            raise LockedError(f"the lease of {self._deployment} is no longer this autoscaler's; nothing was written")

    def give_back(self) -> None:
        """Let another take it at once."""
        self._held = None
        with self._engine.begin() as connection:
            connection.execute(_GIVE_BACK, {"deployment": self._deployment, "owner": self.owner})

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Renew it on a thread of its own until the block ends, and give it back then."""
        renewer = threading.Thread(target=self._keep, name="lease", daemon=True)
        renewer.start()
        try:
            yield
        finally:
            self._over.set()
            renewer.join(self._seconds)
            with contextlib.suppress(SQLAlchemyError):  # it runs out by itself
                self.give_back()

    def _keep(self) -> None:
        while True:
            acted, pause = self.is_held(), self._seconds / 3
            try:
                if self.renew():
                    self._log.resolve(NOT_RENEWED)
                elif not acted:
                    self._log.report("standing by", f"{self.holder()} has the lease of {self._deployment}")
            except SQLAlchemyError as error:
                self._log.report(NOT_RENEWED, " ".join(str(getattr(error, "orig", None) or error).split()))
                pause = self._seconds / 15
            if self._over.wait(pause):
                return
