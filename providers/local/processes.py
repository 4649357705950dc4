"""Which process is which, in a way that a recycled process id cannot fool.

A supervisor holds a POSIX lock on a file of its instance for as long as it lives, and the kernel tells who holds it:
nothing about processes is stored on disk.  A node agent and its children carry the instance's directory in their
environment, so they are found even when their supervisor was killed before it could write anything down.
"""

import contextlib
import errno
import fcntl
import os
import select
import signal
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

MARKER: Final = "SANDBOX_FLEET_INSTANCE"
# struct flock of Linux on 64-bit machines: type, whence, start, length, pid.
_FLOCK: Final = "hhqqi4x"
_KILL_SECONDS: Final = 5.0


def hold(path: Path) -> int | None:
    """Takes the lock until this process ends.

    Returns:
        The open descriptor, which must stay open and be the only one this process ever opens; ``None`` when another
        process has the lock.
    """
    descriptor = os.open(path, os.O_RDWR)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return None
        raise
    return descriptor


def holder(path: Path) -> int | None:
    """Process id of who holds the lock; ``None`` when nobody does or the file is not there."""
    try:
        with path.open("rb") as file:
            asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            answer = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, asked))
    except FileNotFoundError:
        return None
    kind, _, _, _, pid = answer
    return None if kind == fcntl.F_UNLCK else int(pid)


def signal_holder(path: Path, number: signal.Signals) -> bool:
    """Sends a signal to who holds the lock; whether there was somebody."""
    pid = holder(path)
    if pid is None:
        return False
    with _handle(pid) as handle:
        # The id may have gone to another process before the handle was open; who holds the lock now tells.
        if handle is None or holder(path) != pid:
            return False
        signal.pidfd_send_signal(handle, number)
    return True


def reap(pid: int) -> bool:
    """Collects a child of this process if it has ended; whether it has."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def kill_marked(home: Path) -> int:
    """Kills every process that carries ``home`` in its environment, and waits until they are gone.

    Returns:
        How many were killed.

    Raises:
        TimeoutError: some do not die.
    """
    deadline = time.monotonic() + _KILL_SECONDS
    killed = 0
    while found := list(_marked(home)):
        for pid in found:
            with _handle(pid) as handle:
                if handle is None or not _is_marked(pid, home):
                    continue
                killed += 1
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                select.select([handle], [], [], max(0.0, deadline - time.monotonic()))
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {found} of {home} do not die")
    return killed


def _marked(home: Path) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid() and _is_marked(int(entry.name), home):
            yield int(entry.name)


def _is_marked(pid: int, home: Path) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # it ended, or it is another user's
        return False
    return f"{MARKER}={home}".encode() in environment.split(b"\0")


@contextlib.contextmanager
def _handle(pid: int) -> Iterator[int | None]:
    """A descriptor that stands for this very process; ``None`` when there is none."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        yield None
        return
    try:
        yield handle
    except ProcessLookupError:
        return
    finally:
        os.close(handle)
