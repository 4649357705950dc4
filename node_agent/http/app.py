"""The node's HTTP app: routes, one error shape, and the guards in front of them."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.wire.errors import ErrorCode
from gateway.wire.nodes import NodeHealth
from node_agent.errors import ApiError
from node_agent.http.context import Parts, answer, invalid
from node_agent.http.middleware import Authenticate, LimitBody
from node_agent.http.routes import exec as exec_routes
from node_agent.http.routes import sandboxes
from node_agent.http.routes.files import Files

log = logging.getLogger(__name__)

CLIENT_GONE = 499  # nobody reads it


@dataclass(frozen=True)
class Standing:
    """How the node stands with its gateway."""

    node_id: str | None
    state: Literal["starting", "ready", "draining"]


def build_app(
    parts: Parts,
    *,
    control_token: Callable[[], str | None],
    standing: Callable[[], Standing],
) -> FastAPI:
    """The app.

    Args:
        parts: what the routes work with.
        control_token: the token that callers must show; ``None`` lets nobody in.
        standing: what the health check tells.
    """

    app = FastAPI(title="Sandbox node", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.parts = parts

    @app.get("/healthz")
    async def healthz() -> Response:
        now = standing()
        return answer(NodeHealth(ok=True, node_id=now.node_id, state=now.state))

    app.include_router(sandboxes.router)
    app.include_router(exec_routes.router)
    app.router.routes.append(Route("/v1/exec/{session_id}/stream", exec_routes.EventStream(), methods=["GET"]))
    app.router.routes.append(Route("/v1/sandboxes/{sandbox_id}/files", Files(), methods=["GET", "PUT"]))
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(ClientDisconnect, _on_gone)
    app.add_exception_handler(Exception, _on_bug)
    app.add_middleware(LimitBody)
    app.add_middleware(Authenticate, control_token=control_token)
    return app


def _response(error: ApiError) -> Response:
    return Response(error.json(), error.status, media_type="application/json")


async def _on_api_error(_: Request, error: Exception) -> Response:
    return _response(error) if isinstance(error, ApiError) else await _on_bug(_, error)


async def _on_invalid(_: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        return await _on_bug(_, error)
    # FastAPI's first part of a location says where (query, path); the caller knows.
    return _response(invalid([{**problem, "loc": problem["loc"][1:]} for problem in error.errors()]))


async def _on_http(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    code = ErrorCode.METHOD_NOT_ALLOWED if status == 405 else ErrorCode.NOT_FOUND
    return _response(ApiError(code, f"there is no {request.method} {request.url.path} on a node"))


async def _on_gone(_: Request, _error: Exception) -> Response:
    # A caller that left in the middle of its body is no failure of ours, and nobody reads this answer.
    return Response(status_code=CLIENT_GONE)


async def _on_bug(request: Request, error: Exception) -> Response:
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return _response(ApiError(ErrorCode.INTERNAL, "the node agent failed on this request; its log says why"))
