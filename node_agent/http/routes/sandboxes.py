"""Orders about sandboxes, and what is asked of one."""

import base64
from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from starlette.responses import Response

from gateway.wire import limits
from gateway.wire.nodes import CreateOrder, OrderAnswer
from gateway.wire.sandboxes import LogChunk, Usage
from node_agent.errors import bad_field
from node_agent.http.context import MAX_GENERATION, Generation, Parts, PartsOf, answer, blocking, body, settled
from node_agent.runtime.base import Order, Stream
from node_agent.sandboxes.model import Sandbox, inventory_item

router = APIRouter()


def _told(parts: Parts, sandbox: Sandbox) -> Response:
    live = parts.sessions.live()[sandbox.order.sandbox_id]
    return answer(OrderAnswer(sandbox=inventory_item(sandbox, live)))


@router.put("/v1/sandboxes/{sandbox_id}")
async def create(sandbox_id: str, parts: PartsOf, order: CreateOrder = body(CreateOrder)) -> Response:
    """Answers once the sandbox runs; goes on when the caller leaves; the same order attaches to it."""
    if order.spec.id != sandbox_id:
        raise bad_field("spec.id", f"must be the id in the path, {sandbox_id}")
    wanted = Order(sandbox_id, order.generation, order.operation_id, order.spec, order.spec.sha256())
    return _told(parts, await settled(parts.registry.create(wanted, order.runtime)))


@router.delete("/v1/sandboxes/{sandbox_id}")
async def delete(
    sandbox_id: str, parts: PartsOf, generation: Annotated[int, Query(ge=1, le=MAX_GENERATION)]
) -> dict[str, bool]:
    """Removes that generation and older ones; also 200 when there is nothing."""
    await settled(parts.registry.delete(sandbox_id, generation))
    return {"ok": True}


@router.post("/v1/sandboxes/{sandbox_id}/pause")
async def pause(sandbox_id: str, parts: PartsOf, generation: Generation = None) -> Response:
    """Freezes all processes.  Idempotent."""
    return _told(parts, await settled(parts.registry.pause(sandbox_id, generation)))


@router.post("/v1/sandboxes/{sandbox_id}/resume")
async def resume(sandbox_id: str, parts: PartsOf, generation: Generation = None) -> Response:
    """Lets all processes go on.  Idempotent."""
    return _told(parts, await settled(parts.registry.resume(sandbox_id, generation)))


@router.get("/v1/sandboxes/{sandbox_id}/logs")
async def logs(
    sandbox_id: str,
    parts: PartsOf,
    stream: Literal["stdout", "stderr"] = "stdout",
    offset: Annotated[int, Query(ge=0, le=MAX_GENERATION)] = 0,
    limit: Annotated[int, Query(ge=1, le=limits.MAX_LOG_CHUNK)] = limits.MAX_LOG_CHUNK,
    generation: Generation = None,
) -> Response:
    """Output of the first process, also after its end."""
    sandbox = parts.registry.find(sandbox_id, generation)
    read = partial(parts.registry.engine(sandbox).logs, sandbox_id, Stream(stream), offset, limit)
    piece = await blocking(parts.executor, sandbox_id, read)
    end = offset + len(piece.data)
    data = base64.b64encode(piece.data).decode()
    return answer(LogChunk(stream=stream, offset=offset, next_offset=end, data=data, eof=end >= piece.size))


@router.get("/v1/sandboxes/{sandbox_id}/usage")
async def usage(sandbox_id: str, parts: PartsOf, generation: Generation = None) -> Response:
    """What the sandbox uses now."""
    sandbox = parts.registry.find(sandbox_id, generation)
    now = await blocking(parts.executor, sandbox_id, partial(parts.registry.engine(sandbox).usage, sandbox_id))
    return answer(Usage(memory_mb=now.memory_mb, cpu_seconds=now.cpu_seconds, disk_mb=now.disk_mb, pids=now.pids))
