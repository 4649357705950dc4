"""Alive, able to serve, and the contract."""

from typing import Any

from fastapi import Request, Response

from gateway.errors import ApiError
from gateway.http.routes.parameters import Context, TokenPath, new_router
from gateway.wire.system import GatewayHealth, GatewayReadiness
from gateway.wire.tokens import TokenCreated, TokenList, TokenRecord, TokenRequest

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


router = new_router("tokens")


@router.get("/v1/tokens")
async def list_tokens(edge: Context) -> TokenList:
    """List all tokens, oldest first, revoked ones included; never their secrets."""
    return await edge.services.tokens.all()


@router.post("/v1/tokens", status_code=201)
async def make_token(body: TokenRequest, edge: Context) -> TokenCreated:
    """Make a token; its secret is told this once."""
    return await edge.services.tokens.make(body)


@router.delete("/v1/tokens/{token_id}")
async def revoke_token(token_id: TokenPath, edge: Context) -> TokenRecord:
    """Revoke a token.  Idempotent."""
    return await edge.services.tokens.revoke(token_id)
