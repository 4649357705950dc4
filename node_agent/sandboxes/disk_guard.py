"""Watches the disk under the sandboxes: none goes on whose writes it did not take, and it keeps room for a full disk.

The kernel has no event for either.  How much is free is looked at twice a second, which costs one system call.  A write
is lost in silence: the kernel takes it into its memory, and fails to write it out up to half a minute later.  So a
volume that wrote something since the last look is asked what became of it.

The blocks of volumes are their own, and a full disk takes nothing from them.  Where the host's file system sets no
blocks aside (NFS, ZFS), sandboxes end before the disk is full, as what they write from then on would be lost.
"""

import logging
import threading
from pathlib import Path
from typing import Final

from gateway.wire.limits import MIB
from gateway.wire.states import LIVE, DeathReason, SandboxState
from node_agent.errors import NodeError
from node_agent.host.ballast import Ballast
from node_agent.host.volume import Volume
from node_agent.sandboxes.manager import SandboxManager
from node_agent.sandboxes.table import NodeSandbox

log = logging.getLogger(__name__)

LOOK_EVERY: Final = 0.5  # seconds
VOLUMES_EVERY: Final = 15.0  # seconds
_LOOKS: Final = int(VOLUMES_EVERY / LOOK_EVERY)
_LOSSY: Final = LIVE - {SandboxState.CREATING}


class DiskGuard:
    """One thread over the sandboxes of a node.

    Args:
        root: directory of the node.
        sandboxes: of the node.
        least_mb: MiB free below which a sandbox ends whose disk is not set aside.
    """

    def __init__(self, root: Path, sandboxes: SandboxManager, least_mb: int) -> None:
        self._ballast = Ballast(root)
        self._sandboxes = sandboxes
        self._least_mb = least_mb
        self._written: dict[str, int] = {}
        self._lossy: dict[str, str] = {}  # what each lost, as the kernel says it once only, until it has ended
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to watch."""
        self._ballast.keep()
        self._thread = threading.Thread(target=self._run, name="disk-guard", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, unless it waits for a disk that does not answer.  Idempotent."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(LOOK_EVERY)

    def _run(self) -> None:
        looks = 0
        while not self._stop.wait(LOOK_EVERY):
            looks += 1
            try:
                self._ballast.keep()
                if self._ballast.free() < self._least_mb * MIB:
                    self._end_those_without_blocks()
                if looks % _LOOKS == 0:
                    self.look_at_volumes()
            except Exception:
                log.exception("the disk could not be looked at")

    def look_at_volumes(self) -> None:
        """End each sandbox whose disk did not take what it wrote."""
        present = {sandbox.id: sandbox for sandbox in self._sandboxes.sandboxes() if sandbox.state in _LOSSY}
        self._written = {name: count for name, count in self._written.items() if name in present}
        self._lossy = {name: detail for name, detail in self._lossy.items() if name in present}
        for sandbox in present.values():
            if (volume := self._volume(sandbox)) is not None:
                self._look_at(sandbox, volume)
            if (damage := self._lossy.get(sandbox.id)) is not None:
                self._end(sandbox, f"the node's disk did not take what it wrote: {damage}")

    def _look_at(self, sandbox: NodeSandbox, volume: Volume) -> None:
        written = volume.writes()
        if written is None or self._written.get(sandbox.id) == written:
            return
        if (damage := volume.damage()) is not None:
            self._lossy[sandbox.id] = damage
        self._written[sandbox.id] = volume.writes() or written

    def _end_those_without_blocks(self) -> None:
        for sandbox in self._sandboxes.sandboxes():
            if sandbox.state in _LOSSY and (volume := self._volume(sandbox)) is not None and not volume.owns_blocks():
                self._end(sandbox, "the node's disk is almost full, and its file system sets none aside for a sandbox")

    def _volume(self, sandbox: NodeSandbox) -> Volume | None:
        try:
            return self._sandboxes.volume_of(sandbox.id)
        except NodeError as error:
            log.info("the disk of sandbox %s cannot be looked at: %s", sandbox.id, error.message)
            return None

    def _end(self, sandbox: NodeSandbox, detail: str) -> None:
        log.error("sandbox %s ends: %s", sandbox.id, detail)
        try:
            self._sandboxes.fail(sandbox.id, sandbox.generation, DeathReason.DISK_FULL, detail)
        except NodeError as error:
            log.error("sandbox %s could not be ended, trying again: %s", sandbox.id, error.message)
