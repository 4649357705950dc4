"""The service itself: health, readiness, its OpenAPI document, the tokens that open it, what was done with them, and
what was used, and the policy."""

import math
from typing import Annotated, Any, Final

from fastapi import Query, Request, Response

from gateway.errors import ApiError
from gateway.http.audit import add_facts
from gateway.http.routes.parameters import (
    AuditParameters,
    Caller,
    GatewayParts,
    PolicyParameters,
    TokenPath,
    UsageParameters,
    new_router,
)
from gateway.http.tenancy import bound_to, sees_all, usage_shown
from gateway.wire.audit import AuditPage, AuditQuery
from gateway.wire.errors import ErrorCode
from gateway.wire.system import GatewayHealth, GatewayReadiness, PolicyAnswer
from gateway.wire.tokens import TokenCreated, TokenList, TokenRecord, TokenRequest
from gateway.wire.usage import UsagePage

router = new_router("system")
token_router = new_router("tokens")
audit_router = new_router("audit")
usage_router = new_router("usage")
policy_router = new_router("policy")

WRONG_POLICY: Final = (
    "the policy file is wrong and the policy before still holds; 'sandboxes policy show' and the log say what is wrong"
)


@router.get("/healthz")
async def healthz(parts: GatewayParts) -> GatewayHealth:
    """Report that the process answers."""
    return GatewayHealth(version=parts.version)


@router.get("/readyz", responses={503: {"model": GatewayReadiness, "description": "Cannot serve now"}})
async def readyz(response: Response, parts: GatewayParts) -> GatewayReadiness:
    """Report whether the gateway can serve: the store takes writes, and its schema is this version's."""
    try:
        await parts.services.ready()
    except ApiError as error:
        response.status_code = 503
        response.headers["Retry-After"] = str(math.ceil(error.retry_after or 1))
        return GatewayReadiness(ok=False, problems=[error.message])
    # Not the sentence itself: this route is open to everybody, and the file names tenants.
    wrong = parts.services.policies.problem is not None
    return GatewayReadiness(ok=True, problems=[WRONG_POLICY] if wrong else [])


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
async def make_token(body: TokenRequest, request: Request, parts: GatewayParts) -> TokenCreated:
    """Make a token; only this answer carries its secret."""
    made = await parts.services.tokens.make(body)
    add_facts(request.scope, target={"token_id": made.record.id})
    return made


@token_router.delete("/v1/tokens/{token_id}")
async def revoke_token(token_id: TokenPath, parts: GatewayParts) -> TokenRecord:
    """Revoke a token.  Idempotent."""
    return await parts.services.tokens.revoke(token_id)


@audit_router.get("/v1/audit", response_model_exclude_none=True)
async def read_audit(query: Annotated[AuditParameters, Query()], parts: GatewayParts) -> AuditPage:
    """Read what was done and refused, oldest first, page by page; with several gateways, of the one that answers."""
    return await parts.services.audit.page(AuditQuery.model_validate(query.model_dump()))


@usage_router.get("/v1/usage")
async def read_usage(query: Annotated[UsageParameters, Query()], caller: Caller, parts: GatewayParts) -> UsagePage:
    """Sum up what was used in whole hours, by tenant, sandbox or hour; clients see their own tenant's alone."""
    if query.tenant is not None and not sees_all(caller):
        raise ApiError(ErrorCode.FORBIDDEN, "tenant: only an operator's token may ask for a tenant's usage")
    now = parts.services.internals.context.clock.now()
    return usage_shown(caller, await parts.services.usage.page(query.query(now, bound_to(caller))))


@policy_router.get("/v1/policy")
async def read_policy(query: Annotated[PolicyParameters, Query()], parts: GatewayParts) -> PolicyAnswer:
    """Show what holds for a tenant's clients: each value of policy and quota, where it is set, and what is in use."""
    now = parts.services.internals.context.clock.now()
    return parts.services.policies.describe(query.tenant, *await parts.services.usage.standing(query.tenant, now))
