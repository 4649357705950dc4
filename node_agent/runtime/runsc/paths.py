"""Where everything of this runtime lies, and the host's side of one sandbox."""

import contextlib
import hashlib
import os
import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from gateway.wire.errors import ErrorCode
from node_agent.errors import RuntimeFailure
from node_agent.host import mounts
from node_agent.host.cgroup import Cgroup
from node_agent.host.process import pinned
from node_agent.host.volume import Volume
from node_agent.runtime.base import Stream
from node_agent.runtime.runsc.control import Control

_GOFER: Final = b"runsc-gofer"
_MAX_CONTAINER: Final = 64


def container_name(sandbox_id: str) -> str:
    """Return runsc's name of a sandbox: its id, or a shorter name with a plus, which no id has.

    The name of the control socket holds it, and the path of a socket has 107 bytes at most.
    """
    if len(sandbox_id) <= _MAX_CONTAINER:
        return sandbox_id
    digest = hashlib.sha256(sandbox_id.encode()).hexdigest()[:20]
    return f"{sandbox_id[: _MAX_CONTAINER - 1 - len(digest)]}+{digest}"


@dataclass(frozen=True)
class RunscPaths:
    """Directories of one node's runtime.

    Attributes:
        root: everything that lasts.
        tag: 8 hex digits, in every host-wide name.
    """

    root: Path
    tag: str

    @property
    def sandboxes(self) -> Path:
        return self.root / "runsc" / "sandboxes"

    @property
    def images(self) -> Path:
        return self.root / "runsc" / "images"

    @property
    def templates(self) -> Path:
        return self.root / "runsc" / "templates"

    @property
    def tools(self) -> Path:
        return self.root / "runsc" / "tools"

    @property
    def run(self) -> Path:
        """runsc's own state and sockets.  Short: a socket's path has 107 bytes at most, `container_name` alone 64."""
        return Path("/run") / f"sandbox-{self.tag}"

    def of(self, sandbox_id: str) -> "SandboxPaths":
        """Return where one sandbox lies."""
        return SandboxPaths(self, sandbox_id)


@dataclass(frozen=True)
class SandboxPaths:
    """Paths of one sandbox, and handles of what runs of it on the host."""

    node: RunscPaths
    sandbox_id: str

    @property
    def directory(self) -> Path:
        return self.node.sandboxes / self.sandbox_id

    @property
    def container(self) -> str:
        """runsc's name of it."""
        return container_name(self.sandbox_id)

    @property
    def bundle(self) -> Path:
        return self.directory / "bundle"

    @property
    def pid_file(self) -> Path:
        """Host pid of the sandbox's kernel; runsc writes it."""
        return self.bundle / "pid"

    @property
    def rootfs(self) -> Path:
        """Mount point of the root file system, as the host sees it."""
        return self.directory / "rootfs"

    @property
    def checkpoint(self) -> Path:
        return self.directory / "checkpoint"

    @property
    def engine_log(self) -> Path:
        """What runsc writes about a start; not the sandbox's output."""
        return self.directory / "runsc.log"

    @property
    def crash_log(self) -> Path:
        """What the sandbox's kernel writes when it crashes.  It is on the volume, so its size is bounded."""
        return self.volume.path / "log" / "engine"

    @property
    def settling(self) -> Path:
        """There while a pause or resume was begun and its end is not in the record yet."""
        return self.directory / "settling"

    @property
    def volume(self) -> Volume:
        return Volume(self.directory)

    @property
    def workspace(self) -> Path:
        return self.volume.path / "workspace"

    def log(self, stream: Stream) -> Path:
        """Return the file of the first process's output.  It is on the volume, so its size is bounded."""
        return self.volume.path / "log" / stream.value

    @property
    def cgroup(self) -> Cgroup:
        return Cgroup(self.node.tag, self.sandbox_id)

    @property
    def control(self) -> Control:
        return Control(self.node.run / f"runsc-{self.container}.sock", self.container)

    # -- what runs on the host -------------------------------------------------------------------------------------

    def sentry_handle(self, pid: int | None) -> int | None:
        """Return a pidfd of the sandbox's kernel; ``None`` when it does not run.

        The number alone proves nothing, as the host uses pids again: it counts only inside the sandbox's own group.
        """
        if pid is None:
            return None
        with pinned(pid, lambda: pid in self.cgroup.pids()) as handle:
            return None if handle is None else os.dup(handle)

    def gofer_handle(self) -> int | None:
        """Return a pidfd of the process that serves the sandbox's files; ``None`` when it does not run."""
        for pid in sorted(self.cgroup.pids()):
            # Asked behind the handle, so that it is this process that has the name.
            with pinned(pid, partial(self._is_gofer, pid)) as handle:
                if handle is not None:
                    return os.dup(handle)
        return None

    def _is_gofer(self, pid: int) -> bool:
        try:
            named = Path(f"/proc/{pid}/cmdline").read_bytes().startswith(_GOFER)
        except OSError:  # it has ended
            return False
        return named and pid in self.cgroup.pids()

    def alive(self, pid: int | None) -> bool:
        """Return whether the sandbox's kernel runs."""
        handle = self.sentry_handle(pid)
        if handle is None:
            return False
        os.close(handle)
        return True

    # -- taking it away --------------------------------------------------------------------------------------------

    def end_processes(self) -> bool:
        """Send SIGKILL to every process of it and return whether all ended.

        It asks nothing of the engine, which may hang: the processes are found by their control group.  The sandbox's
        kernel goes first: without its file server, or the processes that it runs, it would still report the ends of
        execs, as if they had come by themselves.
        """
        try:
            first = int(self.pid_file.read_text())
        except (OSError, ValueError):
            first = None
        return self.cgroup.kill(first=first)

    def kill(self) -> None:
        """End every process of the sandbox and remove the engine's state of it.  Idempotent, bounded in time.

        Raises:
            RuntimeFailure: ``BUSY`` when a process does not die (it hangs in the host's kernel).
        """
        if not self.end_processes():
            pids = ", ".join(map(str, sorted(self.cgroup.pids())))
            raise RuntimeFailure(ErrorCode.BUSY, f"processes {pids} of sandbox {self.sandbox_id} do not end; try again")
        self.cgroup.remove()
        run, name = self.node.run, f"{self.container}_sandbox:{self.container}"
        for path in (run / f"{name}.state", run / f"{name}.lock", run / f"runsc-{self.container}.sock"):
            path.unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove what belongs to one incarnation: mounted root, bundle, checkpoint, engine log.  Idempotent."""
        mounts.unmount_below(self.rootfs)
        for directory in (self.bundle, self.checkpoint):
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(directory)
        for file in (self.engine_log, self.settling):
            file.unlink(missing_ok=True)
