"""A node's HTTP API that does what a test says: it runs nothing, records every call, and misbehaves on demand.

A file whose path ends in ``-N`` has N zero bytes; ``/cut-N`` breaks off in the middle, ``/held-N`` waits for `release`
between two chunks, ``/slow`` takes no byte of an upload before `release`, and ``/refused`` is not found.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from gateway.wire.errors import CODE_RULES, ErrorBody, ErrorCode
from gateway.wire.nodes import CreateOrder, InventoryItem, OrderAnswer
from gateway.wire.states import DeathReason, SandboxState

CHUNK = 256 * 1024
METHODS = ["GET", "PUT", "POST", "DELETE"]


def refusal(code: ErrorCode, sentence: str = "the node says no") -> Response:
    """Return a node's error."""
    rule = CODE_RULES[code]
    body = ErrorBody(error=sentence, code=code, retryable=rule.retryable)
    return Response(body.model_dump_json(exclude_none=True), rule.status, media_type="application/json")


@dataclass(frozen=True)
class Call:
    """A call as the node received it."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


@dataclass
class Script:
    """What the node does, and what it saw; a test starts with a new one."""

    calls: list[Call] = field(default_factory=list)
    """All but orders about sandboxes."""
    orders: list[Call] = field(default_factory=list)
    answer: Response | None = None
    """Given to every JSON call and stream instead of the usual answer."""
    hold: bool = False
    """Whether every call waits for `release`, and not only those that ask to wait."""
    hold_orders: bool = False
    """Whether creates and deletes wait for `release`."""
    release: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a call waits for `release`, or an upload has begun."""
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a caller aborted a call."""
    sent: int = 0
    """Bytes of downloads that the server took from the node."""
    received: int = 0
    """Bytes of uploads."""
    upload_whole: bool | None = None


class ScriptedNode:
    """The node; `script` is exchanged for each test, `items` are its sandboxes."""

    def __init__(self) -> None:
        self.script = Script()
        self.items: dict[str, InventoryItem] = {}

    def app(self) -> Starlette:
        """Return the ASGI application."""
        paths = {
            "/v1/sandboxes/{id}": self._order,
            "/v1/sandboxes/{id}/files": self._files,
            "/v1/exec/{id}/events": self._events,
            "/v1/exec/{id}/stream": self._stream,
            "/{rest:path}": self._json,
        }
        return Starlette(routes=[Route(path, endpoint, methods=METHODS) for path, endpoint in paths.items()])

    def end(self, sandbox_id: str) -> None:
        """Let the first process of a sandbox end by itself."""
        ended: dict[str, Any] = {"state": SandboxState.EXITED, "reason": DeathReason.EXITED, "exit_code": 0}
        self.items[sandbox_id] = self.items[sandbox_id].model_copy(update=ended)

    # -- orders -------------------------------------------------------------------------------------------------------

    async def _order(self, request: Request) -> Response:
        script = self.script
        body = await request.body()
        script.orders.append(_call_of(request, body))
        if script.hold_orders:
            await _held(script, request)
        if request.method == "DELETE":
            self.items.pop(request.path_params["id"], None)
            return JSONResponse({})
        order, sandbox_id = CreateOrder.model_validate_json(body), request.path_params["id"]
        item = InventoryItem(
            sandbox_id=sandbox_id,
            generation=order.generation,
            operation_id=order.operation_id,
            spec_hash=order.spec.sha256(),
            state=SandboxState.RUNNING,
            runtime=order.runtime,
            isolation=order.spec.isolation,
            shape=order.spec.shape,
        )
        self.items[sandbox_id] = item
        return Response(OrderAnswer(sandbox=item).model_dump_json(), media_type="application/json")

    # -- calls --------------------------------------------------------------------------------------------------------

    async def _json(self, request: Request) -> Response:
        script = self.script
        script.calls.append(_call_of(request, await request.body()))
        if script.hold:
            await _held(script, request)
        return script.answer or JSONResponse({"session": {"id": "s"}, "events": []}, 201)

    async def _events(self, request: Request) -> Response:
        script = self.script
        script.calls.append(_call_of(request))
        if script.answer is not None:
            return script.answer
        if float(request.query_params.get("wait_seconds", "0")) > 0:
            await _held(script, request)
        return JSONResponse({"session": {"id": "s", "status": "running"}, "events": []})

    async def _stream(self, request: Request) -> Response:
        script = self.script
        script.calls.append(_call_of(request))
        if script.answer is not None:
            return script.answer

        async def lines() -> AsyncIterator[bytes]:
            yield b'{"event":1}\n'
            await _held(script, request)
            yield b'{"session":2}\n'

        return StreamingResponse(lines(), media_type="application/x-ndjson")

    async def _files(self, request: Request) -> Response:
        script = self.script
        script.calls.append(_call_of(request))
        path = request.query_params["path"]
        if path == "/refused":
            return refusal(ErrorCode.FILE_NOT_FOUND, "no such file")
        return await _take(script, request) if request.method == "PUT" else _give(script, request, path)


def _call_of(request: Request, body: bytes = b"") -> Call:
    path = request.scope["raw_path"].decode()
    return Call(request.method, path, dict(request.query_params), dict(request.headers), body)


async def _held(script: Script, request: Request) -> None:
    """Wait for the release, or for the caller to leave."""
    script.waiting.set()
    gone = asyncio.ensure_future(_disconnected(request))
    released = asyncio.ensure_future(script.release.wait())
    try:
        await asyncio.wait({gone, released}, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        script.left.set()
        raise
    finally:
        gone.cancel()
        released.cancel()
    if not released.done():
        script.left.set()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _take(script: Script, request: Request) -> Response:
    digest = hashlib.sha256()
    script.upload_whole = False
    try:
        if request.query_params["path"] == "/slow":
            script.waiting.set()
            await script.release.wait()
        async for chunk in request.stream():
            script.received += len(chunk)
            digest.update(chunk)
            script.waiting.set()
    except Exception:
        script.left.set()
        raise
    script.upload_whole = True
    return JSONResponse({"ok": True, "size": script.received, "path": digest.hexdigest()})


def _give(script: Script, request: Request, path: str) -> Response:
    size = int(path.rpartition("-")[2])

    async def chunks() -> AsyncIterator[bytes]:
        sent = 0
        while sent < size:
            chunk = bytes(min(CHUNK, size - sent))
            yield chunk
            sent += len(chunk)
            script.sent += len(chunk)
            if path.startswith("/cut") and sent >= size // 2:
                raise ConnectionResetError("the node dies")
            if path.startswith("/held"):
                await _held(script, request)

    return StreamingResponse(chunks(), headers={"content-length": str(size)}, media_type="application/octet-stream")
