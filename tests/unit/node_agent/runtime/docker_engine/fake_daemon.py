"""A Docker engine for one connection: it sends bytes exactly as a test says."""

import contextlib
import json
import queue
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

UPGRADED = b"HTTP/1.1 101 UPGRADED\r\nContent-Type: application/vnd.docker.raw-stream\r\nUpgrade: tcp\r\n\r\n"

Serve = Callable[[socket.socket], None]


def frame(stream: int, data: bytes) -> bytes:
    """Return one frame of Docker's multiplexed stream."""
    return struct.pack(">BxxxL", stream, len(data)) + data


@contextlib.contextmanager
def daemon(path: Path, serve: Serve) -> Iterator[str]:
    """Run a daemon that reads one request and lets ``serve`` answer it; yields its URL."""
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


@contextlib.contextmanager
def http_daemon(path: Path, answer: object) -> Iterator[tuple[str, "queue.Queue[tuple[str, Any]]"]]:
    """Run a daemon that answers one call with 201 and ``answer``; yields its URL, and the call's path and body."""
    received: queue.Queue[tuple[str, Any]] = queue.Queue()

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as reader:
            target = reader.readline().split()[1].decode()
            length = 0
            while line := reader.readline().strip():
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            received.put((target, json.loads(reader.read(length))))
            content = json.dumps(answer).encode()
            head = f"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
            connection.sendall(head.encode() + content)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        yield f"unix://{path}", received
        thread.join(10)
        assert not thread.is_alive()
