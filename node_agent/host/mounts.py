"""Mounts and loop devices by system call, without a process for each.

``mount(8)`` costs 3 to 8 ms a call, which is a large part of a sandbox's start; the system calls cost microseconds, and
a file becomes a block device in well under a millisecond.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import struct
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Final

from node_agent.host.disk import libc

MS_RDONLY: Final = 1
MS_NOSUID: Final = 2
MS_NODEV: Final = 4
MS_REMOUNT: Final = 32
MS_NOATIME: Final = 1024
MS_BIND: Final = 4096
_MNT_DETACH: Final = 2
_MOUNTINFO: Final = Path("/proc/self/mountinfo")

_LOOP_CTL_GET_FREE: Final = 0x4C82
_LOOP_CONFIGURE: Final = 0x4C0A
_LOOP_CLR_FD: Final = 0x4C01
_LOOP_AUTOCLEAR: Final = 4  # the device goes away with its last user, the mount
_LOOP_MAJOR: Final = 7
# struct loop_config of linux/loop.h: fd, block size, loop_info64, reserved.
_LOOP_CONFIG: Final = struct.Struct("=II 5Q4I64s64s32s2Q 8Q")
_LOOP_ATTEMPTS: Final = 64  # another process may take the free device first

# -- mounts -----------------------------------------------------------------------------------------------------------


def _check(result: int, what: str, path: Path) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}", str(path))


def mount(source: str, target: Path, kind: str, flags: int = 0, options: str = "") -> None:
    """Call mount(2).

    Raises:
        OSError: the kernel refused; ``filename`` is the target.
    """
    result = libc().mount(
        source.encode(), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), options.encode() or None
    )
    _check(result, f"mount {kind}", target)


def bind(source: Path, target: Path, *, read_only: bool = False) -> None:
    """Make ``source`` visible at ``target``, which must exist and be of the same kind."""
    mount(str(source), target, "", MS_BIND)
    if read_only:
        mount(str(source), target, "", MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NODEV | MS_NOSUID)


def overlay(lower: Path, upper: Path, work: Path, target: Path) -> None:
    """Mount an overlay of a read-only ``lower`` and a writable ``upper``, without devices and setuid programs."""
    parts = {"lowerdir": lower, "upperdir": upper, "workdir": work}
    options = ",".join(f"{key}={_escaped(path)}" for key, path in parts.items())
    # Without an index and with the copy-up of whole files only, the upper directory can be used again under another
    # mount, and nothing is written to the lower one.
    flags = MS_NOATIME | MS_NODEV | MS_NOSUID
    mount("overlay", target, "overlay", flags, f"{options},index=off,metacopy=off,redirect_dir=off")


def _escaped(path: Path) -> str:
    """Quote a path for the options of overlayfs, where ``:`` and ``,`` separate."""
    return re.sub(r"([\\:,])", r"\\\1", str(path))


def unmount(target: Path) -> bool:
    """Unmount the topmost mount at ``target``; return ``False`` when there is none.

    It never waits for users: a busy mount is detached and goes with its last user.
    """
    if libc().umount2(os.fsencode(target), _MNT_DETACH) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOENT, errno.ENOTDIR):
        return False
    raise OSError(number, f"umount: {os.strerror(number)}", str(target))


def unmount_below(directory: Path) -> list[Path]:
    """Detach every mount at or below ``directory``, deepest first, stacked ones included; return their paths."""
    deepest_first = sorted(mounted_below(directory), key=lambda path: len(path.parts), reverse=True)
    return [target for target in deepest_first if unmount(target)]


def mounted_below(directory: Path, mountinfo: Path = _MOUNTINFO) -> list[Path]:
    """Return the mount points at or below ``directory``, each as often as something is stacked there."""
    return [point for point in _mount_points(mountinfo) if point.is_relative_to(directory)]


def mounts_inside(directory: Path, mountinfo: Path = _MOUNTINFO) -> list[str]:
    """Return the mount points below ``directory`` itself: a recursive delete would go through them."""
    return sorted(str(point) for point in mounted_below(directory, mountinfo) if point != directory)


def _mount_points(mountinfo: Path) -> list[Path]:
    lines = mountinfo.read_bytes().splitlines()
    return [Path(os.fsdecode(_unescaped(line.split(b" ", 5)[4]))) for line in lines]


def _unescaped(field: bytes) -> bytes:
    """Undo the three octal digits with which the kernel writes blanks and backslashes."""
    return re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), field)


# -- loop devices -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def loop_device(file: Path) -> Iterator[Path]:
    """Attach a loop device to ``file``.  Mount it inside the block: after it, the device lives as long as the mount.

    Raises:
        OSError: no device is available.
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
    for _ in range(_LOOP_ATTEMPTS):
        path = _free_device()
        device = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            name = os.fsencode(file.name)[:63]
            info = (0, 0, 0, 0, 0, 0, 0, 0, _LOOP_AUTOCLEAR, name, b"", b"", 0, 0)
            fcntl.ioctl(device, _LOOP_CONFIGURE, _LOOP_CONFIG.pack(backing, 0, *info, *[0] * 8))
        except OSError as error:
            os.close(device)
            if error.errno != errno.EBUSY:
                raise
            continue
        return device, path
    raise OSError(errno.EBUSY, "no free loop device is available", str(file))


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


def loop_device_of(file: Path) -> Path | None:
    """Return the loop device over ``file``, if there is one."""
    return next((device for device, backing in loop_devices() if backing == file), None)


def detach_loop_devices(directory: Path, keep: Container[str] = ()) -> list[str]:
    """Detach the loop devices whose files lie below ``directory``, save in its entries ``keep``.

    Returns:
        The names of the devices that were detached.
    """
    gone: list[str] = []
    for device, backing in loop_devices():
        if backing.is_relative_to(directory) and backing.relative_to(directory).parts[0] not in keep:
            with contextlib.suppress(OSError):  # it may be detached while we look
                descriptor = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    fcntl.ioctl(descriptor, _LOOP_CLR_FD)
                finally:
                    os.close(descriptor)
                gone.append(device.name)
    return gone


def loop_devices() -> Iterator[tuple[Path, Path]]:
    """Yield each attached loop device with the file behind it."""
    for entry in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):  # it may be detached while we look
            backing = entry.read_text().strip().removesuffix(" (deleted)")
            yield Path("/dev") / entry.parent.parent.name, Path(backing)
