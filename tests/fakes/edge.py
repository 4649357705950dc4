"""The gateway's HTTP edge between fake services and a fake node, all on real sockets."""

import asyncio
import contextlib
import hashlib
import json
import logging
import queue
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar, cast

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route as HttpRoute

from gateway.core.model import NodeAddress, PreparedKind, PreparedUnits, Route
from gateway.errors import ApiError
from gateway.http.app import Gateway, build_app
from gateway.http.server import Server
from gateway.node_client import NodeClient
from gateway.services.assembly import Services
from gateway.services.tokens import Principal
from gateway.wire.capacity import Ceilings, Demand
from gateway.wire.errors import CODE_RULES, ErrorBody, ErrorCode
from gateway.wire.nodes import (
    BundleManifest,
    HeartbeatAnswer,
    JoinToken,
    NodeEnvelope,
    NodeList,
    NodeRecord,
    RegisterAnswer,
)
from gateway.wire.resources import Shape
from gateway.wire.sandboxes import SandboxEnvelope, SandboxList, SandboxRecord, SandboxSpec
from gateway.wire.states import NodeState, SandboxState
from gateway.wire.tokens import Scope, TokenCreated, TokenList, TokenRecord
from tests.fakes.serving import Loop, QuietServer, plain, running_loop, served

T = TypeVar("T")

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
CONTROL = "control-secret"
NODE_ID = "node-1"
TOKENS = {
    "client-secret": Principal("t1", "a client", Scope.CLIENT),
    "operator-secret": Principal("t2", "an operator", Scope.OPERATOR),
    "node-secret": Principal("t3", "a node", Scope.NODE, NODE_ID),
    "other-node-secret": Principal("t4", "another node", Scope.NODE, "node-2"),
}
CLIENT = {"X-UCloud-Sandbox-Token": "client-secret"}
OPERATOR = {"Authorization": "Bearer operator-secret"}
SESSION = f"exec-{'0' * 32}.1.box"


def record(spec: SandboxSpec, state: SandboxState = SandboxState.RUNNING) -> SandboxRecord:
    return SandboxRecord(
        id=spec.id,
        generation=1,
        image=spec.image,
        spec=spec,
        spec_hash=spec.sha256(),
        state=state,
        operation_id="op",
        created_at=NOW,
        updated_at=NOW,
    )


def node_record() -> NodeRecord:
    return NodeRecord(
        id=NODE_ID,
        instance="i",
        pool="cpu",
        state=NodeState.READY,
        node_url="http://127.0.0.1:1",
        agent_version="1",
        total=Shape(),
        reserved=Shape(),
        runtimes=[],
        sandboxes=0,
        registered_at=NOW,
    )


PREPARED = PreparedUnits("prep-1", PreparedKind.SANDBOX, Shape(), 1, NOW, NOW, NOW)


@dataclass
class FakeServices:
    """All services in one: what they were asked, and what they shall answer."""

    node_url: str = "http://127.0.0.1:1"
    calls: list[tuple[str, Any]] = field(default_factory=list)
    refuse: ApiError | Exception | None = None
    """Raised by every call but `verify`."""
    route_refusals: dict[bool, ApiError] = field(default_factory=dict)
    """By ``running``: what `route` raises."""
    create_gate: asyncio.Event | None = None
    creating: int = 0
    touched: int = 0
    revoked: set[str] = field(default_factory=set)
    deleted_state: SandboxState | None = SandboxState.DELETED
    command_of_listed: list[str] = field(default_factory=list)

    def _note(self, name: str, value: Any = None) -> None:
        self.calls.append((name, value))
        if self.refuse is not None:
            raise self.refuse

    # -- tokens --
    async def verify(self, secret: str) -> Principal:
        if secret in self.revoked or secret not in TOKENS:
            raise ApiError(ErrorCode.UNAUTHORIZED, "unknown token")
        return TOKENS[secret]

    async def all_tokens(self) -> TokenList:
        self._note("tokens")
        return TokenList(tokens=[])

    async def make(self, request: Any) -> TokenCreated:
        self._note("make", request)
        return TokenCreated(token="s", record=TokenRecord(id="t", name="n", scope=Scope.CLIENT, created_at=NOW))

    async def revoke(self, token_id: str) -> TokenRecord:
        self._note("revoke", token_id)
        return TokenRecord(id=token_id, name="n", scope=Scope.CLIENT, created_at=NOW, revoked_at=NOW)

    # -- nodes --
    async def make_join_token(self, request: Any) -> JoinToken:
        self._note("join", request)
        return JoinToken(token="j", instance=request.instance, expires_at=NOW)

    async def register(self, join_token: str, request: Any) -> RegisterAnswer:
        self._note("register", join_token)
        if join_token != "join-secret":
            raise ApiError(ErrorCode.UNAUTHORIZED, "unknown join token")
        return RegisterAnswer(node_id=NODE_ID, credential="c", control_token="k", heartbeat_seconds=5)

    async def heartbeat(self, node_id: str, beat: Any) -> HeartbeatAnswer:
        self._note("heartbeat", (node_id, beat))
        return HeartbeatAnswer(heartbeat_seconds=5)

    async def all_nodes(self) -> NodeList:
        self._note("nodes")
        return NodeList(nodes=[node_record()])

    async def drain(self, node_id: str, draining: bool) -> NodeEnvelope:
        self._note("drain", (node_id, draining))
        return NodeEnvelope(node=node_record())

    async def remove(self, node_id: str, *, machine_gone: bool = False) -> NodeEnvelope:
        self._note("remove", (node_id, machine_gone))
        return NodeEnvelope(node=node_record())

    # -- capacity --
    async def demand(self) -> Demand:
        self._note("demand")
        return Demand(waiting=[], pending_count=0, pending_resources=Shape())

    async def prepare(self, request: Any) -> PreparedUnits:
        self._note("prepare", request)
        return replace(PREPARED, shape=request.shape, count=request.count)

    async def prepare_builders(self, request: Any) -> PreparedUnits:
        self._note("prepare_builders", request)
        return replace(PREPARED, kind=PreparedKind.BUILDER, count=request.count)

    async def unprepare(self, kind: PreparedKind, prepare_id: str) -> PreparedUnits | None:
        self._note("unprepare", (kind, prepare_id))
        return replace(PREPARED, id=prepare_id, kind=kind)

    # -- bundle --
    async def verify_join_token(self, secret: str) -> None:
        if secret != "join-secret":
            raise ApiError(ErrorCode.UNAUTHORIZED, "unknown token")

    async def manifest(self) -> BundleManifest:
        self._note("manifest")
        return BundleManifest(version="1", sha256="0" * 64, files=[])

    async def path(self, name: str) -> Path:
        self._note("path", name)
        return Path(__file__)

    async def set_ceilings(self, ceilings: Ceilings) -> None:
        self._note("ceilings", ceilings)

    # -- sandboxes --
    async def create(self, spec: SandboxSpec) -> SandboxEnvelope:
        self._note("create", spec)
        if self.create_gate is not None:
            self.creating += 1
            try:
                await self.create_gate.wait()
            finally:
                self.creating -= 1
        return SandboxEnvelope(sandbox=record(spec), recovered=spec.labels.get("there") == "yes")

    async def get(self, sandbox_id: str) -> SandboxRecord:
        self._note("get", sandbox_id)
        return record(SandboxSpec(id=sandbox_id, image="i"))

    async def page(self, **query: Any) -> SandboxList:
        self._note("page", query)
        spec = SandboxSpec(id="box", image="i")
        if self.command_of_listed:
            spec = spec.model_copy(update={"command": self.command_of_listed})
            return SandboxList(sandboxes=[record(spec)] * query["limit"], next_cursor="more")
        return SandboxList(sandboxes=[record(spec)])

    async def delete(self, sandbox_id: str) -> SandboxRecord | None:
        self._note("delete", sandbox_id)
        if self.deleted_state is None:
            return None
        return record(SandboxSpec(id=sandbox_id, image="i"), self.deleted_state)

    async def change(self, sandbox_id: str) -> SandboxRecord:
        return await self.get(sandbox_id)

    async def route(self, sandbox_id: str, *, generation: int | None = None, running: bool = True) -> Route:
        self._note("route", (sandbox_id, generation, running))
        if running in self.route_refusals:
            raise self.route_refusals[running]
        return Route(sandbox_id, generation or 1, NodeAddress(NODE_ID, self.node_url, CONTROL))

    async def call(
        self,
        sandbox_id: str,
        send: Callable[[Route], Awaitable[T]],
        *,
        generation: int | None = None,
        running: bool = True,
    ) -> T:
        return await send(await self.route(sandbox_id, generation=generation, running=running))

    def touch(self, sandbox_id: str) -> None:
        self.touched += 1

    async def ready(self) -> None:
        self._note("ready")

    def assembled(self) -> Services:
        return cast("Services", _Assembled(self))


class _Assembled:
    def __init__(self, fake: FakeServices) -> None:
        self.ready = fake.ready
        self.sandboxes = fake
        self.capacity = fake
        self.bundle = fake
        self.prepared = _Renamed(fake, delete=fake.unprepare)
        self.nodes = _Renamed(fake, all=fake.all_nodes)
        self.tokens = _Renamed(fake, all=fake.all_tokens)


class _Renamed:
    def __init__(self, fake: FakeServices, **names: Any) -> None:
        self._fake = fake
        self._names = names

    def __getattr__(self, name: str) -> Any:
        return self._names.get(name) or getattr(self._fake, name)


for _name in ("pause", "resume", "restart"):
    setattr(FakeServices, _name, FakeServices.change)


def refusal(code: ErrorCode, sentence: str = "the node says no", **more: Any) -> Response:
    body = ErrorBody(error=sentence, code=code, retryable=CODE_RULES[code].retryable, **more)
    return Response(body.model_dump_json(exclude_none=True), CODE_RULES[code].status, media_type="application/json")


@dataclass
class FakeNode:
    """A node that answers, records what it saw, and can be told to misbehave."""

    seen: list[dict[str, Any]] = field(default_factory=list)
    answer: Response | None = None
    """Given to every JSON call instead of the usual."""
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a caller broke off a call."""
    waiting: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a call waits for `release`."""
    release: asyncio.Event = field(default_factory=asyncio.Event)
    hold: bool = False
    """Whether calls without a wait of their own wait for `release` too."""
    uploaded: int = 0
    upload_whole: bool | None = None

    def app(self) -> Starlette:
        paths = {
            "/v1/sandboxes/{id}/files": self.files,
            "/v1/exec/{id}/events": self.events,
            "/v1/exec/{id}/stream": self.stream,
            "/{rest:path}": self.json,
        }
        methods = ["GET", "PUT", "POST", "DELETE"]
        return Starlette(routes=[HttpRoute(path, endpoint, methods=methods) for path, endpoint in paths.items()])

    def _note(self, request: Request, body: bytes = b"") -> None:
        self.seen.append(
            {
                "method": request.method,
                "path": request.scope["raw_path"].decode(),
                "query": dict(request.query_params),
                "headers": dict(request.headers),
                "body": body,
            }
        )

    async def json(self, request: Request) -> Response:
        self._note(request, await request.body())
        if self.hold:
            await self._hold(request)
        return self.answer or JSONResponse({"session": {"id": "s"}, "events": []}, 201)

    async def events(self, request: Request) -> Response:
        self._note(request)
        if self.answer is not None:
            return self.answer
        if float(request.query_params.get("wait_seconds", "0")) > 0:
            await self._hold(request)
        return JSONResponse({"session": {"id": "s", "status": "running"}, "events": []})

    async def _hold(self, request: Request) -> None:
        self.waiting.set()
        gone = asyncio.ensure_future(self._gone(request))
        free = asyncio.ensure_future(self.release.wait())
        try:
            await asyncio.wait({gone, free}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self.left.set()
            raise
        finally:
            gone.cancel()
            free.cancel()
        if not free.done():
            self.left.set()

    async def _gone(self, request: Request) -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    async def stream(self, request: Request) -> Response:
        self._note(request)
        if self.answer is not None:
            return self.answer

        async def lines() -> AsyncIterator[bytes]:
            yield b'{"event":1}\n'
            await self._hold(request)
            yield b'{"session":2}\n'

        return StreamingResponse(lines(), media_type="application/x-ndjson")

    async def files(self, request: Request) -> Response:
        self._note(request)
        path = request.query_params["path"]
        if path == "/refused":
            return refusal(ErrorCode.FILE_NOT_FOUND, "no such file")
        return await (self._take(request) if request.method == "PUT" else self._give(request, path))

    async def _take(self, request: Request) -> Response:
        digest = hashlib.sha256()
        self.upload_whole = False
        try:
            if request.query_params["path"] == "/slow":
                await self.release.wait()
            async for chunk in request.stream():
                self.uploaded += len(chunk)
                digest.update(chunk)
                self.waiting.set()
        except Exception:
            self.left.set()
            raise
        self.upload_whole = True
        return JSONResponse({"ok": True, "size": self.uploaded, "path": digest.hexdigest()})

    async def _give(self, request: Request, path: str) -> Response:
        size = int(path.rpartition("-")[2])

        async def pieces() -> AsyncIterator[bytes]:
            sent = 0
            while sent < size:
                piece = bytes(min(256 * 1024, size - sent))
                yield piece
                sent += len(piece)
                if path.startswith("/cut") and sent >= size // 2:
                    raise ConnectionResetError("the node dies")
                if path.startswith("/held"):
                    await self._hold(request)

        return StreamingResponse(pieces(), headers={"content-length": str(size)}, media_type="application/octet-stream")


class Lines(logging.Handler):
    """What a logger says, to be waited for."""

    def __init__(self, name: str) -> None:
        super().__init__(logging.INFO)
        self._logger = logging.getLogger(name)
        self._records: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()

    def emit(self, record: logging.LogRecord) -> None:
        self._records.put(record)

    def next(self) -> logging.LogRecord:
        return self._records.get(timeout=10)

    def __enter__(self) -> "Lines":
        self._level = self._logger.level
        self._logger.setLevel(logging.INFO)
        self._logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)
        self._logger.setLevel(self._level)


class EdgeServer(QuietServer, Server):
    """The gateway's own server, without signals."""


@dataclass
class Edge:
    """A running edge."""

    url: str
    services: FakeServices
    node: FakeNode
    loop: Loop
    gateway: Gateway

    def reset(self) -> None:
        """Fakes as they were at the start, for the next test; calls of the last one keep what they hold."""
        self.services.__dict__.update(FakeServices(node_url=self.node_home).__dict__)
        self.node.__dict__.update(FakeNode().__dict__)

    node_home: str = ""


@contextlib.contextmanager
def running_edge(**bounds: Any) -> Iterator[Edge]:
    """Gateway edge, fake services and fake node, until the ``with`` block ends."""
    services = FakeServices()
    node = FakeNode()
    made: list[Gateway] = []
    with running_loop() as loop, contextlib.ExitStack() as stack:
        services.node_url = stack.enter_context(served(loop, plain(node.app())))
        upstream = NodeClient()
        loop.call(upstream.__aenter__())
        stack.callback(lambda: loop.call(upstream.__aexit__(None, None, None)))

        async def make() -> Server:
            made.append(build_app(services.assembled(), upstream, **bounds))
            return EdgeServer(made[0])

        url = stack.enter_context(served(loop, make))
        yield Edge(url, services, node, loop, made[0], services.node_url)


def body_of(response: Any) -> ErrorBody:
    """The error in an answer, checked for its one shape."""
    body = ErrorBody.model_validate_json(response.content)
    assert response.headers["content-type"] == "application/json"
    assert body.request_id == response.headers["x-request-id"]
    assert json.loads(response.content)["error"]
    return body
