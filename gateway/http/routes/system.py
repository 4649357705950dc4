"""Alive, able to serve, and the contract."""

from typing import Any

from fastapi import Request, Response

from gateway.errors import ApiError
from gateway.http.routes.context import Context, new_router
from gateway.wire.health import GatewayHealth, GatewayReadiness

router = new_router("system")


@router.get("/healthz")
async def healthz(edge: Context) -> GatewayHealth:
    """Whether the process answers."""
    return GatewayHealth(version=edge.version)


@router.get("/readyz", responses={503: {"model": GatewayReadiness, "description": "Cannot serve now"}})
async def readyz(response: Response, edge: Context) -> GatewayReadiness:
    """Whether it can serve: the store answers, and its schema is this version's."""
    try:
        await edge.services.ready()
    except ApiError as error:
        response.status_code = 503
        return GatewayReadiness(ok=False, problems=[error.message])
    return GatewayReadiness(ok=True)


@router.get("/openapi.json")
async def openapi(request: Request) -> dict[str, Any]:
    """This document."""
    document: dict[str, Any] = request.app.openapi()
    return document
