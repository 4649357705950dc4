"""Sandboxes: create, find, list, delete, pause, resume, restart; their output and their use of resources."""

from typing import Annotated, Final

from fastapi import Query, Request, Response
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.errors import ApiError
from gateway.http.proxy import Upload, download, upload, while_connected
from gateway.http.routes.parameters import (
    Context,
    Edge,
    FileQuery,
    ListQuery,
    LogQuery,
    SandboxPath,
    edge_in,
    new_router,
    read_query,
    require_sandbox_id,
)
from gateway.node_client import CALL_TIMEOUT, IDLE_TIMEOUT, NodeCall, forwarded, segment
from gateway.services.ports import Route
from gateway.wire import limits
from gateway.wire.sandboxes import (
    DeleteAnswer,
    LogChunk,
    SandboxEnvelope,
    SandboxList,
    SandboxSpec,
    Usage,
)
from gateway.wire.states import SandboxState

MAX_PAGE_BYTES: Final = 8 * limits.MIB  # clients in the field read 16 MiB at most

router = new_router("sandboxes")


@router.post("/v1/sandboxes", status_code=201, responses={200: {"model": SandboxEnvelope, "description": "Was there"}})
async def create_sandbox(spec: SandboxSpec, response: Response, edge: Context) -> SandboxEnvelope:
    """Create a sandbox; answers when it runs.

    Idempotent by id and equal spec: send it again after a retryable error, or when no answer came.  A create that
    takes long goes on behind its retryable answer.  Without an `id` the service makes one, and a create that is refused
    leaves nothing.
    """
    envelope = await _created(edge, spec)
    if envelope.recovered:
        response.status_code = 200
    return envelope


async def _created(edge: Edge, spec: SandboxSpec) -> SandboxEnvelope:
    sandboxes = edge.services.sandboxes
    try:
        return await sandboxes.create(spec)
    except ApiError:
        if "id" not in spec.model_fields_set:
            # The same body sent again gets another id, so nobody would ever ask for what goes on behind this refusal.
            await sandboxes.delete(spec.id)
        raise


@router.get("/v1/sandboxes", response_model=SandboxList)
async def list_sandboxes(query: Annotated[ListQuery, Query()], edge: Context) -> Response:
    """List sandboxes, oldest first, page by page.  Deleted ones only where `state` asks for them.

    A page may hold fewer than `limit` where the specs are large.
    """
    limit = query.limit
    while True:
        page = await edge.services.sandboxes.page(
            labels=query.labels or None, state=query.state, limit=limit, cursor=query.cursor
        )
        content = page.model_dump_json()
        if len(content) <= MAX_PAGE_BYTES or limit == 1:
            return Response(content, media_type="application/json")
        limit = max(1, min(limit, len(page.sandboxes)) // 2)


@router.get("/v1/sandboxes/{sandbox_id}")
async def get_sandbox(sandbox_id: SandboxPath, edge: Context) -> SandboxEnvelope:
    """Get one sandbox; one that was deleted within the last day is still told, with its reason."""
    return SandboxEnvelope(sandbox=await edge.services.sandboxes.get(sandbox_id))


@router.delete(
    "/v1/sandboxes/{sandbox_id}",
    responses={202: {"model": DeleteAnswer, "description": "The node has yet to confirm"}},
)
async def delete_sandbox(sandbox_id: SandboxPath, response: Response, edge: Context) -> DeleteAnswer:
    """Delete a sandbox, in every state.  An id that is not there is fine too."""
    record = await edge.services.sandboxes.delete(sandbox_id)
    if record is not None and record.state is SandboxState.DELETING:
        response.status_code = 202
    return DeleteAnswer(deleted=record if record is not None else False)


@router.post("/v1/sandboxes/{sandbox_id}/pause")
async def pause_sandbox(sandbox_id: SandboxPath, edge: Context) -> SandboxEnvelope:
    """Freeze all processes of a sandbox.  Idempotent."""
    return SandboxEnvelope(sandbox=await edge.services.sandboxes.pause(sandbox_id))


@router.post("/v1/sandboxes/{sandbox_id}/resume")
async def resume_sandbox(sandbox_id: SandboxPath, edge: Context) -> SandboxEnvelope:
    """Let a paused sandbox go on.  Idempotent; an exec or a file does it by itself."""
    return SandboxEnvelope(sandbox=await edge.services.sandboxes.resume(sandbox_id))


@router.post("/v1/sandboxes/{sandbox_id}/restart")
async def restart_sandbox(sandbox_id: SandboxPath, edge: Context) -> SandboxEnvelope:
    """Start a new generation of a sandbox with the same workspace."""
    return SandboxEnvelope(sandbox=await edge.services.sandboxes.restart(sandbox_id))


@router.get("/v1/sandboxes/{sandbox_id}/logs", response_model=LogChunk)
async def sandbox_logs(
    sandbox_id: SandboxPath, query: Annotated[LogQuery, Query()], request: Request, edge: Context
) -> Response:
    """Read a piece of the first process's output, while it runs and after."""
    return await _from_node(edge, request, sandbox_id, "logs", query.model_dump())


@router.get("/v1/sandboxes/{sandbox_id}/usage", response_model=Usage)
async def sandbox_usage(sandbox_id: SandboxPath, request: Request, edge: Context) -> Response:
    """What the sandbox uses now.  A paused one stays paused."""
    return await _from_node(edge, request, sandbox_id, "usage", {})


async def _from_node(
    edge: Edge, request: Request, sandbox_id: str, what: str, query: dict[str, str | int | float]
) -> Response:
    route = await edge.services.sandboxes.route(sandbox_id, running=False)
    path = f"/v1/sandboxes/{segment(sandbox_id)}/{what}"
    call = NodeCall("GET", path, {**query, "generation": route.generation}, headers=forwarded(request.scope))
    content = await while_connected(request.receive, edge.upstream.bytes(route.node, call))
    return Response(content, media_type="application/json")


class Files:
    """``PUT`` and ``GET /v1/sandboxes/{sandbox_id}/files?path=``; a paused sandbox is resumed first."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        edge = edge_in(scope)
        sandbox_id = require_sandbox_id(scope["path_params"]["sandbox_id"])
        path = read_query(scope, FileQuery).path
        route = await edge.services.sandboxes.route(sandbox_id)

        def touch() -> None:
            edge.services.sandboxes.touch(sandbox_id)

        if scope["method"] == "GET":
            call = _call("GET", scope, route, path)
            await download(edge.upstream, route.node, call, receive, send, on_chunk=touch)
            return

        def put(body: Upload) -> NodeCall:
            return _call("PUT", scope, route, path, body)

        answer = await upload(edge.upstream, route.node, put, receive, on_chunk=touch)
        await Response(answer, media_type="application/json")(scope, receive, send)


def _call(method: str, scope: Scope, route: Route, path: str, body: Upload | None = None) -> NodeCall:
    headers = forwarded(scope)
    if body is not None:
        headers["Content-Type"] = "application/octet-stream"
        length = Headers(scope=scope).get("content-length")
        if length is not None:
            headers["Content-Length"] = length
    return NodeCall(
        method,
        f"/v1/sandboxes/{segment(route.sandbox_id)}/files",
        {"path": path, "generation": route.generation},
        body.chunks() if body is not None else None,
        headers,
        timeout=IDLE_TIMEOUT,
        begin=CALL_TIMEOUT if body is None else None,
    )
