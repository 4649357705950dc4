"""HTTP calls to the service: connections, deadlines, typed errors, and the retries that cannot do harm."""

import json
import os
import random
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast
from urllib.parse import quote, urlencode, urlsplit

import urllib3
from urllib3 import exceptions as urllib3_errors
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.response import BaseHTTPResponse

from .errors import DeadlineExceededError, InvalidRequestError, SandboxApiError, TransportError, error_from_answer

__version__ = "0.1.0"

MAX_JSON_REQUEST: Final = 16 * 1024 * 1024  # the service refuses larger ones
MAX_JSON_RESPONSE: Final = 64 * 1024 * 1024  # 8 MiB of events, every byte of it escaped as \u00xx, and room
MAX_ERROR_BODY: Final = 1024 * 1024
CONNECT_TIMEOUT: Final = 10.0
# Many servers close a connection that was idle for 5 s.  A call that must not be sent twice should not meet one.
MAX_IDLE: Final = 4.0
POOL_SIZE: Final = 64
MAX_ATTEMPTS: Final = 8  # about 12 s in all: as long as a restart of the gateway takes, and no longer for a wrong URL
BLOCK: Final = 1024 * 1024
FIRST_READ: Final = 64 * 1024

RETRYABLE_STATUS: Final = frozenset({502, 503, 504})
"""Statuses that a proxy in front of the service gives while the service restarts, without a body of ours."""

Response = BaseHTTPResponse
Body = bytes | Iterable[bytes]
Result = TypeVar("Result")
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Deadline:
    """A point on the monotonic clock at which a call gives up."""

    at: float
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)

    @classmethod
    def after(cls, seconds: float, clock: Callable[[], float] = time.monotonic) -> "Deadline":
        """Return the deadline ``seconds`` from now."""
        return cls(clock() + seconds, clock)

    def remaining(self) -> float:
        """Return the seconds that are left; zero when it has passed."""
        return max(0.0, self.at - self.clock())


@dataclass(frozen=True)
class Backoff:
    """Waits that double from ``base`` to ``cap`` seconds, each shortened by chance so that clients spread out."""

    base: float = 0.2
    cap: float = 5.0

    def delay(self, attempt: int, retry_after: float | None, chance: float) -> float:
        """Return how long to wait after a failed attempt.

        Args:
            attempt: number of the failed attempt, from 0.
            retry_after: seconds that the service asked for; the result is never less, and a quarter more at most.
            chance: uniform in [0, 1).

        Returns:
            Seconds.
        """
        ceiling = min(self.cap, self.base * 2.0 ** min(attempt, 30))
        if retry_after is not None:
            return max(retry_after, ceiling / 2) * (1 + chance / 4)
        return ceiling * (1 + chance) / 2


def may_retry(error: SandboxApiError, *, safe: bool) -> bool:
    """Decide whether the same call may be sent again.

    A call that never left this machine, or of which the service says that nothing was begun, may always be sent again;
    any other only if it is safe and the failure is transient.

    Args:
        error: how the last attempt failed.
        safe: sending the call twice has the same effect as once.
    """
    if isinstance(error, TransportError):
        return safe or not error.sent
    if not safe and error.begun is not False:
        return False
    if error.retryable is not None:
        return error.retryable
    return error.status_code in RETRYABLE_STATUS


@dataclass(frozen=True)
class ApiCall:
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

    @property
    def changes(self) -> bool:
        """Whether the call changes something in the service."""
        return self.method != "GET"

    @classmethod
    def with_json(cls, method: str, path: str, payload: object, *, safe: bool = False) -> "ApiCall":
        """Make a call with a JSON body.

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
    """Return ``text`` as one path segment, with every special character quoted."""
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
        """Called with the error of each attempt that will be followed by another, before the wait."""
        self._headers = {"User-Agent": f"sandbox-fleet-sdk/{__version__}", "Accept-Encoding": "identity", **headers}
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._pool = _new_pool(self.base_url)

    def close(self) -> None:
        """Close the idle connections."""
        self._pool.clear()

    def send(self, call: ApiCall, *, deadline: Deadline, stall: float | None = None) -> Response:
        """Send once and return the response with its body still to be read.

        Args:
            call: what to send.
            deadline: bounds the wait for the response's head.
            stall: seconds without a byte after which the transfer counts as broken; by default what is left of the
                deadline.

        Raises:
            SandboxApiError: the typed error of any response that is not 2xx.
            TransportError: no response.
        """
        left = deadline.remaining()
        if left <= 0:
            raise DeadlineExceededError(f"{self.name(call)}: no time was left to send it")
        query = {key: value for key, value in call.query.items() if value is not None}
        url = self.base_url + call.path + ("?" + urlencode(query, doseq=True) if query else "")
        timeout = urllib3.Timeout(connect=min(CONNECT_TIMEOUT, left), read=stall or left)
        with transport_errors(self.name(call), deadline, changes=call.changes):
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

    def open(self, call: ApiCall, *, deadline: Deadline, stall: float | None = None) -> Response:
        """Send as `send` does, and retry until the deadline where that is harmless."""
        return self._again(lambda: self.send(call, deadline=deadline, stall=stall), call, deadline)

    def json(
        self, call: ApiCall, answer: type[Answer], *, timeout_seconds: float, stall: float | None = None
    ) -> Answer:
        """Send a call, with retries where that is harmless, and return the JSON object that it answers.

        Args:
            call: what to send.
            answer: the `TypedDict` that describes the JSON object.
            timeout_seconds: covers all attempts and the waits between them.
            stall: as for `send`.

        Raises:
            SandboxApiError: the typed error of the last attempt.
        """
        deadline = Deadline.after(timeout_seconds)
        return cast("Answer", self._again(lambda: self._json_once(call, deadline, stall), call, deadline))

    def json_once(self, call: ApiCall, answer: type[Answer], *, timeout_seconds: float) -> Answer:
        """Send a call once and return the JSON object that it answers."""
        return cast("Answer", self._json_once(call, Deadline.after(timeout_seconds)))

    def _json_once(self, call: ApiCall, deadline: Deadline, stall: float | None = None) -> dict[str, Any]:
        response = self.send(call, deadline=deadline, stall=stall)
        return self._decoded(call, response, self._body(call, response, deadline, MAX_JSON_RESPONSE))

    def _again(self, attempt: Callable[[], Result], call: ApiCall, deadline: Deadline) -> Result:
        backoff = Backoff()
        failures = 0
        while True:
            try:
                return attempt()
            except SandboxApiError as error:
                delay = backoff.delay(failures, error.retry_after_seconds, self.chance())
                failures += 1
                if not may_retry(error, safe=call.safe) or failures >= MAX_ATTEMPTS or delay >= deadline.remaining():
                    raise
                if error.status_code is not None and not (call.safe or isinstance(call.body, bytes | None)):
                    raise  # the service answered, and may have taken a part of what can be read only once
                if self.on_retry:
                    self.on_retry(error)
            self.sleep(delay)

    def name(self, call: ApiCall) -> str:
        """Return the call as error messages name it."""
        return f"{call.method} {self.base_url}{call.path}"

    def _connections(self) -> urllib3.PoolManager:
        if self._process != os.getpid():
            with self._lock:
                if self._process != os.getpid():
                    # Sockets shared with the parent would mix up the answers of the two.
                    self._pool = _new_pool(self.base_url)
                    self._process = os.getpid()
        return self._pool

    def _body(self, call: ApiCall, response: Response, deadline: Deadline, limit: int) -> bytes:
        parts: list[bytes] = []
        size = 0
        with transport_errors(self.name(call), deadline, changes=call.changes), closing_response(response):
            while part := response.read1(FIRST_READ if not parts else BLOCK):
                parts.append(part)
                size += len(part)
                if size > limit:
                    raise SandboxApiError(f"{self.name(call)}: the response is larger than {limit} bytes")
                if deadline.remaining() <= 0:
                    raise DeadlineExceededError(f"{self.name(call)}: the response did not end in time")
        return b"".join(parts)

    def _decoded(self, call: ApiCall, response: Response, body: bytes) -> dict[str, Any]:
        if not body:
            return {}
        try:
            value = json.loads(body)
        except ValueError:
            value = None
        if isinstance(value, dict):
            return value
        raise SandboxApiError(
            f"{self.name(call)}: the response is not a JSON object; is {self.base_url} a sandbox gateway?",
            status_code=response.status,
            body={"error": body[:1000].decode(errors="replace")},
            headers=dict(response.headers),
        )

    def _error(self, call: ApiCall, response: Response, deadline: Deadline) -> SandboxApiError:
        headers = dict(response.headers)
        try:
            raw = self._body(call, response, deadline, MAX_ERROR_BODY)
        except TransportError:
            raw = b""  # the status alone already says what happened
        try:
            body: object = json.loads(raw) if raw else {}
        except ValueError:
            body = {"error": raw.decode(errors="replace")}
        return error_from_answer(response.status, body, headers)


class ServiceCalls:
    """Base of the groups of calls that make up a client."""

    transport: Transport
    timeout_seconds: float

    def _call(self, call: ApiCall, answer: type[Answer], *, timeout_seconds: float | None = None) -> Answer:
        """Send a call, with retries where it is safe, and return the JSON object that it answers.

        Args:
            call: what to send.
            answer: the `TypedDict` that describes the answer.
            timeout_seconds: for all tries; the client's own by default.
        """
        limit = self.timeout_seconds if timeout_seconds is None else timeout_seconds
        return self.transport.json(call, answer, timeout_seconds=limit)


@contextmanager
def closing_response(response: Response) -> Iterator[Response]:
    """Give the connection back when the body was read to its end, and close it otherwise."""
    try:
        yield response
    finally:
        response.close()


@contextmanager
def transport_errors(what: str, deadline: Deadline, *, changes: bool = False) -> Iterator[None]:
    """Turn what urllib3 raises into `TransportError`, the most specific case first.

    Args:
        what: the call, as the message names it.
        deadline: of the call.
        changes: the call changes something, so that without an answer its effect is unknown.
    """
    try:
        yield
    except (urllib3_errors.NewConnectionError, urllib3_errors.ConnectTimeoutError) as error:
        raise TransportError(f"{what}: cannot connect: {_cause(error)}", sent=False) from error
    except urllib3_errors.ReadTimeoutError as error:
        if deadline.remaining() <= 0:
            effect = "; whether it took effect is unknown" if changes else ""
            raise DeadlineExceededError(f"{what}: no response in time{effect}") from error
        raise TransportError(f"{what}: the connection went silent") from error
    except (urllib3_errors.HTTPError, OSError) as error:
        raise TransportError(f"{what}: the connection broke: {_cause(error)}") from error


def _cause(error: BaseException) -> str:
    inner = error.__cause__ or error.__context__ or error
    return (inner.strerror if isinstance(inner, OSError) else None) or str(inner)


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
