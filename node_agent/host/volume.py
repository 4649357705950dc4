"""One bounded volume per sandbox: an ext4 file with blocks of its own, loop-mounted.

Whatever a sandbox writes, it costs the host at most the volume's size, and inside the sandbox a full volume is an
ordinary ENOSPC with a correct statvfs.  All blocks of the file are the sandbox's from the start: the kernel tells a
writer early that a file system is full, but what it wrote before into a hole of a file on a full host is lost.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Final

from gateway.wire.errors import ErrorCode
from gateway.wire.limits import MIB
from node_agent.errors import RuntimeFailure
from node_agent.host import mounts
from node_agent.host.disk import host_errors, libc
from node_agent.host.process import run

_IMAGE: Final = "volume.ext4"
_POINT: Final = "volume"
_FULL_BELOW: Final = MIB  # measured: with 400 KiB shown as free, ext4 already refuses the next block
_KEPT_TEMPLATES: Final = 8
_BLOCK: Final = 512  # unit of st_blocks
_COPY: Final = 1024 * 1024
_NOT_OFFERED: Final = frozenset({errno.EOPNOTSUPP, errno.ENOSYS})
_SET_FLAGS: Final = 0x40086602  # FS_IOC_SETFLAGS
_EXT4: Final = Path("/sys/fs/ext4")
_NO_COPY_ON_WRITE: Final = 0x00800000  # FS_NOCOW_FL


class Volumes:
    """Makes volumes below one directory each.

    A fresh file system of each size is made once and then copied: its few megabytes of real blocks copy in a
    millisecond or two, where ``mkfs.ext4`` takes 29.

    Args:
        templates: directory for the fresh file systems; on the same file system as the volumes.
    """

    def __init__(self, templates: Path) -> None:
        self._templates = templates
        self._lock = threading.Lock()

    def ensure(self, directory: Path, size_mb: int) -> "Volume":
        """Return the mounted volume of ``directory``, made if it is not there, with ``size_mb`` MiB.

        Raises:
            RuntimeFailure: ``DISK_FULL`` when the host has no room; ``CONFLICT`` when an earlier generation's volume is
                there and has another size.
        """
        volume = Volume(directory)
        with host_errors(f"volume of {size_mb} MiB in {directory}"):
            if volume.image.exists():
                _check_size(volume, size_mb)
                reserve(volume.image, size_mb * MIB)
                volume.mount()
            else:
                self._make(volume, size_mb)
                volume.mount(fresh=True)
        return volume

    def _make(self, volume: "Volume", size_mb: int) -> None:
        volume.directory.mkdir(parents=True, exist_ok=True)
        with self._lock, _whole_or_gone(volume.image) as partial:
            template = self._template(size_mb)
            _own_blocks(partial)
            reserve(partial, size_mb * MIB)
            _copy_data(template, partial)

    def _template(self, size_mb: int) -> Path:
        path = self._templates / f"{size_mb}.ext4"
        if not path.exists():
            self._templates.mkdir(parents=True, exist_ok=True)
            with _whole_or_gone(path) as partial:
                _format(partial, size_mb)
            self._forget_old(path)
        os.utime(path)
        return path

    def _forget_old(self, newest: Path) -> None:
        others = sorted(
            (path for path in self._templates.glob("*.ext4") if path != newest), key=lambda path: path.stat().st_mtime
        )
        for path in others[: max(0, len(others) - _KEPT_TEMPLATES + 1)]:
            path.unlink()


class Volume:
    """The volume of one directory: ``volume.ext4`` and its mount point ``volume``."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.image = directory / _IMAGE
        self.path = directory / _POINT

    @property
    def mounted(self) -> bool:
        return os.path.ismount(self.path)

    def mount(self, *, fresh: bool = False) -> None:
        """Mount it, if it is not mounted.

        Args:
            fresh: whether nobody can have mounted it before, which saves a look.

        Raises:
            OSError: the kernel refused.
        """
        if self.mounted:
            return
        self.path.mkdir(exist_ok=True)
        # Another mount namespace may still hold an earlier mount.  A second device over one file would ruin it; the
        # same device gives the same file system.
        present = None if fresh else mounts.loop_device_of(self.image)
        with nullcontext(present) if present else mounts.loop_device(self.image) as device:
            # discard would give the blocks of deleted files back to the host; inode tables stay unwritten until used.
            flags = mounts.MS_NODEV | mounts.MS_NOSUID | mounts.MS_NOATIME
            mounts.mount(str(device), self.path, "ext4", flags, "nodiscard,noinit_itable,errors=remount-ro")

    def unmount(self) -> None:
        """Detach the volume and everything mounted below it.  Idempotent."""
        mounts.unmount_below(self.path)

    def used_mb(self) -> float:
        """Return the MiB taken by its content."""
        status = os.statvfs(self.path)
        return (status.f_blocks - status.f_bfree) * status.f_frsize / MIB

    def held_mb(self) -> float:
        """Return the MiB of the host's disk that it has, whatever is in it."""
        return self.image.stat().st_blocks * _BLOCK / MIB

    def owns_blocks(self) -> bool:
        """Return whether all its blocks are set aside, so that no other file can take them."""
        status = self.image.stat()
        return status.st_blocks * _BLOCK >= status.st_size

    def writes(self) -> int | None:
        """Return how many writes its device has ended, successful or not; ``None`` while it is not mounted."""
        try:
            return int((self._device() / "stat").read_text().split()[4]) if self.mounted else None
        except FileNotFoundError:  # it goes while we look
            return None

    def damage(self) -> str | None:
        """Return what the host's disk did not take of what was written, in the kernel's words; ``None`` for nothing.

        Waits until all that was written is on the host's disk.
        """
        try:
            _sync(self.path)
            errors = int((_EXT4 / self._device().name / "errors_count").read_text())
        except OSError as error:
            return str(error) if self.mounted else None
        return f"{errors} errors in its file system" if errors and self.mounted else None

    def _device(self) -> Path:
        number = self.path.stat().st_dev
        return Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve()

    def full(self) -> bool:
        """Return whether a writer inside would get ENOSPC now, for want of blocks or of inodes."""
        status = os.statvfs(self.path)
        return status.f_bavail * status.f_frsize < _FULL_BELOW or status.f_favail == 0


@contextlib.contextmanager
def _whole_or_gone(path: Path) -> Iterator[Path]:
    """Yield the path to write what becomes ``path`` at the end; after a failure it is gone, with the room it took."""
    partial = path.with_suffix(".partial")
    try:
        yield partial
        partial.rename(path)
    finally:
        partial.unlink(missing_ok=True)


def _format(path: Path, size_mb: int) -> None:
    with path.open("wb") as file:
        file.truncate(size_mb * MIB)
    # No journal: it would cost blocks and writes, and nothing here has to survive a crash of the host.
    options = ["-m", "0", "-O", "^has_journal", "-E", "lazy_itable_init=1,nodiscard"]
    run(["mkfs.ext4", "-q", "-F", *options, str(path)], timeout=60)


def _check_size(volume: Volume, size_mb: int) -> None:
    """Refuse another size: without a journal ext4 grows only while unmounted, and another namespace may hold it."""
    present = volume.image.stat().st_size // MIB
    if present != size_mb:
        raise RuntimeFailure(
            ErrorCode.CONFLICT,
            f"the volume in {volume.directory} has {present} MiB and cannot become disk_mb={size_mb}; delete the"
            " sandbox first",
        )


def reserve(path: Path, size: int) -> bool:
    """Give a file all its blocks, and keep what it holds; made where it is not there.  Idempotent.

    Args:
        path: the file.
        size: in bytes; what the file has or gets.

    Returns:
        Whether the blocks are its own.  Some file systems (NFS, ZFS) set none aside.

    Raises:
        OSError: the host has no room.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        number = _fallocate(descriptor, size)
        if number in _NOT_OFFERED:
            os.truncate(descriptor, size)
        elif number:
            raise OSError(number, os.strerror(number), str(path))
        return os.fstat(descriptor).st_blocks * _BLOCK >= size
    finally:
        os.close(descriptor)


def _sync(directory: Path) -> None:
    """Call syncfs(2), which also tells what was lost in the background since it was last called."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if libc().syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(directory))
    finally:
        os.close(descriptor)


def _fallocate(descriptor: int, size: int) -> int:
    """Call fallocate(2) and return the error number, 0 for none; Python's own writes zeros where it is not offered."""
    while libc().fallocate(descriptor, 0, ctypes.c_int64(0), ctypes.c_int64(size)) != 0:
        number = ctypes.get_errno()
        if number != errno.EINTR:
            return number
    return 0


def _own_blocks(path: Path) -> None:
    """Let a new file be overwritten in place, where a file system (Btrfs) would take new blocks for each write."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        fcntl.ioctl(descriptor, _SET_FLAGS, _NO_COPY_ON_WRITE.to_bytes(8, "little"))
    except OSError as error:
        if error.errno not in (*_NOT_OFFERED, errno.ENOTTY, errno.EINVAL):  # others overwrite in place anyway
            raise
    finally:
        os.close(descriptor)


def _copy_data(source: Path, target: Path) -> None:
    """Copy what is not a hole, by reading and writing: blocks that two files share are nobody's own."""
    with source.open("rb") as reader, target.open("r+b") as writer:
        size = os.fstat(reader.fileno()).st_size
        offset = 0
        while offset < size:
            try:
                start = os.lseek(reader.fileno(), offset, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # nothing but a hole up to the end
                    return
                raise
            offset = os.lseek(reader.fileno(), start, os.SEEK_HOLE)
            reader.seek(start)
            writer.seek(start)
            while start < offset:
                data = reader.read(min(_COPY, offset - start))
                if not data:
                    raise OSError(errno.EIO, "a volume template ended early")
                start += writer.write(data)


def remove_tree(directory: Path) -> None:
    """Unmount whatever is mounted below ``directory`` and remove it.  Idempotent."""
    mounts.unmount_below(directory)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(directory)
