"""A Docker engine for one upgraded connection: it sends bytes exactly as a test says."""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

UPGRADED = b"HTTP/1.1 101 UPGRADED\r\nContent-Type: application/vnd.docker.raw-stream\r\nUpgrade: tcp\r\n\r\n"

Serve = Callable[[socket.socket], None]


def frame(stream: int, data: bytes) -> bytes:
    """One frame of Docker's multiplexed stream."""
    return struct.pack(">BxxxL", stream, len(data)) + data


@contextlib.contextmanager
def daemon(path: Path, serve: Serve) -> Iterator[str]:
    """A daemon that reads one request and lets ``serve`` answer it; its URL."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        thread = threading.Thread(target=_accept, args=(listener, serve), daemon=True)
        thread.start()
        yield f"unix://{path}"
        thread.join(10)
        assert not thread.is_alive()


def _accept(listener: socket.socket, serve: Serve) -> None:
    connection, _ = listener.accept()
    with connection:
        received = b""
        while b"\r\n\r\n" not in received:
            received += connection.recv(65536)
        serve(connection)
