"""The layers around the application, all of them pure ASGI: they never buffer a body.

From the outside in: `RawPaths` (routing on the path as it was sent), `Drain` (reads what is left before an early
error), `Requests` (id, log, last resort for errors), `BodyLimit`, `Stopping` (ends waits at shutdown), `Overload`
(bounded concurrency), and then `gateway.http.auth.Gate`.
"""

import asyncio
import logging
import re
import time
from typing import Final
from urllib.parse import unquote
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import ApiError
from gateway.http.auth import PRINCIPAL
from gateway.http.responses import REQUEST_ID, error_response, internal_error
from gateway.wire import limits
from gateway.wire.errors import ErrorCode

_log = logging.getLogger("gateway.http")
_access = logging.getLogger("gateway.access")

REQUEST_ID_HEADER: Final = "X-Request-Id"
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9_.:-]{1,128}")

DRAIN_BYTES: Final = 256 * limits.MIB  # the largest body that the public SDK sends
DRAIN_SECONDS: Final = 10.0
BODY_IDLE: Final = 120.0  # seconds in which a client may send no byte of a body

_FILE_PATH: Final = re.compile(r"/v1/sandboxes/[^/]+/files")
# Health and node traffic must pass when clients fill everything else: it is what makes room again.
_ALWAYS: Final = re.compile(r"/healthz|/readyz|/v1/nodes(/.*)?|/v1/demand|/v1/capacity/.*")
# Calls that may be sent again without harm although their outcome is not known.
_SAFE_AGAIN: Final = frozenset({"GET", "HEAD", "PUT", "DELETE"})


class StreamBrokenError(Exception):
    """A stream cannot be ended well: the connection is to be cut, so that nobody takes the part for the whole."""


class Requests:
    """Gives each request its id, logs it, and turns whatever escaped from further in into an answer or a cut."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, send)
        try:
            await self._app(scope, receive, exchange.send)
        except ApiError as error:
            await exchange.refuse(error, receive)
        except StreamBrokenError as error:
            _log.warning("%s: stream cut: %s", exchange.label, error)
        except Exception:  # noqa: BLE001 - the last boundary: logged with its id, told as `internal` without details
            await exchange.fail(receive)
        finally:
            exchange.log()


class _Exchange:
    """One request on its way through `Requests`."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope = scope
        self._send = send
        self._started = time.monotonic()
        self._sent = 0
        self.status: int | None = None
        told = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
        self.request_id = told if _REQUEST_ID.fullmatch(told) else uuid4().hex
        scope.setdefault("state", {})[REQUEST_ID] = self.request_id
        # The path as sent: ASCII, without control characters, so that no request can forge a line of the log.
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
        _log.exception("%s: not handled", self.label)
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


class Drain:
    """Reads what is left of a request's body before an error that comes early.

    A client that is still sending when the answer comes and the connection closes sees a broken pipe and never the
    answer; so the rest is read and thrown away first, up to a bound.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = _Body(Headers(scope=scope), receive, send)
        await self._app(scope, body.receive, body.send)


class _Body:
    """One request's body: whether there is more of it."""

    def __init__(self, headers: Headers, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._more = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        # Whoever waits for our word before it sends gets the answer instead.
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
    """Refuses bodies above the limit of their route, and those that stop coming.

    A length that is told is judged at once; a body without one when it passes the limit.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_file = scope["method"] == "PUT" and _FILE_PATH.fullmatch(scope["path"]) is not None
        limit = limits.MAX_FILE_BODY if is_file else limits.MAX_JSON_BODY
        told = Headers(scope=scope).get("content-length", "")
        if told.isascii() and told.isdigit() and int(told) > limit:
            raise _too_large(limit)
        got = 0
        more = True

        async def counted() -> Message:
            nonlocal got, more
            # After the body only a disconnect can come, and waiting for that has no end of its own.
            message = await (_in_time(receive) if more else receive())
            more = bool(message.get("more_body", False))
            got += len(message.get("body", b""))
            if got > limit:
                raise _too_large(limit)
            return message

        await self._app(scope, counted, send)


async def _in_time(receive: Receive) -> Message:
    try:
        async with asyncio.timeout(BODY_IDLE):
            return await receive()
    except TimeoutError:
        raise ApiError(ErrorCode.TIMEOUT, f"no byte of the body of this request came for {BODY_IDLE:g} s") from None


def _too_large(limit: int) -> ApiError:
    return ApiError(
        ErrorCode.PAYLOAD_TOO_LARGE, f"the body of this request is too large: it may have {limit} bytes at most"
    )


class Stopping:
    """Ends what is still in flight when the process stops, after a moment in which short calls end by themselves.

    Args:
        grace: seconds of that moment.
    """

    def __init__(self, app: ASGIApp, grace: float) -> None:
        self._app = app
        self._grace = grace
        self._calls: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = asyncio.current_task()
        if scope["type"] != "http" or call is None:
            await self._app(scope, receive, send)
            return
        self._calls.add(call)
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            # The server gives each request a task of its own, and only a stop cancels it.
            call.uncancel()
            raise _shutting_down(scope) from None
        finally:
            self._calls.discard(call)

    async def stop(self) -> None:
        """Waits for the calls in flight, then ends those that are left."""
        if self._calls:
            await asyncio.wait(set(self._calls), timeout=self._grace)
        for call in set(self._calls):
            call.cancel()


def _shutting_down(scope: Scope) -> ApiError:
    again = scope["method"] in _SAFE_AGAIN or scope["path"] == "/v1/sandboxes"
    outcome = "send the call again" if again else "whether what was asked has happened is not known"
    return ApiError(ErrorCode.BUSY, f"the gateway is shutting down; {outcome}", retryable=again, retry_after=1)


class Overload:
    """Refuses with ``busy`` what goes beyond the bounds, at once, so that what was let in is served.

    Args:
        requests: most requests in flight at once, health and node traffic not counted.
        creates: most creates among them; the rest is kept for calls to sandboxes that run.
    """

    def __init__(self, app: ASGIApp, *, requests: int, creates: int) -> None:
        self._app = app
        self._free = requests
        self._free_creates = creates

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _ALWAYS.fullmatch(scope["path"]):
            await self._app(scope, receive, send)
            return
        creates = int(scope["method"] == "POST" and scope["path"] == "/v1/sandboxes")
        if self._free < 1 or self._free_creates < creates:
            what = "creating sandboxes" if self._free >= 1 else "serving requests"
            raise ApiError(ErrorCode.BUSY, f"the gateway is busy {what}; send the call again shortly", retry_after=2)
        self._free -= 1
        self._free_creates -= creates
        try:
            await self._app(scope, receive, send)
        finally:
            self._free += 1
            self._free_creates += creates


class RawPaths:
    """Routes on the path as it was sent: a ``%2F`` inside a segment separates nothing, and ``%3A`` equals ``:``."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw = scope.get("raw_path") if scope["type"] == "http" else None
        if raw and b"%" in raw:
            segments = raw.decode("ascii", "replace").split("/")
            # No id holds a slash, so one that a segment decodes to may stay encoded: it then names nothing.
            scope["path"] = "/".join(unquote(segment).replace("/", "%2F") for segment in segments)
        await self._app(scope, receive, send)
