"""A static init that reaps orphans: bound into sandboxes as their first process.

Without one, every orphan stays as a zombie and counts against the sandbox's bound on processes: gVisor reaps none by
itself, and few programs wait for children that are not theirs.
"""

import os
import shutil
from pathlib import Path
from typing import Final

from node_agent.host.busybox import is_static

NAME: Final = "init"
_PLACES: Final = ("/usr/bin/tini-static", "/usr/bin/docker-init", "/usr/libexec/docker/docker-init", "/sbin/tini")


def provide(directory: Path) -> Path | None:
    """tini below ``directory``, copied from the host once; ``None`` where the host has no static one.

    Debian has it in the packages ``docker.io`` (as ``docker-init``) and ``tini``.

    Raises:
        OSError: it cannot be copied.
    """
    target = directory / NAME
    if target.exists():
        return target
    source = next((path for path in map(Path, _PLACES) if path.is_file() and is_static(path)), None)
    if source is None:
        return None
    directory.mkdir(parents=True, exist_ok=True)
    partial = directory / f".{NAME}.{os.getpid()}"
    shutil.copyfile(source, partial)
    partial.chmod(0o755)
    partial.rename(target)
    return target
