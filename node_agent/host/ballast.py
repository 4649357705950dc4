"""Room that is kept for a full disk: a file of real blocks, given back to the disk when it runs full.

On a full disk nothing ends well: an engine cannot start the helper with which it would end a sandbox, a pause cannot be
written down, and an agent that restarts cannot even take its lock.  A few MiB suffice for all of that, but they have to
be kept from whoever fills the disk.
"""

import logging
import os
from pathlib import Path
from typing import Final

from gateway.wire.limits import MIB
from node_agent.host.volume import reserve

log = logging.getLogger(__name__)

_MOST: Final = 64 * MIB
_SHARE: Final = 20
"""The ballast takes at most this part of the file system, so that it leaves a small one usable."""
_FILE: Final = "ballast"


class Ballast:
    """The ballast on the disk of one directory.

    Args:
        directory: where its file lies.
    """

    def __init__(self, directory: Path) -> None:
        self._file = directory / _FILE
        state = os.statvfs(directory)
        self.size: Final = min(_MOST, state.f_blocks * state.f_frsize // _SHARE)

    def keep(self) -> None:
        """Drop it when the disk is full, and take it up again when there is room for four of it."""
        free = self.free()
        if free < self.size // 2:
            self.drop()
        elif free >= 4 * self.size and not self._file.exists():
            self._take_up()

    def drop(self) -> None:
        """Give its room back to the disk.  Idempotent."""
        if self._file.exists():
            self._file.unlink()
            log.warning(
                "the disk below %s is full: the %d MiB kept for this are free now", self._file.parent, self._mib
            )

    def free(self) -> int:
        """Return the bytes that are free on the disk."""
        state = os.statvfs(self._file.parent)
        return state.f_bavail * state.f_frsize

    def _take_up(self) -> None:
        try:
            reserve(self._file, self.size)
        except OSError as error:
            log.warning("%d MiB for a full disk could not be set aside: %s", self._mib, error)
            self._file.unlink(missing_ok=True)

    @property
    def _mib(self) -> int:
        return self.size // MIB
