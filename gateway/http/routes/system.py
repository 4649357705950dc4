"""The service itself: health, readiness, its OpenAPI document, and the tokens that open it."""

from typing import Any

from fastapi import Request, Response

from gateway.errors import ApiError
from gateway.http.routes.parameters import GatewayParts, TokenPath, new_router
from gateway.wire.system import GatewayHealth, GatewayReadiness
from gateway.wire.tokens import TokenCreated, TokenList, TokenRecord, TokenRequest

router = new_router("system")
token_router = new_router("tokens")


@router.get("/healthz")
async def healthz(parts: GatewayParts) -> GatewayHealth:
    """Report that the process answers."""
    return GatewayHealth(version=parts.version)


@router.get("/readyz", responses={503: {"model": GatewayReadiness, "description": "Cannot serve now"}})
async def readyz(response: Response, parts: GatewayParts) -> GatewayReadiness:
    """Report whether the gateway can serve: the store answers, and its schema is this version's."""
    try:
        await parts.services.ready()
    except ApiError as error:
        response.status_code = 503
        return GatewayReadiness(ok=False, problems=[error.message])
    return GatewayReadiness(ok=True)


@router.get("/openapi.json")
async def openapi(request: Request) -> dict[str, Any]:
    """Return this document."""
    document: dict[str, Any] = request.app.openapi()
    return document


@token_router.get("/v1/tokens")
async def list_tokens(parts: GatewayParts) -> TokenList:
    """List all tokens, oldest first, including revoked ones; never their secrets."""
    return await parts.services.tokens.all()


@token_router.post("/v1/tokens", status_code=201)
async def make_token(body: TokenRequest, parts: GatewayParts) -> TokenCreated:
    """Make a token; only this answer carries its secret."""
    return await parts.services.tokens.make(body)


@token_router.delete("/v1/tokens/{token_id}")
async def revoke_token(token_id: TokenPath, parts: GatewayParts) -> TokenRecord:
    """Revoke a token.  Idempotent."""
    return await parts.services.tokens.revoke(token_id)
