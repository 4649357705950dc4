"""Reading files below a sandbox's root without ever leaving it, whatever its symlinks say."""

import ctypes
import errno
import os
import stat
from functools import cache
from pathlib import Path
from typing import Final

_SYS_OPENAT2: Final = 437  # the same number on every architecture
_RESOLVE_IN_ROOT: Final = 0x10


class _OpenHow(ctypes.Structure):
    """``struct open_how`` of linux/openat2.h."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def open_below(root: Path, path: str, flags: int = os.O_RDONLY) -> int:
    """Opens ``path`` as a process would whose root is ``root``; the caller closes the descriptor.

    Raises:
        OSError: it is not there, or the kernel is older than 5.6.
    """
    directory = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        how = _OpenHow(flags | os.O_CLOEXEC, 0, _RESOLVE_IN_ROOT)
        descriptor: int = _libc().syscall(
            _SYS_OPENAT2, directory, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how)
        )
    finally:
        os.close(directory)
    if descriptor < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return descriptor


def read_below(root: Path, path: str, limit: int) -> bytes:
    """At most ``limit`` bytes of a regular file below ``root``; empty when there is none.

    Raises:
        OSError: it is there and cannot be read.
    """
    try:
        # A FIFO or a device that a sandbox put there must not block or be opened.
        descriptor = open_below(root, path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO):
            return b""
        raise
    with os.fdopen(descriptor, "rb") as file:
        return file.read(limit) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
