"""An HTTP server on a real socket that answers what a test prescribes, well-behaved or not."""

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit


@dataclass(frozen=True)
class Recorded:
    """A request as it arrived."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Reply:
    """An answer.  ``cut`` closes the connection after so many bytes of the body; ``hang`` is waited for first."""

    status: int = 200
    body: bytes = b"{}"
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None
    chunks: Iterable[bytes] | None = None
    """Sent chunked instead of ``body``."""
    hang: threading.Event | None = None


class Drop(Reply):
    """Closes the connection without an answer."""


class Handler(BaseHTTPRequestHandler):
    reply: Callable[[Recorded], Reply]
    """Returns the answer to a request; called from the thread of the connection."""
    protocol_version = "HTTP/1.1"
    timeout = 30
    disable_nagle_algorithm = True

    def handle_one_request(self) -> None:
        # Several tests are about clients that leave in the middle of an answer.
        with contextlib.suppress(ConnectionError):
            super().handle_one_request()

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        headers = {key.lower(): value for key, value in self.headers.items()} | {"x-raw-query": parts.query}
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        body = self._exactly(int(headers.get("content-length", 0)))
        self._answer(type(self).reply(Recorded(self.command, parts.path, query, headers, body)))

    def _exactly(self, size: int) -> bytes:
        body = self.rfile.read(size)
        if len(body) < size:
            raise ConnectionAbortedError("the client left before the end of its body")
        return body

    def _answer(self, reply: Reply) -> None:
        if reply.hang:
            reply.hang.wait(30)
        if isinstance(reply, Drop):
            self._hang_up()
            return
        self.send_response(reply.status)
        for key, value in reply.headers.items():
            self.send_header(key, value)
        if reply.chunks is None:
            self.send_header("Content-Length", str(len(reply.body)))
            self.end_headers()
            self.wfile.write(reply.body if reply.cut is None else reply.body[: reply.cut])
        else:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for chunk in reply.chunks:
                self.wfile.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
            if reply.cut is None:
                self.wfile.write(b"0\r\n\r\n")
        if reply.cut is not None:
            self._hang_up()

    def _hang_up(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""

    do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815 - the names that http.server looks for


class ScriptedServer:
    """Serves on a free port of the loopback interface until its block ends."""

    def __init__(self, reply_to: Callable[[Recorded], Reply]) -> None:
        self.connections = 0
        server = self

        class BoundHandler(Handler):
            def setup(self) -> None:
                server.connections += 1
                super().setup()

            reply = staticmethod(reply_to)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), BoundHandler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
