"""One autoscaler acts at a time: a lock that the kernel lets go of when its process dies by any means."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path


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
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            owner = file.read(200).strip() or "a process that has not said its name yet"
            raise LockedError(f"another autoscaler has {path}: {owner}; end it first") from None
        file.truncate(0)
        file.write(f"process {os.getpid()}, since {datetime.now(UTC).isoformat(timespec='seconds')}\n")
        file.flush()
        yield


def owner(path: Path) -> str | None:
    """Who holds the lock; ``None`` when nobody does."""
    try:
        with path.open("r") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return file.read(200).strip()
    except FileNotFoundError:
        pass
    return None
