"""Files on the host's disk: written whole or not at all, and read below a root without ever leaving it.

A full disk is distinguished from every other failure: it has a code of its own, because freeing space cures it.
"""

import contextlib
import ctypes
import errno
import os
import stat
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from gateway.wire.errors import ErrorCode
from node_agent.errors import RuntimeFailure
from node_agent.host.process import CommandError

_OUT_OF_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
# As strerror(3) says it, which is what C programs print; those in Go begin it with a small letter.
_WORDS: Final = tuple(os.strerror(number).lower() for number in _OUT_OF_SPACE)
_SYS_OPENAT2: Final = 437  # the same number on every architecture
_RESOLVE_IN_ROOT: Final = 0x10


@cache
def libc() -> ctypes.CDLL:
    """Return the C library, for system calls that Python has no function for."""
    return ctypes.CDLL(None, use_errno=True)


def out_of_space(error: BaseException) -> bool:
    """Return whether ``error``, of the kernel or of a host command, means that a disk of the host is full."""
    if isinstance(error, OSError):
        return error.errno in _OUT_OF_SPACE
    return isinstance(error, CommandError) and says_full(error.output)


@contextlib.contextmanager
def host_errors(what: str) -> Iterator[None]:
    """Translate an error of the kernel or of a host command inside the block.

    Args:
        what: what is done there, as the sentence begins.

    Raises:
        RuntimeFailure: ``DISK_FULL`` where a disk of the host is full, else ``INTERNAL``.
    """
    try:
        yield
    except (OSError, CommandError) as error:
        code = ErrorCode.DISK_FULL if out_of_space(error) else ErrorCode.INTERNAL
        raise RuntimeFailure(code, f"{what}: {error}") from error


def says_full(text: str) -> bool:
    """Return whether what a host command printed means that."""
    return any(words in text.lower() for words in _WORDS)


def write_atomically(path: Path, data: bytes, *, durable: bool = False) -> None:
    """Replace ``path`` in one step by a file that only its owner reads.

    Args:
        path: the file; its directory must be there.
        data: the whole content.
        durable: whether it must survive a power cut, not only the end of this process.

    Raises:
        OSError: nothing was changed.
    """
    temporary = path.with_name(f".{path.name}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


class _OpenHow(ctypes.Structure):
    """``struct open_how`` of linux/openat2.h."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def open_below(root: Path, path: str, flags: int = os.O_RDONLY) -> int:
    """Open ``path`` as a process would whose root is ``root``; the caller closes the descriptor.

    Raises:
        OSError: it is not there, or the kernel is older than 5.6.
    """
    directory = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        how = _OpenHow(flags | os.O_CLOEXEC, 0, _RESOLVE_IN_ROOT)
        descriptor: int = libc().syscall(
            _SYS_OPENAT2, directory, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how)
        )
    finally:
        os.close(directory)
    if descriptor < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return descriptor


def read_below(root: Path, path: str, limit: int) -> bytes:
    """Return at most ``limit`` bytes of a regular file below ``root``; empty when there is none.

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
