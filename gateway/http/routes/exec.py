"""Exec sessions: start, get, events by long-poll and as a stream, input and signals.

The route to a session is in its id.  Answers of nodes are passed on unchanged.
"""

from collections.abc import Mapping
from typing import Annotated, Final
from uuid import uuid4

from fastapi import Query, Request, Response
from starlette.types import Receive, Scope, Send

from gateway.core.model import Route
from gateway.errors import ApiError
from gateway.http.audit import add_facts
from gateway.http.proxy import download, forwarded, while_connected
from gateway.http.routes.parameters import (
    Caller,
    EventsQuery,
    GatewayParts,
    Parts,
    SandboxPath,
    SessionId,
    SessionPath,
    StartQuery,
    StreamQuery,
    new_router,
    parse_session_id,
    parts_of,
    read_query,
)
from gateway.node_client import CALL_TIMEOUT, IDLE_TIMEOUT, NodeCall, segment, with_wait
from gateway.wire import limits
from gateway.wire.errors import ErrorCode
from gateway.wire.exec import ExecEnvelope, ExecEvents, ExecRequest, SignalRequest, StdinRequest
from gateway.wire.nodes import ExecOrder

router = new_router("exec")

JSON = "application/json"
LOOK_TIMEOUT: Final = 4.0  # for asking whether a start without an answer took effect


@router.post("/v1/sandboxes/{sandbox_id}/exec", status_code=201, response_model=ExecEvents)
async def start_exec(
    sandbox_id: SandboxPath,
    body: ExecRequest,
    query: Annotated[StartQuery, Query()],
    request: Request,
    caller: Caller,
    parts: GatewayParts,
) -> Response:
    """Start a process in a running sandbox; a paused one is resumed first.

    With `wait_seconds` the answer carries the events so far, so that a quick command costs one round trip.  An error
    whose outcome is unknown says so and is not retryable.
    """
    name = query.session or uuid4().hex
    wait = min(query.wait_seconds, limits.MAX_LONG_POLL)

    async def send(route: Route) -> bytes:
        parts.services.policies.admit_exec(caller, body.user, route.isolation)
        session_id = f"exec-{name}.{route.generation}.{sandbox_id}"
        add_facts(request.scope, target={"session_id": session_id})
        order = ExecOrder(session_id=session_id, generation=route.generation, exec=body)
        call = NodeCall(
            "POST",
            f"/v1/sandboxes/{segment(sandbox_id)}/exec",
            {"wait_seconds": wait},
            order.model_dump_json().encode(),
            forwarded(request.scope),
            timeout=with_wait(wait, CALL_TIMEOUT - LOOK_TIMEOUT),
            repeatable=False,
        )
        return await while_connected(request.receive, _started(parts, route, call, session_id))

    return Response(await parts.services.sandboxes.call(sandbox_id, send), 201, media_type=JSON)


async def _started(parts: Parts, route: Route, call: NodeCall, session_id: str) -> bytes:
    """Return the node's answer to a start; where none came, ask the node once whether it has the session."""
    try:
        return await parts.node_client.fetch(route.node, call)
    except ApiError as error:
        if error.retryable or error.code not in {ErrorCode.NODE_UNREACHABLE, ErrorCode.TIMEOUT}:
            raise
        path = f"/v1/exec/{segment(session_id)}/events"
        look = NodeCall("GET", path, headers=call.headers, timeout=LOOK_TIMEOUT)
        try:
            return await parts.node_client.fetch(route.node, look)
        except ApiError as second:
            # "Not found" proves nothing: the order may still arrive.  The first error stands.
            if second.code is not ErrorCode.TIMEOUT:
                raise error from None
            silent = f"{error.message}; asked about the session, it gave no answer for another {LOOK_TIMEOUT:g} s"
            raise ApiError(error.code, silent, retryable=False) from None


@router.get("/v1/exec/{session_id}", response_model=ExecEnvelope)
async def get_exec(session: SessionPath, request: Request, parts: GatewayParts) -> Response:
    """Get a session; it can be read for an hour after its end."""
    return await _ask(parts, request, session, "")


@router.get("/v1/exec/{session_id}/events", response_model=ExecEvents)
async def exec_events(
    session: SessionPath, query: Annotated[EventsQuery, Query()], request: Request, parts: GatewayParts
) -> Response:
    """Read events, in order and without gaps; waits while there are none and the session runs."""
    wait = min(query.wait_seconds, limits.MAX_LONG_POLL)
    limit = min(query.limit, limits.MAX_EVENTS_PER_READ)
    return await _ask(
        parts, request, session, "/events", {"after": query.after, "limit": limit, "wait_seconds": wait}, wait
    )


@router.post("/v1/exec/{session_id}/stdin", response_model=ExecEnvelope)
async def write_stdin(session: SessionPath, body: StdinRequest, request: Request, parts: GatewayParts) -> Response:
    """Write input.  Input after the end of the process is discarded, which is not an error."""
    return await _order(parts, request, session, "/stdin", body.model_dump_json(exclude_none=True).encode())


@router.post("/v1/exec/{session_id}/close-stdin", response_model=ExecEnvelope)
async def close_stdin(session: SessionPath, request: Request, parts: GatewayParts) -> Response:
    """End the input.  Idempotent."""
    return await _order(parts, request, session, "/close-stdin", None)


@router.post("/v1/exec/{session_id}/signal", response_model=ExecEnvelope)
async def signal_exec(session: SessionPath, body: SignalRequest, request: Request, parts: GatewayParts) -> Response:
    """Send a signal to the process group of a session.  After its end it does nothing."""
    return await _order(parts, request, session, "/signal", body.model_dump_json().encode())


async def _ask(
    parts: Parts,
    request: Request,
    session: SessionId,
    what: str,
    query: Mapping[str, str | int | float] | None = None,
    wait: float = 0.0,
) -> Response:
    """Read from a session; its sandbox may have ended, and a paused one stays paused."""
    path = f"/v1/exec/{segment(session.text)}{what}"
    call = NodeCall("GET", path, query, headers=forwarded(request.scope), timeout=with_wait(wait))

    async def send(route: Route) -> bytes:
        return await while_connected(request.receive, parts.node_client.fetch(route.node, call))

    sandboxes = parts.services.sandboxes
    content = await sandboxes.call(session.sandbox_id, send, generation=session.generation, running=False)
    return Response(content, media_type=JSON)


async def _order(parts: Parts, request: Request, session: SessionId, what: str, body: bytes | None) -> Response:
    """Change a session: input or a signal sent twice differs from once, so nothing is sent again."""
    path = f"/v1/exec/{segment(session.text)}{what}"
    # The node itself waits for room in the process's input.
    timeout = with_wait(limits.MAX_LONG_POLL if what == "/stdin" else 0.0)
    repeatable = what == "/close-stdin"
    call = NodeCall("POST", path, body=body, headers=forwarded(request.scope), timeout=timeout, repeatable=repeatable)

    async def send(route: Route) -> bytes:
        return await parts.node_client.fetch(route.node, call)

    sandboxes = parts.services.sandboxes
    try:
        # A paused sandbox is resumed; one that has ended still has its sessions.
        content = await sandboxes.call(session.sandbox_id, send, generation=session.generation)
    except ApiError as error:
        if error.code is not ErrorCode.SANDBOX_NOT_RUNNING:
            raise
        content = await sandboxes.call(session.sandbox_id, send, generation=session.generation, running=False)
    return Response(content, media_type=JSON)


class ExecStream:
    """Serve ``GET /v1/exec/{session_id}/stream``: the events as NDJSON until the end.  A raw route."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        parts = parts_of(scope)
        session = parse_session_id(scope, scope["path_params"]["session_id"])
        query = read_query(scope, StreamQuery)
        sandboxes = parts.services.sandboxes
        route = await sandboxes.route(session.sandbox_id, generation=session.generation, running=False)
        path = f"/v1/exec/{segment(session.text)}/stream"
        after, headers = {"after": query.after}, forwarded(scope)
        call = NodeCall("GET", path, after, headers=headers, timeout=IDLE_TIMEOUT, begin=CALL_TIMEOUT)
        await download(
            parts.node_client,
            route.node,
            call,
            receive,
            send,
            lambda: sandboxes.touch(session.sandbox_id),
        )
