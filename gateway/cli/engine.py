"""Whether a Docker engine answers, asked without Docker's client: the gateway's packages do not hold it."""

import http.client
import os
import socket
from pathlib import Path
from typing import Final

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
    """Whether an engine answers on this socket within `PING_SECONDS`."""
    connection = _UnixConnection(path)
    try:
        connection.request("GET", "/_ping")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
