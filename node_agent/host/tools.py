"""The static programs that every sandbox sees, on a mount that not even the sandbox's kernel can write.

gVisor up to 20240729 truncates the host's file when a process inside opens it with O_TRUNC on a mount that is
read-only only inside: the refusal comes after the deed.  A file that all sandboxes share has to be read-only on the
host as well.
"""

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from node_agent.host import busybox, mounts, reaper

_FILES: Final = "files"
_BOUND: Final = "bound"
_lock: Final = threading.Lock()


@dataclass(frozen=True)
class Tools:
    """Programs to bind into sandboxes at the directory of `busybox.INSIDE`.

    Attributes:
        path: the directory on the host, mounted read-only.
        init: whether a reaper of orphans is among them.
    """

    path: Path
    init: bool


def provide(directory: Path) -> Tools:
    """The programs below ``directory``, copied and mounted on the first call.

    Raises:
        CommandError: the host has no static busybox.
        OSError: they cannot be copied or mounted.
    """
    files, bound = directory / _FILES, directory / _BOUND
    with _lock:
        busybox.provide(files)
        init = reaper.provide(files) is not None
        # os.path.ismount misses a mount whose source lies on the same file system.
        if not mounts.mounted_below(bound):
            bound.mkdir(exist_ok=True)
            mounts.bind(files, bound, read_only=True)
    return Tools(bound, init)


def release(directory: Path) -> bool:
    """Takes the mount away, once no sandbox needs it; whether there was one."""
    with _lock:
        return bool(mounts.unmount_below(directory / _BOUND))
