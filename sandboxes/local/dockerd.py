"""The Docker engine of `sandboxes up`, without Docker's client: the gateway's packages do not hold it."""

import http.client
import json
import os
import select
import signal
import socket
import subprocess
from pathlib import Path
from typing import Final

import click

from sandboxes.local.mounts import is_mounted

DEFAULT_SOCKET: Final = Path("/var/run/docker.sock")
PING_SECONDS: Final = 5.0


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("docker", timeout=PING_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(PING_SECONDS)
        self.sock.connect(os.fsencode(self._path))


def answers(path: Path) -> bool:
    """Tell whether an engine answers on this socket within `PING_SECONDS`."""
    connection = _UnixConnection(path)
    try:
        connection.request("GET", "/_ping")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def containers(path: Path) -> dict[str, str]:
    """Return the description of every container of the engine on this socket, by id; none where none answers."""
    connection = _UnixConnection(path)
    try:
        connection.request("GET", "/containers/json?all=1")
        listed = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException):
        return {}
    finally:
        connection.close()
    return {container["Id"]: json.dumps(container) for container in listed}


def pid_of(pid_file: Path) -> int | None:
    """Return the process id of the engine of that pid file; ``None`` when it does not run."""
    try:
        pid = int(pid_file.read_text())
        # The number may have gone to another process since; an engine of ours names its directory.
        ours = os.fsencode(pid_file.parent) in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        return None
    return pid if ours else None


def end(pid_file: Path, seconds: float) -> None:
    """End the engine of that pid file, if it runs: SIGTERM, and SIGKILL after ``seconds``."""
    pid = pid_of(pid_file)
    if pid is None:
        return
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if pid_of(pid_file) != pid:
            return  # it ended before the handle was opened, and the number went to another process
        for number, patience in ((signal.SIGTERM, seconds), (signal.SIGKILL, PING_SECONDS)):
            signal.pidfd_send_signal(handle, number)
            if select.select([handle], [], [], patience)[0]:
                return
    except (ProcessLookupError, FileNotFoundError):
        return
    finally:
        os.close(handle)


def release(data: Path) -> None:
    """Unmount what a dead engine has left mounted at its data directory.

    An engine mounts the directory on itself and unmounts it when it ends; one that came back after a SIGKILL takes that
    mount for somebody else's and leaves it.

    Raises:
        click.ClickException: something below it is still in use.
    """
    while is_mounted(data):
        try:
            subprocess.run(["umount", "--", data], check=True, capture_output=True, text=True, timeout=PING_SECONDS)
        except (OSError, subprocess.SubprocessError) as error:
            reason = getattr(error, "stderr", None) or str(error)
            raise click.ClickException(f"{data} stays mounted: {reason.strip()}") from error
