"""The node's HTTP app: its routes, the guards in front of them, and the one shape in which errors are answered.

A request passes `Authenticate` and `LimitBody`, then its route.  Both are pure ASGI, so that streams are not touched:
the framework's own base class for middleware buffers and slows them.
"""

import hmac
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.wire import limits
from gateway.wire.errors import ErrorCode
from gateway.wire.nodes import NodeHealth
from node_agent.errors import NodeError
from node_agent.http.context import NodeParts, json_response, refused_fields
from node_agent.http.routes import exec as exec_routes
from node_agent.http.routes import sandboxes
from node_agent.http.routes.files import FileTransfer

log = logging.getLogger(__name__)

OPEN_PATHS: Final = frozenset({"/healthz"})
FILE_PATH: Final = re.compile(r"/v1/sandboxes/[^/]+/files")
CLIENT_GONE: Final = 499  # nobody reads it


@dataclass(frozen=True)
class Standing:
    """How the node stands with its gateway."""

    node_id: str | None
    state: Literal["starting", "ready", "draining"]


def build_app(
    parts: NodeParts, *, control_token: Callable[[], str | None], standing: Callable[[], Standing]
) -> FastAPI:
    """Build the app.

    Args:
        parts: what the routes work with.
        control_token: returns the token that callers have to show; ``None`` refuses every call.
        standing: returns what the health check answers.
    """
    app = FastAPI(title="Sandbox node", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.parts = parts

    @app.get("/healthz")
    async def healthz() -> Response:
        now = standing()
        return json_response(NodeHealth(ok=True, node_id=now.node_id, state=now.state))

    app.include_router(sandboxes.router)
    app.include_router(exec_routes.router)
    app.router.routes.append(Route("/v1/exec/{session_id}/stream", exec_routes.EventStream(), methods=["GET"]))
    app.router.routes.append(Route("/v1/sandboxes/{sandbox_id}/files", FileTransfer(), methods=["GET", "PUT"]))
    app.add_exception_handler(NodeError, _on_node_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_no_route)
    app.add_exception_handler(ClientDisconnect, _on_gone)
    app.add_exception_handler(Exception, _on_bug)
    app.add_middleware(LimitBody)
    app.add_middleware(Authenticate, control_token=control_token)
    return app


# -- guards -----------------------------------------------------------------------------------------------------------


class Authenticate:
    """Refuses every request that does not show the control token; only the health check is open.

    Before registration there is no token, and everybody is refused.
    """

    def __init__(self, app: ASGIApp, control_token: Callable[[], str | None]) -> None:
        self._app = app
        self._control_token = control_token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; see ASGI."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._authentic(scope):
            await self._app(scope, receive, send)
            return
        message = "show the node's control token as 'Authorization: Bearer …'; the gateway got it at registration"
        response = _error_response(NodeError(ErrorCode.UNAUTHORIZED, message))
        response.headers["www-authenticate"] = "Bearer"
        await response(scope, receive, send)

    def _authentic(self, scope: Scope) -> bool:
        expected = self._control_token()
        kind, _, shown = Headers(scope=scope).get("authorization", "").partition(" ")
        if not expected or kind.lower() != "bearer":
            return False
        return hmac.compare_digest(shown.strip().encode(), expected.encode())


class LimitBody:
    """Refuses a body over the bound: at once where its length is announced, else while it is read."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; see ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        bound = limits.MAX_FILE_BODY if FILE_PATH.fullmatch(scope["path"]) else limits.MAX_JSON_BODY
        announced = Headers(scope=scope).get("content-length", "0")
        if announced.isdecimal() and int(announced) > bound:
            await _error_response(_too_large(bound))(scope, receive, send)
            return
        received = 0

        async def bounded() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > bound:
                raise _too_large(bound)
            return message

        await self._app(scope, bounded, send)


def _too_large(bound: int) -> NodeError:
    return NodeError(ErrorCode.PAYLOAD_TOO_LARGE, f"the body may have {bound} bytes at most")


# -- errors -----------------------------------------------------------------------------------------------------------


def _error_response(error: NodeError, request: Request | None = None) -> Response:
    sandbox_id = request.path_params.get("sandbox_id") if request else None
    return Response(error.json(sandbox_id), error.status, media_type="application/json")


async def _on_node_error(request: Request, error: Exception) -> Response:
    return _error_response(error, request) if isinstance(error, NodeError) else await _on_bug(request, error)


async def _on_invalid(request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        return await _on_bug(request, error)
    # FastAPI's first part of a location says where (query, path); the caller knows.
    return _error_response(refused_fields([{**problem, "loc": problem["loc"][1:]} for problem in error.errors()]))


async def _on_no_route(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    code = ErrorCode.METHOD_NOT_ALLOWED if status == 405 else ErrorCode.NOT_FOUND
    return _error_response(NodeError(code, f"there is no {request.method} {request.url.path} on a node"))


async def _on_gone(_: Request, _error: Exception) -> Response:
    # A caller that left in the middle of its body is no failure of ours, and nobody reads this answer.
    return Response(status_code=CLIENT_GONE)


async def _on_bug(request: Request, error: Exception) -> Response:
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return _error_response(NodeError(ErrorCode.INTERNAL, "the node agent failed on this request; its log says why"))
