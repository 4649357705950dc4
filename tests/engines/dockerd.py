"""A private Docker daemon: started for one test run, stopped by its process id, nothing left behind."""

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from node_agent.host import mounts
from node_agent.runtime.docker_engine.dockerd import DockerDaemon

_START_TIMEOUT = 60.0
_STOP_TIMEOUT = 60.0


@dataclass(frozen=True)
class Daemon:
    """A running Docker daemon.

    Attributes:
        directory: everything it has; a short path, because socket paths have 107 bytes at most.
        url: as the Docker SDK takes it, ``unix://…``.
        pid: of the daemon's process.
    """

    directory: Path
    url: str
    pid: int


@contextlib.contextmanager
def private_daemon(*options: str) -> Iterator[Daemon]:
    """A Docker daemon with both runtimes and these options beside its own, alive inside the block."""
    directory = Path(tempfile.mkdtemp(prefix="sfd-", dir="/tmp"))
    try:
        with _running(directory, options) as daemon:
            yield daemon
    finally:
        mounts.unmount_below(directory)
        shutil.rmtree(directory)


@contextlib.contextmanager
def _running(directory: Path, options: tuple[str, ...]) -> Iterator[Daemon]:
    engine = DockerDaemon(directory / "engine", directory / "docker.sock")
    command = [*engine.prepare(), *options]
    if options:  # with userns-remap another root has to get through
        for way in (directory, engine.directory):
            way.chmod(0o711)
    log = directory / "dockerd.log"
    with log.open("wb") as output, _readiness(directory / "ready.sock") as (notify, ready):
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | {"NOTIFY_SOCKET": notify},
            start_new_session=True,
        )
        try:
            _await_ready(ready, process, log)
            yield Daemon(directory, engine.url, process.pid)
        finally:
            _stop(process)


@contextlib.contextmanager
def _readiness(path: Path) -> Iterator[tuple[str, socket.socket]]:
    """dockerd says READY=1 on systemd's notification socket once it answers: nothing to poll."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(path))
        yield str(path), receiver


def _await_ready(ready: socket.socket, process: subprocess.Popen[bytes], log: Path) -> None:
    descriptor = os.pidfd_open(process.pid)
    try:
        readable, _, _ = select.select([ready, descriptor], [], [], _START_TIMEOUT)
    finally:
        os.close(descriptor)
    if ready in readable and b"READY=1" in ready.recv(4096):
        return
    raise AssertionError(f"dockerd did not start: {log.read_text()[-3000:]}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise
