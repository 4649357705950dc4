"""One HTTP call to the service: connection, deadline, typed errors, and the retries that cannot do harm."""

import json
import os
import random
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import urllib3
from urllib3 import exceptions as urllib3_errors
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.response import BaseHTTPResponse

from .errors import DeadlineExceededError, InvalidRequestError, SandboxApiError, TransportError, error_from_answer
from .retry import Backoff, Deadline, may_retry
from .version import __version__

MAX_JSON_REQUEST: Final = 16 * 1024 * 1024  # the service refuses larger ones
MAX_JSON_ANSWER: Final = 64 * 1024 * 1024  # 8 MiB of events, every byte of it escaped as \u00xx, and room
MAX_ERROR_BODY: Final = 1024 * 1024
CONNECT_TIMEOUT: Final = 10.0
# Many servers close a connection that was idle for 5 s.  A call that must not be sent twice should not meet one.
MAX_IDLE: Final = 4.0
POOL_SIZE: Final = 64
TRIES: Final = 8  # about 12 s in all: as long as a restart of the gateway takes, and no longer for a wrong URL
BLOCK: Final = 1024 * 1024
FIRST_SIP: Final = 64 * 1024

Response = BaseHTTPResponse
Body = bytes | Iterable[bytes]
Result = TypeVar("Result")


class _Fresh:
    """A connection that was idle for long counts as dropped, so that the pool opens a new one in its place."""

    _used = 0.0

    def getresponse(self) -> Any:
        answer = super().getresponse()  # type: ignore[misc]
        self._used = time.monotonic()
        return answer

    @property
    def is_connected(self) -> bool:
        return bool(super().is_connected) and time.monotonic() - self._used < MAX_IDLE  # type: ignore[misc]


class _FreshHTTP(_Fresh, HTTPConnection):
    pass


class _FreshHTTPS(_Fresh, HTTPSConnection):
    pass


class _HTTPPool(HTTPConnectionPool):
    ConnectionCls = _FreshHTTP


class _HTTPSPool(HTTPSConnectionPool):
    ConnectionCls = _FreshHTTPS


@dataclass(frozen=True)
class Call:
    """What to send.

    ``safe`` says that sending it twice has the same effect as once; only such a call is ever sent again after the
    service may have seen it.
    """

    method: str
    path: str
    """Absolute below the base URL, with its segments quoted."""
    query: Mapping[str, object] = field(default_factory=dict)
    body: Body | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    safe: bool = False

    @classmethod
    def with_json(cls, method: str, path: str, payload: object, *, safe: bool = False) -> "Call":
        """A call with a JSON body.

        Raises:
            InvalidRequestError: the body is larger than the service takes (16 MiB); nothing was sent.
        """
        body = json.dumps(payload, separators=(",", ":")).encode()
        if len(body) > MAX_JSON_REQUEST:
            raise InvalidRequestError(
                f"the request has {len(body)} bytes, and the service takes {MAX_JSON_REQUEST} at most;"
                " send large data as a file or through stdin"
            )
        return cls(method, path, body=body, headers={"Content-Type": "application/json"}, safe=safe)


def segment(text: str) -> str:
    """One path segment, every special character quoted."""
    return quote(text, safe="")


class Transport:
    """A pool of kept-alive connections to one service.  Safe for use from several threads and after a fork."""

    def __init__(
        self,
        base_url: str,
        headers: Mapping[str, str],
        *,
        sleep: Callable[[float], None] = time.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"base URL {base_url!r}: must be an absolute http or https URL")
        self.base_url = base_url.rstrip("/")
        self.sleep = sleep
        self.chance = chance
        self.on_retry: Callable[[SandboxApiError], None] | None = None
        """Told what a try met, before the wait for the next one."""
        self._headers = {"User-Agent": f"sandbox-fleet-sdk/{__version__}", "Accept-Encoding": "identity", **headers}
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._pool = _new_pool(self.base_url)

    def close(self) -> None:
        """Close the idle connections."""
        self._pool.clear()

    def send(self, call: Call, *, deadline: Deadline, stall: float | None = None) -> Response:
        """Send once; the answer's body is still to be read.

        Args:
            call: what to send.
            deadline: bounds the wait for the answer's head.
            stall: seconds without a byte after which the transfer counts as broken; by default what is left of the
                deadline.

        Raises:
            SandboxApiError: the typed error of any answer that is not 2xx.
            TransportError: no answer.
        """
        left = deadline.remaining()
        if left <= 0:
            raise DeadlineExceededError(f"{self.name(call)}: no time was left to send it")
        query = {key: value for key, value in call.query.items() if value is not None}
        url = self.base_url + call.path + ("?" + urlencode(query, doseq=True) if query else "")
        timeout = urllib3.Timeout(connect=min(CONNECT_TIMEOUT, left), read=stall or left)
        with translated(self.name(call), deadline):
            response = self._connections().urlopen(
                call.method,
                url,
                body=call.body,
                headers={**self._headers, **call.headers},
                timeout=timeout,
                retries=False,
                redirect=False,
                preload_content=False,
            )
        if not 200 <= response.status < 300:
            raise self._error(call, response, deadline)
        return response

    def open(self, call: Call, *, deadline: Deadline, stall: float | None = None) -> Response:
        """As `send`, again and again where that is harmless, until the deadline."""
        return self._again(lambda: self.send(call, deadline=deadline, stall=stall), call, deadline)

    def json(self, call: Call, *, timeout_seconds: float, stall: float | None = None) -> dict[str, Any]:
        """The JSON object that a call answers.

        Args:
            call: what to send.
            timeout_seconds: covers all tries and the waits between them.
            stall: as for `send`.

        Raises:
            SandboxApiError: the typed error of the last try.
        """
        deadline = Deadline.after(timeout_seconds)
        return self._again(lambda: self._json_once(call, deadline, stall), call, deadline)

    def json_once(self, call: Call, *, timeout_seconds: float) -> dict[str, Any]:
        """As `json`, with one try."""
        return self._json_once(call, Deadline.after(timeout_seconds))

    def _json_once(self, call: Call, deadline: Deadline, stall: float | None = None) -> dict[str, Any]:
        response = self.send(call, deadline=deadline, stall=stall)
        return self._decoded(call, response, self._body(call, response, deadline, MAX_JSON_ANSWER))

    def _again(self, attempt: Callable[[], Result], call: Call, deadline: Deadline) -> Result:
        backoff = Backoff()
        failures = 0
        while True:
            try:
                return attempt()
            except SandboxApiError as error:
                delay = backoff.delay(failures, error.retry_after_seconds, self.chance())
                failures += 1
                if not may_retry(error, safe=call.safe) or failures >= TRIES or delay >= deadline.remaining():
                    raise
                if self.on_retry:
                    self.on_retry(error)
            self.sleep(delay)

    def name(self, call: Call) -> str:
        """The call as error messages name it."""
        return f"{call.method} {self.base_url}{call.path}"

    def _connections(self) -> urllib3.PoolManager:
        if self._process != os.getpid():
            with self._lock:
                if self._process != os.getpid():
                    # Sockets shared with the parent would mix up the answers of the two.
                    self._pool = _new_pool(self.base_url)
                    self._process = os.getpid()
        return self._pool

    def _body(self, call: Call, response: Response, deadline: Deadline, limit: int) -> bytes:
        parts: list[bytes] = []
        size = 0
        with translated(self.name(call), deadline), closing_response(response):
            while part := response.read1(FIRST_SIP if not parts else BLOCK):
                parts.append(part)
                size += len(part)
                if size > limit:
                    raise SandboxApiError(f"{self.name(call)}: the answer is larger than {limit} bytes")
                if deadline.remaining() <= 0:
                    raise DeadlineExceededError(f"{self.name(call)}: the answer did not end in time")
        return b"".join(parts)

    def _decoded(self, call: Call, response: Response, body: bytes) -> dict[str, Any]:
        if not body:
            return {}
        try:
            value = json.loads(body)
        except ValueError:
            value = None
        if isinstance(value, dict):
            return value
        raise SandboxApiError(
            f"{self.name(call)}: the answer is not a JSON object; is {self.base_url} a sandbox gateway?",
            status_code=response.status,
            body={"error": body[:1000].decode(errors="replace")},
            headers=dict(response.headers),
        )

    def _error(self, call: Call, response: Response, deadline: Deadline) -> SandboxApiError:
        headers = dict(response.headers)
        try:
            raw = self._body(call, response, deadline, MAX_ERROR_BODY)
        except TransportError:
            raw = b""  # the status alone already tells what happened
        try:
            body: object = json.loads(raw) if raw else {}
        except ValueError:
            body = {"error": raw.decode(errors="replace")}
        return error_from_answer(response.status, body, headers)


def _new_pool(base_url: str) -> urllib3.PoolManager:
    parts = urlsplit(base_url)
    proxy = urllib.request.getproxies().get(parts.scheme)
    pool: urllib3.PoolManager
    if proxy and not urllib.request.proxy_bypass(parts.hostname or ""):
        pool = urllib3.ProxyManager(proxy, maxsize=POOL_SIZE, blocksize=BLOCK)
    else:
        pool = urllib3.PoolManager(maxsize=POOL_SIZE, blocksize=BLOCK)
    pool.pool_classes_by_scheme = {"http": _HTTPPool, "https": _HTTPSPool}
    return pool


@contextmanager
def closing_response(response: Response) -> Iterator[Response]:
    """Gives the connection back when the body was read to its end, and closes it otherwise."""
    try:
        yield response
    finally:
        response.close()


@contextmanager
def translated(what: str, deadline: Deadline) -> Iterator[None]:
    """Turns what urllib3 raises into `TransportError`, most telling case first."""
    try:
        yield
    except (urllib3_errors.NewConnectionError, urllib3_errors.ConnectTimeoutError) as error:
        raise TransportError(f"{what}: cannot connect: {_cause(error)}", sent=False) from error
    except urllib3_errors.ReadTimeoutError as error:
        if deadline.remaining() <= 0:
            raise DeadlineExceededError(f"{what}: no answer in time; whether it took effect is unknown") from error
        raise TransportError(f"{what}: the connection went silent") from error
    except (urllib3_errors.HTTPError, OSError) as error:
        raise TransportError(f"{what}: the connection broke: {_cause(error)}") from error


def _cause(error: BaseException) -> str:
    inner = error.__cause__ or error.__context__ or error
    return (inner.strerror if isinstance(inner, OSError) else None) or str(inner)
