"""The contenders: the service through its SDK, runsc by its command line, and Docker by its own."""

import json
import os
import select
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from tests.bench.memory import pids_naming
from ucloud_sandboxes_sdk import Image, SandboxClient, SandboxSpec

COMMAND_SECONDS: Final = 120.0
UPLOAD: Final = "cat > /data/big"
DOWNLOAD: Final = "cat /data/big"
SLEEP: Final = ("sleep", "3600")


class Contender(Protocol):
    """One way to do the same things.  Every call returns when the thing is done, or raises."""

    @property
    def name(self) -> str:
        """Shown at the head of its column."""

    def create(self, sandbox_id: str) -> None:
        """Start a sandbox."""

    def exec(self, sandbox_id: str) -> None:
        """Run ``true`` in it, to its end."""

    def pause(self, sandbox_id: str) -> None:
        """Freeze it."""

    def resume(self, sandbox_id: str) -> None:
        """Thaw it."""

    def upload(self, sandbox_id: str, source: Path) -> None:
        """Copy a local file into it."""

    def download(self, sandbox_id: str, target: Path) -> None:
        """Copy the uploaded file out of it."""

    def processes(self, sandbox_id: str) -> set[int]:
        """Return the host's processes that are there for this sandbox alone."""

    def delete(self, sandbox_id: str) -> None:
        """Delete it."""


@dataclass
class Service:
    """The service, through gateway and SDK."""

    client: SandboxClient
    image: str
    name: str = "service"

    def create(self, sandbox_id: str) -> None:
        spec = SandboxSpec(
            id=sandbox_id, image=Image.from_registry(self.image), command=SLEEP, cpus=1, memory_mb=256, disk_mb=1024
        )
        self.client.create_sandbox(spec)

    def exec(self, sandbox_id: str) -> None:
        result = self.client.exec(sandbox_id, ["true"])
        if not result.success:
            raise RuntimeError(f"exec in {sandbox_id} failed: {result}")

    def pause(self, sandbox_id: str) -> None:
        self.client.pause_sandbox(sandbox_id)

    def resume(self, sandbox_id: str) -> None:
        self.client.resume_sandbox(sandbox_id)

    def upload(self, sandbox_id: str, source: Path) -> None:
        self.client.upload_file(sandbox_id, "/workspace/big", source)

    def download(self, sandbox_id: str, target: Path) -> None:
        self.client.download_file_to_path(sandbox_id, "/workspace/big", target)

    def processes(self, sandbox_id: str) -> set[int]:
        return set(pids_naming(sandbox_id))

    def delete(self, sandbox_id: str) -> None:
        self.client.delete_sandbox(sandbox_id)


@dataclass
class Runsc:
    """runsc as its manual uses it: one bundle a sandbox, over one shared root, one process a call."""

    directory: Path
    rootfs: Path
    name: str = "runsc"
    _flags: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        # The flags that the service's own runtime uses; no cgroup, so that this is the floor.
        self._flags = (
            f"--root={self.directory / 'state'}",
            "--platform=systrap",
            "--overlay2=none",
            "--network=none",
            "--ignore-cgroups",
        )

    def create(self, sandbox_id: str) -> None:
        bundle = self.directory / sandbox_id
        (bundle / "data").mkdir(parents=True)
        (bundle / "config.json").write_text(json.dumps(self._config(bundle / "data")))
        self._call(["run", "-detach", f"--bundle={bundle}", sandbox_id])

    def exec(self, sandbox_id: str) -> None:
        self._call(["exec", sandbox_id, "true"])

    def pause(self, sandbox_id: str) -> None:
        self._call(["pause", sandbox_id])

    def resume(self, sandbox_id: str) -> None:
        self._call(["resume", sandbox_id])

    def upload(self, sandbox_id: str, source: Path) -> None:
        with source.open("rb") as file:
            self._call(["exec", sandbox_id, "sh", "-c", UPLOAD], input_=file.fileno())

    def download(self, sandbox_id: str, target: Path) -> None:
        with target.open("wb") as file:
            self._call(["exec", sandbox_id, "sh", "-c", DOWNLOAD], output=file.fileno())

    def processes(self, sandbox_id: str) -> set[int]:
        return set(pids_naming(sandbox_id))

    def delete(self, sandbox_id: str) -> None:
        self._call(["delete", "-force", sandbox_id])
        shutil.rmtree(self.directory / sandbox_id)

    def _call(self, words: Sequence[str], *, input_: int | None = None, output: int | None = None) -> None:
        _run(["runsc", *self._flags, *words], input_=input_, output=output)

    def _config(self, data: Path) -> dict[str, object]:
        bind = {"destination": "/data", "type": "bind", "source": str(data), "options": ["rbind", "rw"]}
        return {
            "ociVersion": "1.0.2",
            "root": {"path": str(self.rootfs), "readonly": True},
            "process": {"user": {"uid": 0, "gid": 0}, "args": list(SLEEP), "env": ["PATH=/bin"], "cwd": "/"},
            "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}, bind],
            "linux": {"namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount", "network")]},
        }


@dataclass
class Docker:
    """Docker's command line, with one of its runtimes."""

    socket: Path
    image: str
    runtime: str

    @property
    def name(self) -> str:
        return f"docker {self.runtime}"

    def create(self, sandbox_id: str) -> None:
        options = ("-d", f"--name={sandbox_id}", f"--runtime={self.runtime}", "--network=none", "-v", "/data")
        self._call(["run", *options, self.image, *SLEEP])

    def exec(self, sandbox_id: str) -> None:
        self._call(["exec", sandbox_id, "true"])

    def pause(self, sandbox_id: str) -> None:
        self._call(["pause", sandbox_id])

    def resume(self, sandbox_id: str) -> None:
        self._call(["unpause", sandbox_id])

    def upload(self, sandbox_id: str, source: Path) -> None:
        with source.open("rb") as file:
            self._call(["exec", "-i", sandbox_id, "sh", "-c", UPLOAD], input_=file.fileno())

    def download(self, sandbox_id: str, target: Path) -> None:
        with target.open("wb") as file:
            self._call(["exec", sandbox_id, "sh", "-c", DOWNLOAD], output=file.fileno())

    def processes(self, sandbox_id: str) -> set[int]:
        with tempfile.TemporaryFile() as said:
            self._call(["inspect", "--format={{.Id}} {{.State.Pid}}", sandbox_id], output=said.fileno())
            said.seek(0)
            container, pid = said.read().decode().split()
        return {int(pid), *pids_naming(container)}

    def delete(self, sandbox_id: str) -> None:
        self._call(["rm", "-f", "-v", sandbox_id])

    def _call(self, words: Sequence[str], *, input_: int | None = None, output: int | None = None) -> None:
        _run(["docker", "-H", f"unix://{self.socket}", *words], input_=input_, output=output)


def _run(argv: Sequence[str], *, input_: int | None, output: int | None) -> None:
    """Run one command to its end.

    The end is awaited on a pidfd: `subprocess` polls when it has a timeout, at 0.5, 1, 2 … 50 ms, which would make the
    raw engines look slower than they are.
    """
    with tempfile.TemporaryFile() as said:  # a file: what is started here may keep it for long
        process = subprocess.Popen(
            argv,
            stdin=input_ if input_ is not None else subprocess.DEVNULL,
            stdout=output if output is not None else subprocess.DEVNULL,
            stderr=said,
        )
        descriptor = os.pidfd_open(process.pid)
        try:
            ended, _, _ = select.select([descriptor], [], [], COMMAND_SECONDS)
        finally:
            os.close(descriptor)
        if not ended:
            process.kill()
        if process.wait() != 0:
            said.seek(0)
            why = said.read().decode(errors="replace").strip()
            raise RuntimeError(f"{' '.join(argv)} failed with exit code {process.returncode}: {why}")
