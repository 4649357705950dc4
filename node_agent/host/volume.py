"""One bounded volume per sandbox: a sparse ext4 file, loop-mounted.

Whatever a sandbox writes, it costs the host at most the volume's size, and inside the sandbox a full volume is an
ordinary ENOSPC with a correct statvfs.
"""

import contextlib
import errno
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
from node_agent.host.disk import host_errors
from node_agent.host.process import run

_IMAGE: Final = "volume.ext4"
_POINT: Final = "volume"
_FULL_BELOW: Final = MIB  # measured: with 400 KiB shown as free, ext4 already refuses the next block
_KEPT_TEMPLATES: Final = 8


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
                volume.mount()
            else:
                self._make(volume, size_mb)
                volume.mount(fresh=True)
        return volume

    def _make(self, volume: "Volume", size_mb: int) -> None:
        volume.directory.mkdir(parents=True, exist_ok=True)
        with self._lock, _whole_or_gone(volume.image) as partial:
            _copy_sparse(self._template(size_mb), partial)

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
            # discard gives blocks of deleted files back to the host; inode tables stay unwritten until used.
            flags = mounts.MS_NODEV | mounts.MS_NOSUID | mounts.MS_NOATIME
            mounts.mount(str(device), self.path, "ext4", flags, "discard,noinit_itable")

    def unmount(self) -> None:
        """Detach the volume and everything mounted below it.  Idempotent."""
        mounts.unmount_below(self.path)

    def used_mb(self) -> float:
        """Return the MiB taken by its content."""
        status = os.statvfs(self.path)
        return (status.f_blocks - status.f_bfree) * status.f_frsize / MIB

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


def _copy_sparse(source: Path, target: Path) -> None:
    """Copy data and leave holes."""
    with source.open("rb") as reader, target.open("wb") as writer:
        size = os.fstat(reader.fileno()).st_size
        writer.truncate(size)
        offset = 0
        while offset < size:
            try:
                start = os.lseek(reader.fileno(), offset, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # nothing but a hole up to the end
                    return
                raise
            offset = os.lseek(reader.fileno(), start, os.SEEK_HOLE)
            _copy_range(reader.fileno(), writer.fileno(), start, offset)


def _copy_range(reader: int, writer: int, start: int, end: int) -> None:
    while start < end:
        copied = os.copy_file_range(reader, writer, end - start, start, start)
        if copied == 0:
            raise OSError(errno.EIO, "a volume template ended early")
        start += copied


def remove_tree(directory: Path) -> None:
    """Unmount whatever is mounted below ``directory`` and remove it.  Idempotent."""
    mounts.unmount_below(directory)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(directory)
