"""How uvicorn serves the gateway: request heads are bounded, errors have the one shape, and a stop is prompt."""

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Generator
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.http.app import STOP_GRACE, GatewayApp
from gateway.wire.errors import ErrorBody, ErrorCode

_log = logging.getLogger("gateway")

KEEP_ALIVE: Final = 75  # seconds; longer than the pauses of any client that keeps its connection open
BACKLOG: Final = 2048
STOP_SECONDS: Final = int(STOP_GRACE) + 3  # after which connections are cut
MAX_HEAD: Final = 64 * 1024  # bytes of one request's first line and headers
HEAD_SECONDS: Final = 30.0  # within which they must be complete
_HEAD_TOO_LARGE: Final = f"the head of the request is larger than {MAX_HEAD} bytes"


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol with the two limits that it lacks: on the size of a request's head, and on the time for it."""

    _received = 0
    _parsed = 0
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_done()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._head_timer is not None:
            # The parser reports a header only when it is complete, so received bytes are counted as well.
            self._received += len(data)
            if self._received > MAX_HEAD:
                self.send_400_response(_HEAD_TOO_LARGE)

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._parsed += len(name) + len(value)
        if self._parsed > MAX_HEAD:
            raise ValueError(_HEAD_TOO_LARGE)  # the parser stops, and `send_400_response` follows

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._await_head()

    def on_headers_complete(self) -> None:
        self._head_done()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        self._head_done()
        if self.transport.is_closing():
            return
        body = ErrorBody(error=f"not a valid HTTP request: {msg}", code=ErrorCode.INVALID_REQUEST)
        content = body.model_dump_json(exclude_none=True).encode()
        head = (
            "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            f"content-length: {len(content)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + content)
        self.transport.close()

    def _await_head(self) -> None:
        self._head_done()
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _head_done(self) -> None:
        self._received = self._parsed = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class GatewayServer(uvicorn.Server):
    """Serves one gateway on a bound socket until `stop` is called."""

    def __init__(self, gateway: GatewayApp) -> None:
        self._gateway = gateway
        self._stop_task: asyncio.Task[None] | None = None
        super().__init__(
            uvicorn.Config(
                gateway.asgi,
                http=HttpProtocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=BACKLOG,
                timeout_keep_alive=KEEP_ALIVE,
                timeout_graceful_shutdown=STOP_SECONDS,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Stop on SIGTERM and SIGINT; uvicorn's own handlers raise the signal once more at the end."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def stop(self) -> None:
        """Stop accepting connections, let short calls end, end waits, then return from `serve`.  Idempotent."""
        if self._stop_task is None:
            _log.info("stopping")
            self.should_exit = True
            self._stop_task = asyncio.get_running_loop().create_task(self._gateway.graceful_stop.stop())

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for bound in sockets or ():
            _log.info("the gateway listens on %s", url_of(bound.getsockname()))


def url_of(address: tuple[Any, ...]) -> str:
    """Return the URL of a socket's address."""
    host, port = address[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
