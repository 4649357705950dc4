"""The gateway's ASGI application: routes, error handlers, and the layers around them."""

from dataclasses import dataclass
from typing import Any, Final

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from gateway.errors import ApiError
from gateway.http import openapi
from gateway.http.audit import AuditGate, AuditTrail
from gateway.http.auth import ACCESS, AuthGate
from gateway.http.middleware import BodyDrain, BodyLimit, FairShares, GracefulStop, RawPaths, RequestBoundary
from gateway.http.proxy import CallerGoneError
from gateway.http.responses import error_response, from_validation, internal_error, invalid_request
from gateway.http.routes import capacity, exec, nodes, sandboxes, system
from gateway.http.routes.parameters import Parts
from gateway.node_client import NodeClient
from gateway.services.assembly import Services
from gateway.wire.errors import ErrorCode, FieldError
from gateway.wire.system import installed_version

MAX_REQUESTS: Final = 8000
MAX_CREATES: Final = 4000
STOP_GRACE: Final = 2.0
CLIENT_GONE: Final = 499  # nobody reads it; it is for the access log

_ROUTERS: Final = (
    system.router,
    sandboxes.router,
    exec.router,
    nodes.router,
    capacity.router,
    nodes.bundle_router,
    system.token_router,
    system.audit_router,
    system.usage_router,
    system.policy_router,
)


@dataclass(frozen=True)
class GatewayApp:
    """The application that a server serves.

    Attributes:
        asgi: the application with all its layers.
        app: the routes alone.
        graceful_stop: its ``stop()`` ends what is in flight; call it before the server waits for its connections.
    """

    asgi: ASGIApp
    app: FastAPI
    graceful_stop: GracefulStop


def build_app(
    services: Services,
    node_client: NodeClient,
    *,
    max_requests: int = MAX_REQUESTS,
    max_creates: int = MAX_CREATES,
    stop_grace: float = STOP_GRACE,
) -> GatewayApp:
    """Return the application over services that somebody else has started.

    Args:
        services: started and stopped by the caller.
        node_client: entered and left by the caller.
        max_requests: most requests in flight at once; node traffic and health are not counted.
        max_creates: most creates among them.
        stop_grace: seconds for which a stop lets calls in flight end by themselves.
    """
    app = routes_only()
    app.state.parts = Parts(services, node_client, installed_version())
    shares = FairShares(
        AuditGate(app, services.audit, services.require_room), requests=max_requests, creates=max_creates
    )
    graceful_stop = GracefulStop(AuthGate(shares, services.tokens), stop_grace)
    boundary = RequestBoundary(BodyLimit(graceful_stop))
    trail = AuditTrail(boundary, services.audit, services.internals.context.clock)
    return GatewayApp(RawPaths(BodyDrain(trail)), app, graceful_stop)


def routes_only() -> FastAPI:
    """Return the routes without services, for the OpenAPI document."""
    app = FastAPI(
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers={
            ApiError: _api_error,
            RequestValidationError: _validation_error,
            HTTPException: _http_error,
            CallerGoneError: _caller_gone,
            Exception: _unhandled,
        },
    )
    for router in _ROUTERS:
        # The routes themselves, not the router: FastAPI would match the routes of an included router twice a request.
        app.router.routes.extend(router.routes)
    app.router.routes.extend(_raw_routes())
    _check_table(app)
    cached: dict[str, Any] = {}

    def document() -> dict[str, Any]:
        if not cached:
            cached.update(openapi.document(app))
        return cached

    app.openapi = document  # type: ignore[method-assign]
    return app


def _raw_routes() -> list[Route]:
    """Return the routes that stream, which FastAPI would only obstruct."""
    made = [
        Route("/v1/sandboxes/{sandbox_id}/files", sandboxes.Files(), methods=["GET", "PUT"]),
        Route("/v1/exec/{session_id}/stream", exec.ExecStream(), methods=["GET"]),
    ]
    for route in made:
        # Starlette adds HEAD to every GET, and a HEAD must not start a stream.
        route.methods = (route.methods or set()) - {"HEAD"}
    return made


def route_table(app: FastAPI) -> set[tuple[str, str]]:
    """Return method and path of every route of ``app``, including raw ones."""
    return {
        (method, route.path)
        for route in app.router.routes
        if isinstance(route, Route | APIRoute)
        for method in route.methods or ()
    }


def _check_table(app: FastAPI) -> None:
    """Raise `RuntimeError` unless the routes and the rows of `ACCESS` are the same."""
    difference = route_table(app) ^ set(ACCESS)
    if difference:
        raise RuntimeError(f"routes and gateway.http.auth.ACCESS differ in {sorted(difference)}")


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)  # noqa: S101 - registered for that class
    return error_response(error, request.scope)


async def _validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for that class
    return error_response(from_validation(error.errors()), request.scope)


async def _http_error(request: Request, error: Exception) -> Response:
    """Answer what the frameworks themselves refuse: paths, and bodies that cannot be read; methods, `AuthGate` has."""
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for that class
    cause = error.__cause__
    if isinstance(cause, ApiError):
        # A layer refused while FastAPI read the body, and FastAPI wrapped that in an error of its own.
        return error_response(cause, request.scope)
    if isinstance(cause, ClientDisconnect):
        return await _caller_gone(request, cause)
    where = f"{request.method} {request.scope['path'][:300]}"
    if error.status_code == 404:
        return error_response(ApiError(ErrorCode.NOT_FOUND, f"no such path: {where}; see /openapi.json"), request.scope)
    problem = "cannot be read as JSON in UTF-8"
    refusal = invalid_request(f"the body of {where} {problem}", FieldError(field="", problem=problem))
    return error_response(refusal, request.scope)


async def _caller_gone(_request: Request, _error: Exception) -> Response:
    return Response(status_code=CLIENT_GONE)


async def _unhandled(request: Request, _error: Exception) -> Response:
    # `RequestBoundary` logs it: Starlette raises it again after this answer.
    return error_response(internal_error(request.scope), request.scope)
