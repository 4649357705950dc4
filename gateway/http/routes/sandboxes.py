"""Sandboxes: create, find, list, delete, pause, resume, restart; their output, use of resources and files.

Files are raw routes, streamed in both directions: nothing here holds a whole file.
"""

from collections.abc import AsyncIterator
from typing import Annotated, Final

from fastapi import Query, Request, Response
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from gateway.core.model import Route
from gateway.errors import ApiError
from gateway.http.audit import add_facts, announce
from gateway.http.proxy import CallerGoneError, download, forwarded, upload, while_connected
from gateway.http.routes.parameters import (
    Caller,
    CreateQuery,
    FileQuery,
    GatewayParts,
    ListQuery,
    LogQuery,
    Parts,
    SandboxPath,
    new_router,
    parse_sandbox_id,
    parts_of,
    read_query,
)
from gateway.http.tenancy import bound_to, record_shown, sees_all
from gateway.node_client import CALL_TIMEOUT, IDLE_TIMEOUT, NodeCall, segment
from gateway.services.scheduler import CreateTerms
from gateway.wire import limits
from gateway.wire.errors import ErrorCode
from gateway.wire.sandboxes import (
    DeleteAnswer,
    LogChunk,
    SandboxEnvelope,
    SandboxList,
    SandboxSpec,
    Usage,
)
from gateway.wire.states import SandboxState
from gateway.wire.tenants import qualified

MAX_PAGE_BYTES: Final = 8 * limits.MIB  # clients in the field read 16 MiB at most

router = new_router("sandboxes")


@router.post("/v1/sandboxes", status_code=201, responses={200: {"model": SandboxEnvelope, "description": "Was there"}})
async def create_sandbox(
    spec: SandboxSpec,
    query: Annotated[CreateQuery, Query()],
    request: Request,
    response: Response,
    caller: Caller,
    parts: GatewayParts,
) -> SandboxEnvelope:
    """Create a sandbox; answers when it runs.

    Idempotent by id and equal spec: send it again after a retryable error, or when no answer came.  A create that
    takes longer than `wait_seconds` continues after its retryable answer, which says what it waits for.  Without an
    `id` the service generates one, and a create that is refused, or whose client leaves, leaves nothing behind.
    """
    add_facts(
        request.scope,
        target={"sandbox_id": qualified(caller.tenant, spec.id)},
        image=spec.image,
        spec_sha256=spec.sha256(),
    )
    policies = parts.services.policies
    terms = CreateTerms(
        tenant=caller.tenant,
        default_ttl=policies.admit(caller, spec),
        wait_seconds=query.wait_seconds,
        quota=policies.quota_for(caller),
    )
    await announce(request.scope)
    if "id" in spec.model_fields_set:
        envelope = await parts.services.sandboxes.create(spec, terms)
    else:
        envelope = await _created_without_id(parts, request, spec, terms)
    if envelope.recovered:
        response.status_code = 200
    return SandboxEnvelope(sandbox=record_shown(caller, envelope.sandbox), recovered=envelope.recovered)


async def _created_without_id(parts: Parts, request: Request, spec: SandboxSpec, terms: CreateTerms) -> SandboxEnvelope:
    """Create a sandbox whose id nobody knows before the answer; without the answer nobody ever will."""
    sandboxes = parts.services.sandboxes
    try:
        return await while_connected(request.receive, sandboxes.create(spec, terms))
    except (ApiError, CallerGoneError):
        await sandboxes.delete(qualified(terms.tenant, spec.id))
        raise


@router.get("/v1/sandboxes", response_model=SandboxList)
async def list_sandboxes(query: Annotated[ListQuery, Query()], caller: Caller, parts: GatewayParts) -> Response:
    """List sandboxes, oldest first, page by page; deleted ones only when `state` asks for them.

    A page may hold fewer than `limit` when the specs are large.  Clients see their tenant's alone; `tenant` is for
    operators.
    """
    if query.tenant is not None and not sees_all(caller):
        raise ApiError(ErrorCode.FORBIDDEN, "tenant: only an operator's token may ask for a tenant's sandboxes")
    tenant = query.tenant or bound_to(caller)
    limit = query.limit
    while True:
        page = await parts.services.sandboxes.page(
            labels=query.labels or None, state=query.state, limit=limit, cursor=query.cursor, tenant=tenant
        )
        shown = [record_shown(caller, record) for record in page.sandboxes]
        content = SandboxList(sandboxes=shown, next_cursor=page.next_cursor).model_dump_json()
        if len(content) <= MAX_PAGE_BYTES or limit == 1:
            return Response(content, media_type="application/json")
        limit = max(1, min(limit, len(page.sandboxes)) // 2)


@router.get("/v1/sandboxes/{sandbox_id}")
async def get_sandbox(sandbox_id: SandboxPath, caller: Caller, parts: GatewayParts) -> SandboxEnvelope:
    """Get one sandbox; one that was deleted within the last day is still returned, with its reason."""
    return SandboxEnvelope(sandbox=record_shown(caller, await parts.services.sandboxes.get(sandbox_id)))


@router.delete(
    "/v1/sandboxes/{sandbox_id}",
    responses={202: {"model": DeleteAnswer, "description": "The node has yet to confirm"}},
)
async def delete_sandbox(
    sandbox_id: SandboxPath, request: Request, response: Response, caller: Caller, parts: GatewayParts
) -> DeleteAnswer:
    """Delete a sandbox, in any state.  An unknown id is not an error."""
    record = await parts.services.sandboxes.delete(sandbox_id)
    if record is None:
        add_facts(request.scope, code=ErrorCode.SANDBOX_NOT_FOUND.value)
    if record is not None and record.state is SandboxState.DELETING:
        response.status_code = 202
    return DeleteAnswer(deleted=record_shown(caller, record) if record is not None else False)


@router.post("/v1/sandboxes/{sandbox_id}/pause")
async def pause_sandbox(sandbox_id: SandboxPath, caller: Caller, parts: GatewayParts) -> SandboxEnvelope:
    """Freeze all processes of a sandbox, once no file is on its way.  Idempotent."""
    return SandboxEnvelope(sandbox=record_shown(caller, await parts.services.sandboxes.pause(sandbox_id)))


@router.post("/v1/sandboxes/{sandbox_id}/resume")
async def resume_sandbox(sandbox_id: SandboxPath, caller: Caller, parts: GatewayParts) -> SandboxEnvelope:
    """Thaw a paused sandbox.  Idempotent; an exec or a file transfer does it implicitly."""
    return SandboxEnvelope(sandbox=record_shown(caller, await parts.services.sandboxes.resume(sandbox_id)))


@router.post("/v1/sandboxes/{sandbox_id}/restart")
async def restart_sandbox(sandbox_id: SandboxPath, caller: Caller, parts: GatewayParts) -> SandboxEnvelope:
    """Start a new generation of a sandbox with the same workspace; policy and quota are checked again."""
    sandboxes, policies = parts.services.sandboxes, parts.services.policies
    default_ttl = policies.admit(caller, (await sandboxes.get(sandbox_id)).spec)
    record = await sandboxes.restart(sandbox_id, policies.quota_for(caller), default_ttl)
    return SandboxEnvelope(sandbox=record_shown(caller, record))


@router.get("/v1/sandboxes/{sandbox_id}/logs", response_model=LogChunk)
async def sandbox_logs(
    sandbox_id: SandboxPath, query: Annotated[LogQuery, Query()], request: Request, parts: GatewayParts
) -> Response:
    """Read a part of the first process's output, while it runs and afterwards."""
    return await _from_node(parts, request, sandbox_id, "logs", query.model_dump())


@router.get("/v1/sandboxes/{sandbox_id}/usage", response_model=Usage)
async def sandbox_usage(sandbox_id: SandboxPath, request: Request, parts: GatewayParts) -> Response:
    """Get the current resource use of a sandbox.  A paused one stays paused."""
    return await _from_node(parts, request, sandbox_id, "usage", {})


async def _from_node(
    parts: Parts, request: Request, sandbox_id: str, what: str, query: dict[str, str | int | float]
) -> Response:
    route = await parts.services.sandboxes.route(sandbox_id, running=False)
    path = f"/v1/sandboxes/{segment(sandbox_id)}/{what}"
    call = NodeCall("GET", path, {**query, "generation": route.generation}, headers=forwarded(request.scope))
    content = await while_connected(request.receive, parts.node_client.fetch(route.node, call))
    return Response(content, media_type="application/json")


class Files:
    """Serve ``PUT`` and ``GET /v1/sandboxes/{sandbox_id}/files?path=``; a paused sandbox is resumed first."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        parts = parts_of(scope)
        sandbox_id = parse_sandbox_id(scope, scope["path_params"]["sandbox_id"])
        path = read_query(scope, FileQuery).path
        route = await parts.services.sandboxes.route(sandbox_id)

        def touch() -> None:
            parts.services.sandboxes.touch(sandbox_id)

        if scope["method"] == "GET":
            await download(parts.node_client, route.node, _file_get(scope, route, path), receive, send, touch)
            return

        def put(chunks: AsyncIterator[bytes]) -> NodeCall:
            return _file_put(scope, route, path, chunks)

        answer = await upload(parts.node_client, route.node, put, receive, touch)
        await Response(answer, media_type="application/json")(scope, receive, send)


def _file_get(scope: Scope, route: Route, path: str) -> NodeCall:
    url, query = _file_in(route, path)
    return NodeCall("GET", url, query, headers=forwarded(scope), timeout=IDLE_TIMEOUT, begin=CALL_TIMEOUT)


def _file_put(scope: Scope, route: Route, path: str, chunks: AsyncIterator[bytes]) -> NodeCall:
    url, query = _file_in(route, path)
    headers = {**forwarded(scope), "Content-Type": "application/octet-stream"}
    length = Headers(scope=scope).get("content-length")
    if length is not None:
        headers["Content-Length"] = length
    return NodeCall("PUT", url, query, chunks, headers, timeout=IDLE_TIMEOUT)


def _file_in(route: Route, path: str) -> tuple[str, dict[str, str | int | float]]:
    return f"/v1/sandboxes/{segment(route.sandbox_id)}/files", {"path": path, "generation": route.generation}
