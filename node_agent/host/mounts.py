"""mount(2) and umount(2) without a process for each.

``mount(8)`` costs 3 to 8 ms a call, which is a large part of a sandbox's start; the system calls cost microseconds.
"""

import ctypes
import errno
import os
import re
from functools import cache
from pathlib import Path
from typing import Final

MS_RDONLY: Final = 1
MS_NOSUID: Final = 2
MS_NODEV: Final = 4
MS_NOEXEC: Final = 8
MS_REMOUNT: Final = 32
MS_NOATIME: Final = 1024
MS_BIND: Final = 4096
_MNT_DETACH: Final = 2
_MOUNTINFO: Final = Path("/proc/self/mountinfo")


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str, path: Path) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}", str(path))


def mount(source: str, target: Path, kind: str, flags: int = 0, options: str = "") -> None:
    """One mount(2).

    Raises:
        OSError: the kernel refused; ``filename`` is the target.
    """
    result = _libc().mount(
        source.encode(), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), options.encode() or None
    )
    _check(result, f"mount {kind}", target)


def bind(source: Path, target: Path, *, read_only: bool = False) -> None:
    """Makes ``source`` visible at ``target``, which must exist and be of the same kind."""
    mount(str(source), target, "", MS_BIND)
    if read_only:
        mount(str(source), target, "", MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NODEV)


def overlay(lower: Path, upper: Path, work: Path, target: Path) -> None:
    """Mounts an overlay of a read-only ``lower`` and a writable ``upper``."""
    parts = {"lowerdir": lower, "upperdir": upper, "workdir": work}
    options = ",".join(f"{key}={_escaped(path)}" for key, path in parts.items())
    # Without an index and with the copy-up of whole files only, the upper directory can be used again under another
    # mount, and nothing is written to the lower one.
    mount("overlay", target, "overlay", MS_NOATIME, f"{options},index=off,metacopy=off,redirect_dir=off")


def _escaped(path: Path) -> str:
    """A path as overlayfs reads it in its options, where ``:`` and ``,`` separate."""
    return re.sub(r"([\\:,])", r"\\\1", str(path))


def unmount(target: Path) -> bool:
    """Takes away the topmost mount at ``target``; false when there is none.

    It never waits for users: a busy mount is detached and goes with its last user.
    """
    if _libc().umount2(os.fsencode(target), _MNT_DETACH) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOENT, errno.ENOTDIR):
        return False
    raise OSError(number, f"umount: {os.strerror(number)}", str(target))


def unmount_below(directory: Path) -> list[Path]:
    """Detaches every mount at or below ``directory``, deepest first, stacked ones included; tells which."""
    deepest_first = sorted(mounted_below(directory), key=lambda path: len(path.parts), reverse=True)
    return [target for target in deepest_first if unmount(target)]


def mounted_below(directory: Path, mountinfo: Path = _MOUNTINFO) -> list[Path]:
    """Mount points at or below ``directory``, each as often as something is stacked there."""
    return [point for point in _mount_points(mountinfo) if point.is_relative_to(directory)]


def mounts_inside(directory: Path, mountinfo: Path = _MOUNTINFO) -> list[str]:
    """Mount points below ``directory`` itself: a recursive delete would go through them."""
    return sorted(str(point) for point in mounted_below(directory, mountinfo) if point != directory)


def _mount_points(mountinfo: Path) -> list[Path]:
    lines = mountinfo.read_bytes().splitlines()
    return [Path(os.fsdecode(_unescaped(line.split(b" ", 5)[4]))) for line in lines]


def _unescaped(field: bytes) -> bytes:
    """The kernel writes blanks and backslashes as three octal digits."""
    return re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), field)
