"""Files: one at a time, as raw bytes, streamed both ways.  Raw routes: nothing here holds a whole file."""

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.http.proxy import Upload, download, upload
from gateway.http.routes.context import edge_in, require_sandbox_id
from gateway.http.routes.queries import FileQuery, read_query
from gateway.node_client import CALL_TIMEOUT, IDLE_TIMEOUT, NodeCall, forwarded, segment
from gateway.services.ports import Route


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
