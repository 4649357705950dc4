"""Blocks of the disk under the gateway's SQLite database, kept for the writes that make room or take rights away.

On a full disk SQLite cannot even delete: every transaction first appends to its log.  So a file beside the database
holds real blocks.  A reserved write (see `gateway.store.db.Database.write`) that meets a full disk gives them up slice
by slice until it succeeds (`RoomOnDisk`); what was given up is taken back as soon as there is room.  Until then nothing
new is made.

The file is the only state: whoever opens the database, the command line too, finds it as it is.
"""

import contextlib
import errno
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sqlalchemy import Engine

SLICES: Final = 8
"""A reserved write gives up one of them at a time, because anybody on that disk may take what was given up."""
LEAST_STEP: Final = 64 * 1024
"""Bytes; a smaller rest is not tried for."""
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class DiskReserve:
    """The file with the blocks.  Blocking, for a moment only.

    Args:
        path: of the file; made by the first `fill`, readable by its owner only.
        wanted: bytes of the whole reserve; none for those who only use it.
    """

    def __init__(self, path: Path, wanted: int = 0) -> None:
        self._path = path
        self.wanted = wanted

    def fill(self) -> bool:
        """Take what is missing of the reserve, or as much of it as there is room for; return whether it is whole."""
        with contextlib.suppress(OSError), self._open() as file:
            present = os.fstat(file).st_size
            step = self.wanted - present
            while step >= LEAST_STEP and present < self.wanted:
                step = min(step, self.wanted - present)
                if _allocate(file, present, step):
                    present += step
                else:
                    step //= 2
        return self.is_whole()

    def is_whole(self) -> bool:
        """Return whether all of it is there."""
        return self._size() >= self.wanted

    def release(self) -> bool:
        """Give up a slice; return ``False`` where none was left."""
        present = self._size()
        if not present:
            return False
        left = max(0, present - max(LEAST_STEP, self.wanted // SLICES, present // SLICES))
        try:
            os.truncate(self._path, left)
        except OSError:
            return False
        return True

    def _size(self) -> int:
        try:
            return self._path.stat().st_size
        except OSError:
            return 0

    @contextlib.contextmanager
    def _open(self) -> Iterator[int]:
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            yield file
        finally:
            os.close(file)


class RoomOnDisk:
    """What one reserved write may do about a full disk, step by step.

    Args:
        engine: of the SQLite database.
        reserve: of its disk; ``None`` for a write that may not use it.
    """

    def __init__(self, engine: Engine, reserve: DiskReserve | None) -> None:
        self._engine = engine
        self._reserve = reserve
        self._emptied = False

    def make(self) -> bool:
        """Make room; return ``False`` where nothing more can be done.

        First the database's log is emptied into the database, which takes its blocks into use again and is often
        enough; a slice is given up where that fails, or was not enough.
        """
        if self._reserve is None:
            return False
        if not self._emptied:
            self._emptied = True
            if self._empty_log():
                return True
        if not self._reserve.release():
            return False
        self._empty_log()
        return True

    def _empty_log(self) -> bool:
        connection = self._engine.raw_connection()
        try:
            busy, _, _ = connection.cursor().execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
        except sqlite3.Error:
            return False  # the disk is full for the database as well
        finally:
            connection.close()
        return not busy


def _allocate(file: int, offset: int, size: int) -> bool:
    """Extend the file by real blocks, or leave it as it was and return ``False``.

    Raises:
        OSError: something other than a full disk.
    """
    try:
        os.posix_fallocate(file, offset, size)
    except OSError as error:
        os.ftruncate(file, offset)  # also frees what was allocated before the disk was full
        if error.errno in _NO_ROOM:
            return False
        raise
    return True
