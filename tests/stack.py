"""The whole service as a user starts it: ``sandboxes up`` as a process with a state directory of its own."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import docker

from gateway.client import GatewayClient
from node_agent.settings import tag_of
from sandboxes.local import dockerd, residue
from sandboxes.local.demo import free_port
from sandboxes.local.state_dir import StateDir
from ucloud_sandboxes_sdk import SandboxClient

UP_SECONDS: Final = 120.0
DOWN_SECONDS: Final = 120.0
LAST_LINE: Final = "Ctrl-C ends everything."
WORDS: Final = {
    "gateway": " gateway run",
    "autoscaler": " autoscaler run",
    "node": " node run",
}


@dataclass
class Up:
    """One run of ``sandboxes up``."""

    directory: StateDir
    port: int
    process: "subprocess.Popen[str]"
    said: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self) -> SandboxClient:
        return SandboxClient(self.url, api_token=(self.directory.tokens / "client").read_text().strip())

    def operator(self) -> GatewayClient:
        return GatewayClient(self.url, (self.directory.tokens / "operator").read_text())

    def engine(self) -> docker.APIClient:
        """Return a client of this service's Docker engine, or of the machine's where one answers."""
        ours = self.directory.docker_socket
        return docker.APIClient(base_url=f"unix://{ours}" if ours.exists() else None, timeout=60)

    def pid(self, daemon: str) -> int | None:
        """Return the process id of ``gateway``, ``autoscaler`` or ``node``; ``None`` while it is not running."""
        return next(iter(pids_of(self.directory.root, daemon)), None)

    def end(self, number: signal.Signals = signal.SIGINT) -> int:
        """Send it a signal, wait for its end, and return its exit code."""
        self.process.send_signal(number)
        return self.process.wait(DOWN_SECONDS)

    @property
    def words(self) -> str:
        return "".join(self.said)


def pids_of(root: Path, daemon: str) -> list[int]:
    """Return the processes of that daemon over that state directory, whoever started them."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            place = command + (entry / "environ").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if "sandboxes" + WORDS[daemon] in command and f"{root}/" in place and "setpriv" not in command:
            found.append(int(entry.name))
    return found


def until(true: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    """Poll until ``true`` holds; other processes give no event to wait for."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.05)


def start(directory: StateDir, port: int, *options: str, ready: bool = True) -> Up:
    """Start ``sandboxes up`` and return when it reports that it is up, or at once with ``ready=False``."""
    process = subprocess.Popen(
        [sys.executable, "-m", "sandboxes", "up", "--state-dir", str(directory.root), "--port", str(port), *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )
    made = Up(directory, port, process)
    came = threading.Event()

    def listen() -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                made.said.append(line)
                if line.strip() == LAST_LINE:
                    came.set()
        came.set()

    threading.Thread(target=listen, daemon=True).start()
    if ready:
        assert came.wait(UP_SECONDS), f"not up in time: {made.words}"
        assert process.poll() is None, f"it ended: {made.words}"
    return made


def marks(directory: StateDir) -> residue.Marks:
    """Return what everything of this service is marked with, as long as its nodes' directories exist."""
    return (str(directory.root), *(tag_of(home / "node") for home in directory.instances.iterdir()))


def assert_nothing_left(looked_for: residue.Marks) -> None:
    """Fail when something on the machine still carries one of the marks, other than the state directory."""
    there = f"{looked_for[0]}/"  # the state directory itself is the test's to remove
    found = residue.find_settled((there, *looked_for[1:]))
    found["file or directory"] = [name for name in found["file or directory"] if name != there]
    assert not any(found.values()), {kind: names for kind, names in found.items() if names}


def release(directory: StateDir) -> None:
    """End what a test that failed between two starts has left: nodes that nobody would take over."""
    if directory.instances.is_dir() and any(directory.instances.iterdir()):
        command = [sys.executable, "-m", "sandboxes", "autoscaler", "release"]
        subprocess.run([*command, "--config", str(directory.root / "autoscaler.toml")], timeout=200, check=False)
    dockerd.end(directory.docker / "dockerd.pid", 30)


@contextmanager
def state() -> Iterator[StateDir]:
    """Make a state directory with a short path, and remove it at the end unless something is mounted below it."""
    root = Path(tempfile.mkdtemp(prefix="sbt-", dir="/var/tmp"))
    try:
        yield StateDir(root)
    finally:
        if not list(residue.mount_points((str(root),))):
            shutil.rmtree(root)


@contextmanager
def running(directory: StateDir | None = None, *options: str) -> Iterator[Up]:
    """Run a service for the block, and end it after if the test did not."""
    with state() as made:
        service = start(directory or made, free_port(), *options)
        try:
            yield service
        finally:
            if service.process.poll() is None:
                service.end()
            release(service.directory)
