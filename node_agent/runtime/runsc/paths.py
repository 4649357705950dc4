"""Where everything of this runtime lies."""

from dataclasses import dataclass
from pathlib import Path

from node_agent.host.cgroup import Cgroup
from node_agent.host.volume import Volume
from node_agent.runtime.base import Stream
from node_agent.runtime.runsc.control import Control


@dataclass(frozen=True)
class Layout:
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
        """runsc's own state and sockets.  Short: a socket's path has 107 bytes at most, the id alone 64."""
        return Path("/run") / f"sandbox-{self.tag}"

    def places(self, sandbox_id: str) -> "Places":
        """Where one sandbox lies."""
        return Places(self, sandbox_id)


@dataclass(frozen=True)
class Places:
    """Paths and handles of one sandbox."""

    layout: Layout
    sandbox_id: str

    @property
    def directory(self) -> Path:
        return self.layout.sandboxes / self.sandbox_id

    @property
    def bundle(self) -> Path:
        return self.directory / "bundle"

    @property
    def rootfs(self) -> Path:
        """Mount point of the root file system, as the host sees it."""
        return self.directory / "rootfs"

    @property
    def checkpoint(self) -> Path:
        return self.directory / "checkpoint"

    @property
    def engine_log(self) -> Path:
        """What runsc says of a start; not the sandbox's output."""
        return self.directory / "runsc.log"

    @property
    def doom(self) -> Path:
        """There once a delete has begun: from then on the sandbox counts as gone, also after a crash."""
        return self.directory / "deleting"

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
        """Output of the first process; on the volume, so its size is bounded."""
        return self.volume.path / "log" / stream.value

    @property
    def cgroup(self) -> Cgroup:
        return Cgroup(self.layout.tag, self.sandbox_id)

    def kill(self) -> bool:
        """SIGKILL to every process of it; whether all ended.

        Its kernel goes first: without its file server, or the processes that it runs, it would still report the ends
        of execs, as if they had come by themselves.
        """
        try:
            first = int((self.bundle / "pid").read_text())
        except (OSError, ValueError):
            first = None
        return self.cgroup.kill(first=first)

    @property
    def control(self) -> Control:
        return Control(self.layout.run / f"runsc-{self.sandbox_id}.sock", self.sandbox_id)

    @property
    def engine_state(self) -> list[Path]:
        """Files that runsc keeps of it."""
        name = f"{self.sandbox_id}_sandbox:{self.sandbox_id}"
        run = self.layout.run
        return [run / f"{name}.state", run / f"{name}.lock", run / f"runsc-{self.sandbox_id}.sock"]
