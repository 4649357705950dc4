"""Tokens: list, make, revoke."""

from gateway.http.routes.context import Context, TokenPath, new_router
from gateway.wire.tokens import TokenCreated, TokenList, TokenRecord, TokenRequest

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
