"""Orders about sandboxes, and what is asked of one."""

import base64
from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from starlette.responses import Response

from gateway.wire import limits
from gateway.wire.nodes import CreateOrder, OrderAnswer
from gateway.wire.sandboxes import LogChunk, Usage
from gateway.wire.tenants import is_qualified, own_id
from node_agent.errors import bad_field
from node_agent.http.context import MAX_INTEGER, Generation, NodeParts, Parts, json_body, json_response, shielded
from node_agent.runtime.base import Order, Stream
from node_agent.sandboxes import waking
from node_agent.sandboxes.table import NodeSandbox

router = APIRouter()


@router.put("/v1/sandboxes/{sandbox_id}")
async def create(sandbox_id: str, parts: Parts, order: CreateOrder = json_body(CreateOrder)) -> Response:
    """Answer once the sandbox runs.  The create goes on when the caller leaves; the same order attaches to it."""
    if order.spec.id != own_id(sandbox_id) or not is_qualified(sandbox_id):
        raise bad_field("spec.id", f"must be the client's own id of the one in the path, {sandbox_id[:200]}")
    wanted = Order(sandbox_id, order.generation, order.operation_id, order.spec, order.spec.sha256())
    return _order_response(parts, await shielded(parts.sandboxes.create(wanted, order.runtime)))


@router.delete("/v1/sandboxes/{sandbox_id}")
async def delete(
    sandbox_id: str, parts: Parts, generation: Annotated[int, Query(ge=1, le=MAX_INTEGER)]
) -> dict[str, bool]:
    """Delete that generation and older ones; also 200 when there is nothing."""
    await shielded(parts.sandboxes.delete(sandbox_id, generation))
    return {"ok": True}


@router.post("/v1/sandboxes/{sandbox_id}/pause")
async def pause(sandbox_id: str, parts: Parts, generation: Generation = None) -> Response:
    """Freeze all processes, once no file is on its way.  Idempotent."""
    return _order_response(parts, await waking.pause(parts.sandboxes, sandbox_id, generation))


@router.post("/v1/sandboxes/{sandbox_id}/resume")
async def resume(sandbox_id: str, parts: Parts, generation: Generation = None) -> Response:
    """Let all processes go on.  Idempotent."""
    entry = parts.sandboxes.settled(sandbox_id, generation)
    return _order_response(parts, await shielded(parts.sandboxes.resume(entry)))


@router.get("/v1/sandboxes/{sandbox_id}/logs")
async def logs(
    sandbox_id: str,
    parts: Parts,
    stream: Literal["stdout", "stderr"] = "stdout",
    offset: Annotated[int, Query(ge=0, le=MAX_INTEGER)] = 0,
    limit: Annotated[int, Query(ge=1, le=limits.MAX_LOG_CHUNK)] = limits.MAX_LOG_CHUNK,
    generation: Generation = None,
) -> Response:
    """Answer with output of the first process, also after its end."""
    runtime = parts.sandboxes.runtime_of(sandbox_id, generation)
    piece = await parts.blocking(partial(runtime.logs, sandbox_id, Stream(stream), offset, limit))
    end = offset + len(piece.data)
    data = base64.b64encode(piece.data).decode()
    return json_response(LogChunk(stream=stream, offset=offset, next_offset=end, data=data, eof=end >= piece.size))


@router.get("/v1/sandboxes/{sandbox_id}/usage")
async def usage(sandbox_id: str, parts: Parts, generation: Generation = None) -> Response:
    """Answer with what the sandbox uses now."""
    runtime = parts.sandboxes.runtime_of(sandbox_id, generation)
    now = await parts.blocking(partial(runtime.usage, sandbox_id))
    return json_response(
        Usage(memory_mb=now.memory_mb, cpu_seconds=now.cpu_seconds, disk_mb=now.disk_mb, pids=now.pids)
    )


def _order_response(parts: NodeParts, sandbox: NodeSandbox) -> Response:
    live = parts.sessions.live()[sandbox.id]
    return json_response(OrderAnswer(sandbox=sandbox.inventory_item(live)))
