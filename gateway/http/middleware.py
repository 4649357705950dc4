"""The layers around the application, all of them pure ASGI: they never buffer a body.

They see HTTP only, because `gateway.http.server` turns websockets and lifespan events off.

From the outside in: `RawPaths` (routing on the path as it was sent), `BodyDrain` (reads the rest of a body before an
early error), `gateway.http.audit.AuditTrail`, `RequestBoundary` (id, log, last resort for errors), `BodyLimit`,
`GracefulStop` (ends waits at shutdown), `gateway.http.auth.AuthGate`, `FairShares` (what tenants may take up) and then
`gateway.http.audit.AuditGate`.
"""

import asyncio
import logging
import re
import time
from contextlib import ExitStack
from typing import Final
from urllib.parse import unquote
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import ApiError
from gateway.http.responses import REQUEST_ID, error_response, internal_error
from gateway.http.tenancy import PRINCIPAL
from gateway.wire import limits
from gateway.wire.errors import ErrorCode
from gateway.wire.shares import FairPace, FairPool, Holder
from gateway.wire.tokens import TokenScope

_log = logging.getLogger("gateway.http")
_access = logging.getLogger("gateway.access")

REQUEST_ID_HEADER: Final = "X-Request-Id"
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9_.:-]{1,128}")

DRAIN_BYTES: Final = 256 * limits.MIB  # the largest body that the public SDK sends
DRAIN_SECONDS: Final = 10.0
MAX_BODY_BYTES: Final = 256 * limits.MIB  # of JSON bodies in memory; parsed, each takes a multiple for a moment
BODY_RATE: Final = 8 * limits.MIB  # bytes per second of one tenant's large bodies, which take processor time to read
PACED_BODY: Final = limits.MIB  # bytes from which a body is large
MAX_BODY_PAUSE: Final = 20.0  # seconds
BODY_IDLE: Final = 120.0  # seconds for which a client may send no byte of a body

_FILE_PATH: Final = re.compile(r"/v1/sandboxes/[^/]+/files")
# Health and node traffic must pass when clients take up everything else: it is what makes room again.
_ALWAYS: Final = re.compile(r"/healthz|/readyz|/v1/nodes(/.*)?|/v1/demand|/v1/capacity/.*")
# Methods whose calls may be repeated although their outcome is unknown.
_REPEATABLE: Final = frozenset({"GET", "HEAD", "PUT", "DELETE"})


class StreamBrokenError(Exception):
    """A stream cannot be completed: the connection must be cut, so that nobody takes the part for the whole."""


class RequestBoundary:
    """ASGI layer that gives each request its id, logs it, and turns any exception into an answer or a cut stream."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = _Exchange(scope, send)
        try:
            await self._app(scope, receive, exchange.send)
        except ApiError as error:
            await exchange.refuse(error, receive)
        except StreamBrokenError as error:
            _log.warning("%s: stream cut: %s", exchange.label, error)
        except Exception:  # noqa: BLE001 - the last boundary: logged with its id, answered as `internal`
            await exchange.fail(receive)
        finally:
            exchange.log()


class _Exchange:
    """One request on its way through `RequestBoundary`."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope = scope
        self._send = send
        self._started = time.monotonic()
        self._sent = 0
        self.status: int | None = None
        sent = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
        self.request_id = sent if _REQUEST_ID.fullmatch(sent) else uuid4().hex
        scope.setdefault("state", {})[REQUEST_ID] = self.request_id
        # The path as sent is ASCII without control characters, so no request can forge a line of the log.
        raw = bytes(scope.get("raw_path") or b"").decode("ascii", "backslashreplace")
        self.label = f"{scope['method']} {raw[:512]} [{self.request_id}]"

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            MutableHeaders(scope=message)[REQUEST_ID_HEADER] = self.request_id
        elif message["type"] == "http.response.body":
            self._sent += len(message.get("body", b""))
        await self._send(message)

    async def refuse(self, error: ApiError, receive: Receive) -> None:
        if self.status is None:
            await error_response(error, self._scope)(self._scope, receive, self.send)
        else:
            _log.warning("%s: stream cut: %s", self.label, error.message)

    async def fail(self, receive: Receive) -> None:
        _log.exception("%s: unhandled exception", self.label)
        if self.status is None:
            await self.refuse(internal_error(self._scope), receive)

    def log(self) -> None:
        principal = self._scope["state"].get(PRINCIPAL)
        _access.info(
            "%s %s %d bytes %.1f ms %s",
            self.label,
            self.status if self.status is not None else "no answer",
            self._sent,
            1000 * (time.monotonic() - self._started),
            f"{principal.scope.value} {principal.token_id}" if principal else "-",
        )


class BodyDrain:
    """ASGI layer that reads the rest of a request's body before it lets an early error through.

    A client that is still sending when the answer arrives and the connection closes sees a broken pipe and never the
    answer; so the rest is read and discarded first, up to a bound.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = _UnreadBody(Headers(scope=scope), receive, send)
        await self._app(scope, body.receive, body.send)


class _UnreadBody:
    """Keeps track of whether there is more of one request's body."""

    def __init__(self, headers: Headers, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._more = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        # A client that waits for "100 Continue" has sent nothing, and gets the answer instead.
        self._waits = headers.get("expect", "").lower() == "100-continue"

    async def receive(self) -> Message:
        message = await self._receive()
        self._waits = False
        self._more = bool(message.get("more_body", False))  # a disconnect has none
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] >= 400 and self._more and not self._waits:
            await self._drain()
        await self._send(message)

    async def _drain(self) -> None:
        left = DRAIN_BYTES
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                while self._more and left > 0:
                    left -= len((await self.receive()).get("body", b""))
        except TimeoutError:
            return


class BodyLimit:
    """ASGI layer that refuses bodies above the limit of their route, and those that stall.

    A declared length is checked at once; a body without one when it passes the limit.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        limit = limits.MAX_FILE_BODY if _is_file(scope) else limits.MAX_JSON_BODY
        declared = _declared(scope)
        if declared is not None and declared > limit:
            raise _too_large(limit)
        received = 0
        more = True

        async def counted() -> Message:
            nonlocal received, more
            # After the body only a disconnect can come, and a wait for that needs no limit.
            message = await (_before_idle(receive) if more else receive())
            more = bool(message.get("more_body", False))
            received += len(message.get("body", b""))
            if received > limit:
                raise _too_large(limit)
            return message

        await self._app(scope, counted, send)


async def _before_idle(receive: Receive) -> Message:
    try:
        async with asyncio.timeout(BODY_IDLE):
            return await receive()
    except TimeoutError:
        raise ApiError(ErrorCode.TIMEOUT, f"no byte of the request's body arrived for {BODY_IDLE:g} s") from None


def _too_large(limit: int) -> ApiError:
    return ApiError(ErrorCode.PAYLOAD_TOO_LARGE, f"the request's body is too large: the limit is {limit} bytes")


class GracefulStop:
    """ASGI layer that ends what is in flight when the process stops, after a grace period for short calls.

    Args:
        app: the layer further in.
        grace: seconds in which calls may end by themselves.
    """

    def __init__(self, app: ASGIApp, grace: float) -> None:
        self._app = app
        self._grace = grace
        self._calls: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = asyncio.current_task()
        assert call is not None  # noqa: S101 - the server gives each request a task of its own
        self._calls.add(call)
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            # Only a stop cancels the task of a request.
            call.uncancel()
            raise _shutting_down(scope) from None
        finally:
            self._calls.discard(call)

    async def stop(self) -> None:
        """Wait for the calls in flight, then end those that are left."""
        if self._calls:
            await asyncio.wait(set(self._calls), timeout=self._grace)
        for call in set(self._calls):
            call.cancel()


def _shutting_down(scope: Scope) -> ApiError:
    repeatable = scope["method"] in _REPEATABLE or scope["path"] == "/v1/sandboxes"
    outcome = "send the call again" if repeatable else "whether the call took effect is not known"
    return ApiError(ErrorCode.BUSY, f"the gateway is shutting down; {outcome}", retryable=repeatable, retry_after=1)


class FairShares:
    """ASGI layer that shares requests, creates and the memory of bodies among tenants.

    What is beyond a tenant's share is refused with ``busy``, at once, so that admitted requests are served.

    Args:
        app: the layer further in.
        requests: most requests in flight at once; nodes, and operators' calls that make room again, are not counted.
        creates: most creates among them; the rest is kept for calls to running sandboxes.
        body_bytes: most bytes of bodies in memory; files stream, and are not counted.
    """

    def __init__(self, app: ASGIApp, *, requests: int, creates: int, body_bytes: int = MAX_BODY_BYTES) -> None:
        self._app = app
        self._requests = FairPool(requests)
        self._creates = FairPool(creates)
        self._bodies = FairPool(body_bytes, least=limits.MAX_JSON_BODY)
        self._pace = FairPace(BODY_RATE, 2 * limits.MAX_JSON_BODY)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        principal = scope["state"].get(PRINCIPAL)
        if principal is None or (_ALWAYS.fullmatch(scope["path"]) and principal.scope is not TokenScope.CLIENT):
            await self._app(scope, receive, send)
            return
        # What tenants do must not keep their operator out: no tenant's name has a colon.
        holder = Holder(principal.tenant if principal.scope is TokenScope.CLIENT else ":operators")
        with ExitStack() as taken:
            self._take(taken, self._requests, holder, 1, "requests")
            if scope["method"] == "POST" and scope["path"] == "/v1/sandboxes":
                self._take(taken, self._creates, holder, 1, "creates")
            if not _is_file(scope):
                receive = self._counted(taken, holder, scope, receive)
                await self._paced(holder, _declared(scope) or 0)
            await self._app(scope, receive, send)

    async def _paced(self, holder: Holder, size: int) -> None:
        """Wait until the tenant may send so much; its client waits in its write, for the body is not read yet."""
        pause = self._pace.pause(holder, size, time.monotonic()) if size >= PACED_BODY else 0.0
        if pause:
            await asyncio.sleep(min(pause, MAX_BODY_PAUSE))

    def _counted(self, taken: ExitStack, holder: Holder, scope: Scope, receive: Receive) -> Receive:
        """Take room for the body: at once where its length is declared, else as it comes."""
        declared = _declared(scope)
        if declared is not None:
            self._take(taken, self._bodies, holder, declared, "bytes of bodies")
            return receive

        async def counted() -> Message:
            message = await receive()
            self._take(taken, self._bodies, holder, len(message.get("body", b"")), "bytes of bodies")
            return message

        return counted

    def _take(self, taken: ExitStack, pool: FairPool, holder: Holder, units: int, what: str) -> None:
        if not units:
            return
        full = pool.take(holder, units)
        if full is not None:
            raise ApiError(
                ErrorCode.BUSY,
                f"the gateway holds {pool.held(holder)} {what} of this tenant and {pool.total} in all, of"
                f" {pool.capacity}: {full.value}; send the call again shortly",
                retry_after=2,
            )
        taken.callback(pool.give, holder, units)


def _is_file(scope: Scope) -> bool:
    return scope["method"] == "PUT" and _FILE_PATH.fullmatch(scope["path"]) is not None


def _declared(scope: Scope) -> int | None:
    """Return the length of the body; ``None`` where the client does not tell it."""
    headers = Headers(scope=scope)
    declared = headers.get("content-length", "")
    if declared.isascii() and declared.isdigit():
        return int(declared)
    return None if "transfer-encoding" in headers else 0


class RawPaths:
    """ASGI layer that routes on the path as it was sent: ``%2F`` separates no segments, and ``%3A`` equals ``:``."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw = scope.get("raw_path")
        if raw and b"%" in raw:
            segments = raw.decode("ascii", "replace").split("/")
            # No id contains a slash, so an encoded one may stay encoded: such an id names nothing.
            scope["path"] = "/".join(unquote(segment).replace("/", "%2F") for segment in segments)
        await self._app(scope, receive, send)
