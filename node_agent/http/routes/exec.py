"""Exec sessions: start, read, feed, signal."""

import asyncio
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
from node_agent.errors import ApiError, bad_field
from node_agent.exec.session import Session
from node_agent.exec.sessions import wait_until
from node_agent.http.context import MAX_GENERATION, Parts, PartsOf, answer, blocking, body, disconnected
from node_agent.http.context import parts as parts_of
from node_agent.http.middleware import send_error

router = APIRouter()

HEARTBEAT = 10.0  # a silent stream shows a sign of life this often (seconds)

# Longer waits are cut, not refused: clients in the field ask for 30 s.
Wait = Annotated[float, Query(ge=0)]
After = Annotated[int, Query(ge=0, le=MAX_GENERATION)]


async def _events(parts: Parts, session: Session, after: int, limit: int) -> ExecEvents:
    read = partial(session.events, after, limit, limits.MAX_EVENT_BYTES_PER_READ)
    try:
        return await blocking(parts.executor, session.sandbox_id, read)
    except FileNotFoundError:
        raise ApiError(ErrorCode.EXEC_NOT_FOUND, f"exec session {session.id} was dropped while it was read") from None


async def _answer(parts: Parts, events: ExecEvents) -> Response:
    if len(events.events) < 8:
        return answer(events)
    # Megabytes of JSON are made on a thread, so that nobody else waits for them.
    content = await asyncio.get_running_loop().run_in_executor(parts.executor, events.model_dump_json)
    return Response(content, media_type="application/json")


def _has_news(parts: Parts, session: Session, after: int) -> bool:
    return session.last_sequence > after or not session.running or parts.sessions.closing


@router.post("/v1/sandboxes/{sandbox_id}/exec")
async def start(
    sandbox_id: str, parts: PartsOf, order: ExecOrder = body(ExecOrder), wait_seconds: Wait = 0
) -> Response:
    """Starts a process.  With ``wait_seconds`` it answers at its end, or with what came until then."""
    runtime, _ = parts.registry.running(sandbox_id, order.generation)
    session = parts.sessions.start(runtime, sandbox_id, order)
    wait = min(wait_seconds, limits.MAX_LONG_POLL)
    if wait > 0:
        await wait_until(session, lambda: not session.running or parts.sessions.closing, wait)
    return await _answer(parts, await _events(parts, session, 0, limits.MAX_EVENTS_PER_READ))


@router.get("/v1/exec/{session_id}")
async def get(session_id: str, parts: PartsOf) -> Response:
    """Where the session stands."""
    return answer(ExecEnvelope(session=parts.sessions.get(session_id).snapshot()))


@router.get("/v1/exec/{session_id}/events")
async def events(
    session_id: str,
    parts: PartsOf,
    after: After = 0,
    limit: Annotated[int, Query(ge=1)] = limits.MAX_EVENTS_PER_READ,
    wait_seconds: Wait = 0,
) -> Response:
    """Events after ``after``; waits for one while there is none and the session runs."""
    session = parts.sessions.get(session_id)
    wait = min(wait_seconds, limits.MAX_LONG_POLL)
    if wait > 0:
        await wait_until(session, lambda: _has_news(parts, session, after), wait)
    return await _answer(parts, await _events(parts, session, after, min(limit, limits.MAX_EVENTS_PER_READ)))


@router.post("/v1/exec/{session_id}/stdin")
async def stdin(session_id: str, parts: PartsOf, wish: StdinRequest = body(StdinRequest)) -> Response:
    """Feeds the process; after its end input is dropped."""
    session = await parts.sessions.write(session_id, wish.to_bytes(), eof=wish.eof)
    return answer(ExecEnvelope(session=session.snapshot()))


@router.post("/v1/exec/{session_id}/close-stdin")
async def close_stdin(session_id: str, parts: PartsOf) -> Response:
    """Ends input.  Idempotent."""
    session = await parts.sessions.close_stdin(session_id)
    return answer(ExecEnvelope(session=session.snapshot()))


@router.post("/v1/exec/{session_id}/signal")
async def signal(session_id: str, parts: PartsOf, wish: SignalRequest = body(SignalRequest)) -> Response:
    """Sends a signal to the process group."""
    session = await parts.sessions.signal(session_id, wish.signal)
    return answer(ExecEnvelope(session=session.snapshot()))


class EventStream:
    """``GET /v1/exec/{session_id}/stream?after=``: NDJSON of `StreamLine` until the final session.

    Raw ASGI: each batch of events is one write.  A stream that cannot be finished is broken off, never ended clean.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        request = Request(scope, receive)
        parts = parts_of(request)
        try:
            after = _after(request)
            session = parts.sessions.get(scope["path_params"]["session_id"])
        except ApiError as error:
            await send_error(send, error)
            return
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


async def _pour(parts: Parts, session: Session, after: int, send: Send) -> bool:
    """Whether the stream came to the session's end."""
    while not parts.sessions.closing:
        try:
            batch = await _events(parts, session, after, limits.MAX_EVENTS_PER_READ)
        except ApiError:
            return False  # the history was dropped meanwhile: the stream is broken off
        lines = [StreamLine(event=event) for event in batch.events]
        if batch.events:
            after = batch.events[-1].sequence
        last = not batch.events and batch.session.status != "running"
        if last:
            lines.append(StreamLine(session=batch.session))
        if lines:
            await _send_lines(send, lines)
        if last:
            return True
        if not lines and not await wait_until(session, partial(_has_news, parts, session, after), HEARTBEAT):
            await _send_lines(send, [StreamLine(session=session.snapshot())])
    return False


async def _send_lines(send: Send, lines: list[StreamLine]) -> None:
    content = b"".join(line.model_dump_json(exclude_none=True).encode() + b"\n" for line in lines)
    await send({"type": "http.response.body", "body": content, "more_body": True})


def _after(request: Request) -> int:
    text = request.query_params.get("after", "0")
    if not text.isdecimal() or int(text) > MAX_GENERATION:
        raise bad_field("after", "must be a whole number from 0 up")
    return int(text)
