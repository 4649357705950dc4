"""Loop devices by ioctl: a file becomes a block device in well under a millisecond."""

import contextlib
import errno
import fcntl
import os
import struct
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Final

_LOOP_CTL_GET_FREE: Final = 0x4C82
_LOOP_CONFIGURE: Final = 0x4C0A
_LOOP_CLR_FD: Final = 0x4C01
_AUTOCLEAR: Final = 4  # the device goes away with its last user, the mount
_LOOP_MAJOR: Final = 7
# struct loop_config of linux/loop.h: fd, block size, loop_info64, reserved.
_CONFIG: Final = struct.Struct("=II 5Q4I64s64s32s2Q 8Q")
_ATTEMPTS: Final = 64  # another process may take the free device first


@contextlib.contextmanager
def attached(file: Path) -> Iterator[Path]:
    """A loop device over ``file``.  Mount it inside the block: after it, the device lives as long as the mount.

    Raises:
        OSError: no device could be had.
    """
    backing = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    try:
        device, path = _configure(backing, file)
    finally:
        os.close(backing)
    try:
        yield path
    finally:
        os.close(device)


def _configure(backing: int, file: Path) -> tuple[int, Path]:
    for _ in range(_ATTEMPTS):
        path = _free_device()
        device = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            name = os.fsencode(file.name)[:63]
            flags = _AUTOCLEAR
            fcntl.ioctl(
                device,
                _LOOP_CONFIGURE,
                _CONFIG.pack(backing, 0, 0, 0, 0, 0, 0, 0, 0, 0, flags, name, b"", b"", 0, 0, *[0] * 8),
            )
        except OSError as error:
            os.close(device)
            if error.errno != errno.EBUSY:
                raise
            continue
        return device, path
    raise OSError(errno.EBUSY, "no free loop device could be had", str(file))


def _free_device() -> Path:
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    try:
        number = fcntl.ioctl(control, _LOOP_CTL_GET_FREE)
    finally:
        os.close(control)
    path = Path(f"/dev/loop{number}")
    if not path.exists():
        # Hosts and containers without devtmpfs get no node by themselves.
        os.mknod(path, 0o60660, os.makedev(_LOOP_MAJOR, number))
    return path


def find(file: Path) -> Path | None:
    """The loop device over ``file``, if there is one."""
    return next((device for device, backing in _attached() if backing == file), None)


def detach_below(directory: Path, keep: Container[str] = ()) -> list[str]:
    """Detaches the loop devices whose files lie below ``directory``, save in its entries ``keep``; tells which."""
    gone: list[str] = []
    for device, backing in _attached():
        if backing.is_relative_to(directory) and backing.relative_to(directory).parts[0] not in keep:
            with contextlib.suppress(OSError):  # it may be detached while we look
                descriptor = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    fcntl.ioctl(descriptor, _LOOP_CLR_FD)
                finally:
                    os.close(descriptor)
                gone.append(device.name)
    return gone


def _attached() -> Iterator[tuple[Path, Path]]:
    """Devices and the files behind them."""
    for entry in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):  # it may be detached while we look
            backing = entry.read_text().strip().removesuffix(" (deleted)")
            yield Path("/dev") / entry.parent.parent.name, Path(backing)
