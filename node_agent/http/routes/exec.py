"""Exec sessions: start, read, feed, signal."""

import asyncio
import contextlib
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.wire import limits
from gateway.wire.errors import ErrorCode
from gateway.wire.exec import ExecEnvelope, ExecEvents, SignalRequest, StdinRequest, StreamLine
from gateway.wire.nodes import ExecOrder
from gateway.wire.states import ExecStatus
from node_agent.errors import NodeError
from node_agent.exec.session import Session
from node_agent.http.context import (
    MAX_INTEGER,
    NodeParts,
    Parts,
    disconnected,
    json_body,
    json_response,
    parts_of,
    query_integer,
)
from node_agent.sandboxes.pause_gate import Need
from node_agent.sandboxes.waking import hold_awake

router = APIRouter()

HEARTBEAT = 10.0  # a silent stream shows a sign of life this often (seconds)

# Longer waits are cut, not refused: clients in the field ask for 30 s.
Wait = Annotated[float, Query(ge=0)]
After = Annotated[int, Query(ge=0, le=MAX_INTEGER)]


@router.post("/v1/sandboxes/{sandbox_id}/exec")
async def start(
    sandbox_id: str, parts: Parts, order: ExecOrder = json_body(ExecOrder), wait_seconds: Wait = 0
) -> Response:
    """Start a process.  With ``wait_seconds`` the answer comes at its end, or with the events until then."""
    session = parts.sessions.find(sandbox_id, order) or await _started(parts, sandbox_id, order)
    wait = min(wait_seconds, limits.MAX_LONG_POLL)
    if wait > 0:
        await session.wait_until(lambda: not session.running or parts.sessions.closing, wait)
    return await _events_response(parts, await _events(parts, session, 0, limits.MAX_EVENTS_PER_READ))


async def _started(parts: NodeParts, sandbox_id: str, order: ExecOrder) -> Session:
    """Return a new session; its sandbox is kept awake until its process has begun."""
    hold = await hold_awake(parts.sandboxes, sandbox_id, order.generation, Need.COMMAND)
    with contextlib.ExitStack() as stack:
        stack.callback(hold.release)
        twin = parts.sessions.find(sandbox_id, order)
        session = twin or parts.sessions.start(hold.begin, sandbox_id, order)
        if twin is None:
            stack.pop_all()
    return session


@router.get("/v1/exec/{session_id}")
async def get(session_id: str, parts: Parts) -> Response:
    """Answer with where the session stands."""
    return json_response(ExecEnvelope(session=parts.sessions.get(session_id).snapshot()))


@router.get("/v1/exec/{session_id}/events")
async def events(
    session_id: str,
    parts: Parts,
    after: After = 0,
    limit: Annotated[int, Query(ge=1)] = limits.MAX_EVENTS_PER_READ,
    wait_seconds: Wait = 0,
) -> Response:
    """Answer with events after ``after``; wait for one while there is none and the session runs."""
    session = parts.sessions.get(session_id)
    wait = min(wait_seconds, limits.MAX_LONG_POLL)
    if wait > 0:
        await session.wait_until(lambda: _has_news(parts, session, after), wait)
    return await _events_response(parts, await _events(parts, session, after, min(limit, limits.MAX_EVENTS_PER_READ)))


@router.post("/v1/exec/{session_id}/stdin")
async def stdin(session_id: str, parts: Parts, request: StdinRequest = json_body(StdinRequest)) -> Response:
    """Feed the process; after its end input is dropped."""
    session = await parts.sessions.write(session_id, request.to_bytes(), eof=request.eof)
    return json_response(ExecEnvelope(session=session.snapshot()))


@router.post("/v1/exec/{session_id}/close-stdin")
async def close_stdin(session_id: str, parts: Parts) -> Response:
    """End input.  Idempotent."""
    session = await parts.sessions.close_stdin(session_id)
    return json_response(ExecEnvelope(session=session.snapshot()))


@router.post("/v1/exec/{session_id}/signal")
async def signal(session_id: str, parts: Parts, request: SignalRequest = json_body(SignalRequest)) -> Response:
    """Send a signal to the process group.  A paused sandbox is resumed, so that it is delivered."""
    session = parts.sessions.get(session_id)
    with contextlib.ExitStack() as stack:
        if session.running:
            # Where the sandbox has ended, a signal does nothing.
            with contextlib.suppress(NodeError):
                hold = await hold_awake(parts.sandboxes, session.sandbox_id, session.generation, Need.COMMAND)
                stack.callback(hold.release)
        session = await parts.sessions.signal(session_id, request.signal)
    return json_response(ExecEnvelope(session=session.snapshot()))


async def _events(parts: NodeParts, session: Session, after: int, limit: int) -> ExecEvents:
    try:
        return await parts.blocking(partial(session.events, after, limit, limits.MAX_EVENT_BYTES_PER_READ))
    except FileNotFoundError:
        raise NodeError(ErrorCode.EXEC_NOT_FOUND, f"exec session {session.id} was dropped while it was read") from None


async def _events_response(parts: NodeParts, events: ExecEvents) -> Response:
    if len(events.events) < 8:
        return json_response(events)
    # Megabytes of JSON are made on a thread, so that nobody else waits for them.
    content = await parts.blocking(events.model_dump_json)
    return Response(content, media_type="application/json")


def _has_news(parts: NodeParts, session: Session, after: int) -> bool:
    return session.last_sequence > after or not session.running or parts.sessions.closing


class EventStream:
    """``GET /v1/exec/{session_id}/stream?after=``: NDJSON of `StreamLine` until the final session.

    Raw ASGI: each batch of events is one write.  A stream that cannot be finished is broken off, never ended clean.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; see ASGI."""
        request = Request(scope, receive)
        parts = parts_of(request)
        after = query_integer(request, "after", least=0) or 0
        session = parts.sessions.get(scope["path_params"]["session_id"])
        headers = [(b"content-type", b"application/x-ndjson"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        gone = asyncio.ensure_future(disconnected(receive))
        pour = asyncio.ensure_future(_pour(parts, session, after, send))
        await asyncio.wait([gone, pour], return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        if not pour.done():
            pour.cancel()
        elif pour.result():
            await send({"type": "http.response.body", "body": b""})


async def _pour(parts: NodeParts, session: Session, after: int, send: Send) -> bool:
    """Send batches of events until the session's end; return whether it was reached."""
    while not parts.sessions.closing:
        try:
            batch = await _events(parts, session, after, limits.MAX_EVENTS_PER_READ)
        except NodeError:
            return False  # the history was dropped meanwhile: the stream is broken off
        lines = [StreamLine(event=event) for event in batch.events]
        if batch.events:
            after = batch.events[-1].sequence
        last = not batch.events and batch.session.status is not ExecStatus.RUNNING
        if last:
            lines.append(StreamLine(session=batch.session))
        if lines:
            await _send_lines(send, lines)
        if last:
            return True
        if not lines and not await session.wait_until(partial(_has_news, parts, session, after), HEARTBEAT):
            await _send_lines(send, [StreamLine(session=session.snapshot())])
    return False


async def _send_lines(send: Send, lines: list[StreamLine]) -> None:
    content = b"".join(line.model_dump_json(exclude_none=True).encode() + b"\n" for line in lines)
    await send({"type": "http.response.body", "body": content, "more_body": True})
