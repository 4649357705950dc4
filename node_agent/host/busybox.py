"""The static busybox, bound read-only into every sandbox, so that files move in images without a shell too."""

import os
import shutil
import struct
from pathlib import Path
from typing import Final

from node_agent.host.process import CommandError

INSIDE: Final = "/.sandbox/busybox"
"""Its path inside every sandbox."""

_PLACES: Final = ("/bin/busybox", "/usr/bin/busybox", "/bin/busybox.static", "/usr/bin/busybox-static")
_PT_INTERP: Final = 3


def provide(directory: Path) -> Path:
    """A static busybox below ``directory``, copied from the host once.

    A copy, because an upgrade of the host's package would change the file under running sandboxes.

    Raises:
        CommandError: the host has none; the sentence names the package.
    """
    target = directory / "busybox"
    if target.exists():
        return target
    source = next((path for path in map(Path, _PLACES) if path.is_file() and is_static(path)), None)
    if source is None:
        raise CommandError(["busybox"], "(static) is not installed on this host; apt-get install busybox-static")
    directory.mkdir(parents=True, exist_ok=True)
    partial = directory / f".busybox.{os.getpid()}"
    shutil.copyfile(source, partial)
    partial.chmod(0o755)
    partial.rename(target)
    return target


def is_static(program: Path) -> bool:
    """Whether a 64-bit ELF program asks for no dynamic linker."""
    data = program.read_bytes()[: 64 * 1024]
    if data[:5] != b"\x7fELF\x02":
        return False
    (table,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    kinds = [struct.unpack_from("<I", data, table + index * size)[0] for index in range(count)]
    return _PT_INTERP not in kinds
