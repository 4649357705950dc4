"""The static programs that every sandbox sees: a busybox, and an init that reaps orphans.

* **busybox** moves files, so that they move in images without a shell too.
* **init** is a sandbox's first process.  Without one, every orphan stays as a zombie and counts against the sandbox's
  bound on processes: gVisor reaps none by itself, and few programs wait for children that are not theirs.

They are copied from the host, because an upgrade of the host's package would change the files under running sandboxes,
and mounted read-only on the host too.  gVisor up to 20240729 truncates the host's file when a process inside opens it
with O_TRUNC on a mount that is read-only only inside: the refusal comes after the deed.
"""

import os
import shutil
import struct
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from node_agent.host import mounts
from node_agent.host.process import CommandError

BUSYBOX_INSIDE: Final = "/.sandbox/busybox"
"""Its path inside every sandbox."""
INIT_NAME: Final = "init"
_BUSYBOX_NAME: Final = "busybox"

_BUSYBOX_SOURCES: Final = ("/bin/busybox", "/usr/bin/busybox", "/bin/busybox.static", "/usr/bin/busybox-static")
# tini; Debian has it in the packages docker.io (as docker-init) and tini.
_INIT_SOURCES: Final = (
    "/usr/bin/tini-static",
    "/usr/bin/docker-init",
    "/usr/libexec/docker/docker-init",
    "/sbin/tini",
)
_FILES: Final = "files"
_BOUND: Final = "bound"
_PT_INTERP: Final = 3
_lock: Final = threading.Lock()


@dataclass(frozen=True)
class StaticPrograms:
    """Programs to bind into sandboxes at the directory of `BUSYBOX_INSIDE`.

    Attributes:
        path: the directory on the host, mounted read-only.
        init: whether an init is among them; not every host has a static one.
    """

    path: Path
    init: bool

    @property
    def busybox(self) -> Path:
        """The busybox on the host."""
        return self.path / _BUSYBOX_NAME


def provide(directory: Path) -> StaticPrograms:
    """Return the programs below ``directory``, copied and mounted on the first call.

    Raises:
        CommandError: the host has no static busybox.
        OSError: they cannot be copied or mounted.
    """
    files, bound = directory / _FILES, directory / _BOUND
    with _lock:
        copy_busybox(files)
        init = _copied(files / INIT_NAME, _INIT_SOURCES)
        # os.path.ismount misses a mount whose source lies on the same file system.
        if not mounts.mounted_below(bound):
            bound.mkdir(exist_ok=True)
            mounts.bind(files, bound, read_only=True)
    return StaticPrograms(bound, init)


def release(directory: Path) -> bool:
    """Unmount the programs, once no sandbox needs them; return whether they were mounted."""
    with _lock:
        return bool(mounts.unmount_below(directory / _BOUND))


def copy_busybox(directory: Path) -> Path:
    """Return a static busybox below ``directory``, copied from the host on the first call.

    Raises:
        CommandError: the host has none; the sentence names the package.
        OSError: it cannot be copied.
    """
    target = directory / _BUSYBOX_NAME
    if not _copied(target, _BUSYBOX_SOURCES):
        raise CommandError(["busybox"], "(static) is not installed on this host; apt-get install busybox-static")
    return target


def is_static(program: Path) -> bool:
    """Return whether a program is a 64-bit ELF that asks for no dynamic linker."""
    data = program.read_bytes()[: 64 * 1024]
    if data[:5] != b"\x7fELF\x02":
        return False
    (table,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    kinds = [struct.unpack_from("<I", data, table + index * size)[0] for index in range(count)]
    return _PT_INTERP not in kinds


def _copied(target: Path, sources: tuple[str, ...]) -> bool:
    """Copy the first static program of ``sources``, whole or not at all; return whether there is one."""
    if target.exists():
        return True
    source = next((path for path in map(Path, sources) if path.is_file() and is_static(path)), None)
    if source is None:
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.copyfile(source, partial)
    partial.chmod(0o755)
    partial.rename(target)
    return True
