"""HTTP on a real socket, with full control over how an answer is cut off."""

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit


@dataclass(frozen=True)
class Request:
    """What came in."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    """By name in lower case."""
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body or b"{}")


@dataclass(frozen=True)
class Reply:
    """What goes out.

    Attributes:
        cut: how many bytes of it are sent before the connection breaks; ``None`` for all, as it should be.
        at: the server's time, for ``Date``.
    """

    status: int = 200
    body: bytes = b""
    content_type: str = "application/json; charset=utf-8"
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None
    at: float | None = None

    @classmethod
    def of(cls, value: Any, status: int = 200) -> "Reply":
        return cls(status, json.dumps(value).encode())


class WebServer:
    """Serves one function on a port of the loopback, each connection on its own thread."""

    def __init__(self, answer: Callable[[Request], Reply], port: int = 0) -> None:
        outer = self
        self._sockets: set[socket.socket] = set()
        self._lock = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle(self) -> None:
                outer._opened(self.connection)
                try:
                    super().handle()
                except (ConnectionError, TimeoutError, OSError):
                    self.close_connection = True  # the client left, or the server ends
                finally:
                    outer._closed(self.connection)

            def _serve(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                parts = urlsplit(self.path)
                request = Request(
                    self.command,
                    parts.path,
                    dict(parse_qsl(parts.query, keep_blank_values=True)),
                    {name.lower(): value for name, value in self.headers.items()},
                    self.rfile.read(length),
                )
                data, self.close_connection = _encode(answer(request))
                self.wfile.write(data)

            do_GET = do_POST = do_DELETE = do_PUT = _serve  # noqa: N815 - the names that http.server looks for

            def log_message(self, format: str, *args: Any) -> None:
                """Log nothing: tests read the audit instead."""

        class Server(ThreadingHTTPServer):
            daemon_threads = False
            request_queue_size = 64

        self._server = Server(("127.0.0.1", port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        with self._lock:
            for opened in self._sockets:
                with contextlib.suppress(OSError):
                    opened.shutdown(socket.SHUT_RDWR)
        self._server.server_close()
        self._thread.join(10)

    def _opened(self, connection: socket.socket) -> None:
        with self._lock:
            self._sockets.add(connection)

    def _closed(self, connection: socket.socket) -> None:
        with self._lock:
            self._sockets.discard(connection)


def _encode(reply: Reply) -> tuple[bytes, bool]:
    """Return the bytes to send, and whether the connection ends after them."""
    headers = {"Content-Type": reply.content_type, "Content-Length": str(len(reply.body)), **reply.headers}
    if reply.at is not None:
        headers["Date"] = formatdate(reply.at, usegmt=True)
    head = f"HTTP/1.1 {reply.status} Status\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    data = head.encode() + b"\r\n" + reply.body
    return (data, False) if reply.cut is None else (data[: reply.cut], True)
