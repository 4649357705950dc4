"""The emulated API on a socket: tokens, the budget of calls, headers, and the fault script."""

import http.server
import json
import socket
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any, ClassVar
from urllib.parse import parse_qsl, urlsplit

from tests.fakes.hetzner.cloud import Cloud
from tests.fakes.hetzner.faults import Fault, Script
from tests.fakes.hetzner.refused import RefusedError

PAGE = "<html><head><title>Maintenance</title></head><body><h1>We will be back soon</h1></body></html>"


class Server(http.server.ThreadingHTTPServer):
    """A thread for each connection, on the loopback."""

    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that break off are part of the play."""


class Handler(http.server.BaseHTTPRequestHandler):
    """JSON in, JSON out, connections kept."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm: ClassVar[bool] = True

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""

    def body(self) -> Mapping[str, Any]:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            value = json.loads(raw) if raw else {}
        except ValueError:
            raise RefusedError(400, "json_error", "the body is not JSON") from None
        if not isinstance(value, dict):
            raise RefusedError(400, "json_error", "the body is not an object")
        return value

    def answer(self, status: int, body: bytes, headers: Mapping[str, str], kind: str = "application/json") -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(0 if status == 204 else len(body)))
        self.end_headers()
        if status != 204:
            self.wfile.write(body)

    def cut(self) -> None:
        """Ends the connection without an answer."""
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)


class ApiHandler(Handler):
    """One call of the API."""

    cloud: ClassVar[Cloud]
    script: ClassVar[Script]
    token: ClassVar[str]
    prefix: ClassVar[str] = "/v1"

    def date_time_string(self, timestamp: float | None = None) -> str:
        now = self.cloud.state.clock.now() if timestamp is None else timestamp
        return format_datetime(datetime.fromtimestamp(int(now), UTC), usegmt=True)

    def do_GET(self) -> None:
        self._play()

    do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815 - the base class names them

    def _play(self) -> None:
        parts = urlsplit(self.path)
        path = parts.path.removeprefix(self.prefix)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        headers = {"X-Correlation-Id": f"{self.cloud.state.calls:016x}"}
        try:
            body = self.body()
            fault = self.script.take(self.command, path, {**query, **body})
            if fault is not None and fault.do == "drop":
                return self.cut()
            if fault is not None and fault.do == "slow":
                time.sleep(fault.seconds)
            headers |= self._admitted()
            if fault is not None and fault.do in ("error", "html") and not fault.apply:
                return self._spoiled(fault, headers)
            status, answer = self.cloud.call(self.command, path, query, body, fault)
        except RefusedError as error:
            # The budget is told with refusals too.
            headers |= self.cloud.state.bucket.headers(self.cloud.state.knobs.rate_limit)
            return self.answer(error.status, json.dumps(error.body()).encode(), headers)
        return self._told(status, answer, headers, fault)

    def _told(self, status: int, body: bytes, headers: Mapping[str, str], fault: Fault | None) -> None:
        match fault.do if fault is not None else None:
            case "lost":
                return self.cut()
            case "hang" if fault is not None:
                time.sleep(fault.seconds)
                return self.cut()
            case "garbage":
                return self.answer(200, body[: len(body) // 2], headers)
            case "error" | "html" if fault is not None:
                return self._spoiled(fault, headers)
        return self.answer(status, body, headers)

    def _spoiled(self, fault: Fault, headers: Mapping[str, str]) -> None:
        if fault.do == "html":
            return self.answer(fault.status, PAGE.encode(), headers, "text/html")
        error = RefusedError(fault.status, fault.code, fault.message, fault.details)
        return self.answer(fault.status, json.dumps(error.body()).encode(), headers)

    def _admitted(self) -> dict[str, str]:
        """Token and budget; the headers that tell the budget."""
        state = self.cloud.state
        with state.lock:
            state.calls += 1
            given = self.headers.get("Authorization")
            if given != f"Bearer {self.token}" or state.knobs.token_mode == "expired":
                raise RefusedError(401, "unauthorized", "unable to authenticate")
            if not state.bucket.take(state.knobs.rate_limit, state.clock.now()):
                raise RefusedError(429, "rate_limit_exceeded", "limit of 3600 requests per hour reached")
            if self.command != "GET" and state.knobs.token_mode == "ro":
                raise RefusedError(403, "token_readonly", "the token is only allowed to read")
            return state.bucket.headers(state.knobs.rate_limit)
