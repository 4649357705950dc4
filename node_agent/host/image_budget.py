"""What images may take of the node's disk, and which of them go when another needs the room.

Two kinds of things count: root file systems that were unpacked, and images that this node's pulls brought into the
engine.  What an operator loaded into the engine is not the node's to remove, and does not count.  One small file for
each tells its size, and by its time when it was last used: so the longest unused goes first, also after a restart.
"""

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from gateway.wire.errors import ErrorCode
from gateway.wire.states import DeathReason
from node_agent.errors import RuntimeFailure
from node_agent.host.disk import write_atomically

log = logging.getLogger(__name__)

RECENT: Final = 300.0
"""Seconds for which an image counts as in use after it was asked for: a create may not have come to its record yet."""

Remove = Callable[[str], bool]
"""Removes the image of that id; returns whether it could, which it cannot while a sandbox uses it."""


class Kind(StrEnum):
    """What an image takes its room with."""

    UNPACKED = "unpacked"
    PULLED = "pulled"


@dataclass(frozen=True)
class StoredImage:
    """One thing that counts."""

    kind: Kind
    image_id: str
    size_mb: int
    used_at: float


class ImageBudget:
    """The images of one node.  Safe from any thread.

    Args:
        directory: for the small files.
        limit_mb: MiB that all may take; ``None`` for no bound.
        recent: seconds; see `RECENT`.
    """

    def __init__(self, directory: Path, limit_mb: int | None = None, recent: float = RECENT) -> None:
        self.limit_mb = limit_mb
        self._directory = directory
        self._recent = recent
        self._removers: dict[Kind, Remove] = {}
        self._lock = threading.RLock()

    def remove_with(self, kind: Kind, remove: Remove) -> None:
        """Set how images of one kind are removed."""
        self._removers[kind] = remove

    def stored(self) -> list[StoredImage]:
        """Return all that counts, the longest unused first."""
        found = []
        for path in self._directory.glob("*.json"):
            with contextlib.suppress(FileNotFoundError):  # it goes while we look
                kind, _, name = path.stem.partition("-")
                size = int(json.loads(path.read_text())["size_mb"])
                found.append(StoredImage(Kind(kind), f"sha256:{name}", size, path.stat().st_mtime))
        return sorted(found, key=lambda image: image.used_at)

    def used_mb(self) -> int:
        """Return the MiB that all take together."""
        return sum(image.size_mb for image in self.stored())

    def touch(self, kind: Kind, image_id: str) -> None:
        """Note that an image is used now, if it counts."""
        with contextlib.suppress(FileNotFoundError):
            os.utime(self._path(kind, image_id))

    def add(self, kind: Kind, image_id: str, size_mb: int) -> None:
        """Count an image from now on.

        Raises:
            OSError: it cannot be written down.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        write_atomically(self._path(kind, image_id), json.dumps({"size_mb": size_mb}).encode())

    def forget(self, kind: Kind, image_id: str) -> None:
        """Count an image no longer.  Idempotent."""
        self._path(kind, image_id).unlink(missing_ok=True)

    def make_room(self, what: str, wanted_mb: int) -> None:
        """Remove images that nobody uses, the longest unused first, until there is room for ``wanted_mb`` more.

        Args:
            what: names what needs it.
            wanted_mb: in MiB; 0 to come down to the limit.

        Raises:
            RuntimeFailure: ``IMAGE_ERROR`` for what is larger than the budget; ``NODE_REFUSED`` while images in use
                take too much of it.
        """
        if self.limit_mb is None:
            return
        if wanted_mb > self.limit_mb:
            raise RuntimeFailure(
                ErrorCode.IMAGE_ERROR,
                f"image {what} takes {wanted_mb} MiB, and this node keeps {self.limit_mb} for all images (images_mb)",
                reason=DeathReason.IMAGE_ERROR,
            )
        with self._lock:
            over = self.used_mb() + wanted_mb - self.limit_mb
            for image in self.stored():
                if over <= 0:
                    return
                if time.time() - image.used_at >= self._recent and self._removed(image):
                    over -= image.size_mb
        if over > 0:
            raise RuntimeFailure(
                ErrorCode.NODE_REFUSED,
                f"image {what} finds no room: the images in use on this node leave {max(0, wanted_mb - over)} of"
                f" {self.limit_mb} MiB (images_mb), and it takes {wanted_mb}",
            )

    def _removed(self, image: StoredImage) -> bool:
        remove = self._removers.get(image.kind)
        if remove is None or not remove(image.image_id):
            return False
        self.forget(image.kind, image.image_id)
        log.info("image %s (%s, %d MiB) was removed: others need its room", image.image_id, image.kind, image.size_mb)
        return True

    def _path(self, kind: Kind, image_id: str) -> Path:
        return self._directory / f"{kind}-{image_id.removeprefix('sha256:')}.json"
