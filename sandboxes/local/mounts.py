"""The mount table of this process's mount namespace, as the kernel lists it."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TABLE: Final = Path("/proc/self/mountinfo")
_ESCAPE: Final = re.compile(rb"\\([0-7]{3})")


@dataclass(frozen=True)
class Mount:
    """One line of the table; see proc_pid_mountinfo(5).

    Attributes:
        target: where it is mounted.
        root: the directory of the file system that is mounted there.
        source: e.g. a device; any word for file systems without one.
        options: of the mount and of its file system.
    """

    target: Path
    root: str
    source: str
    options: str


def mounts() -> Iterator[Mount]:
    """Yield the mounts in the order in which they were made."""
    for line in TABLE.read_bytes().splitlines():
        own, _, rest = line.partition(b" - ")
        _id, _parent, _device, root, target, options, *_optional = own.split(b" ")
        _type, source, file_system_options = rest.split(b" ", 2)
        yield Mount(Path(_text(target)), _text(root), _text(source), f"{_text(options)},{_text(file_system_options)}")


def is_mounted(directory: Path) -> bool:
    """Tell whether something is mounted at ``directory``, itself included; `os.path.ismount` misses that."""
    path = directory.resolve()
    return any(mount.target == path for mount in mounts())


def _text(field: bytes) -> str:
    """Undo the kernel's octal escapes of blank, tab, newline and backslash."""
    return os.fsdecode(_ESCAPE.sub(lambda match: bytes([int(match[1], 8)]), field))
