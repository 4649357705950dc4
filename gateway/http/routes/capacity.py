"""Demand for capacity, the ceilings of the pools, and capacity that is prepared ahead."""

from fastapi import Request

from gateway.core.model import PreparedKind
from gateway.http.audit import add_facts, announce
from gateway.http.routes.parameters import Caller, GatewayParts, Parts, PreparePath, new_router
from gateway.http.tenancy import bound_to, builders_shown, capacity_shown, demand_shown
from gateway.services.to_wire import prepared_builders, prepared_capacity
from gateway.services.tokens import Principal
from gateway.wire.capacity import (
    BuilderPrepareAnswer,
    BuilderPrepareDeleted,
    BuilderPrepareRequest,
    Ceilings,
    Demand,
    PrepareAnswer,
    PreparedBuilderList,
    PrepareDeleted,
    PreparedList,
    PrepareRequest,
)
from gateway.wire.tenants import qualified

router = new_router("capacity")


@router.get("/v1/demand")
async def demand(parts: GatewayParts) -> Demand:
    """Get the sandboxes that wait for room, oldest first, and the prepared capacity."""
    return await parts.services.capacity.demand()


@router.put("/v1/capacity/ceilings", status_code=204)
async def put_ceilings(body: Ceilings, parts: GatewayParts) -> None:
    """Set the largest node that each pool can ever hold; replaces all earlier ceilings."""
    await parts.services.capacity.set_ceilings(body)


@router.post("/v1/capacity/prepare", status_code=201)
async def prepare_capacity(
    body: PrepareRequest, request: Request, caller: Caller, parts: GatewayParts
) -> PrepareAnswer:
    """Request capacity before it is needed; each create of the same shape claims one unit."""
    parts.services.policies.admit_prepare(caller, body)
    await _announce(request, caller, body)
    made = await parts.services.prepared.prepare(body, caller.tenant, parts.services.policies.quota_for(caller))
    add_facts(request.scope, target={"prepare_id": made.id})
    return PrepareAnswer(
        prepare=capacity_shown(caller, prepared_capacity(made)), demand=await _demand_of(parts, caller)
    )


@router.get("/v1/capacity/prepare")
async def list_prepared_capacity(caller: Caller, parts: GatewayParts) -> PreparedList:
    """List prepared capacity that nobody has claimed, ordered by expiry; clients see their tenant's alone."""
    demand = await _demand_of(parts, caller)
    return PreparedList(prepared=demand.prepared, demand=demand)


@router.delete("/v1/capacity/prepare/{prepare_id}")
async def delete_prepared_capacity(prepare_id: PreparePath, caller: Caller, parts: GatewayParts) -> PrepareDeleted:
    """Delete prepared capacity that nobody has claimed.  An unknown id is not an error."""
    found = await parts.services.prepared.delete(PreparedKind.SANDBOX, prepare_id)
    deleted = None if found is None else capacity_shown(caller, prepared_capacity(found))
    return PrepareDeleted(deleted=deleted, demand=await _demand_of(parts, caller))


@router.post("/v1/builders/prepare", status_code=201)
async def prepare_builders(
    body: BuilderPrepareRequest, request: Request, caller: Caller, parts: GatewayParts
) -> BuilderPrepareAnswer:
    """Ask for builders before a build needs them."""
    await _announce(request, caller, body)
    made = await parts.services.prepared.prepare_builders(
        body, caller.tenant, parts.services.policies.quota_for(caller)
    )
    add_facts(request.scope, target={"prepare_id": made.id})
    return BuilderPrepareAnswer(
        prepare=builders_shown(caller, prepared_builders(made)), demand=await _demand_of(parts, caller)
    )


@router.get("/v1/builders/prepare")
async def list_prepared_builders(caller: Caller, parts: GatewayParts) -> PreparedBuilderList:
    """List prepared builders, ordered by expiry; clients see their tenant's alone."""
    demand = await _demand_of(parts, caller)
    return PreparedBuilderList(prepared_builders=demand.prepared_builders, demand=demand)


@router.delete("/v1/builders/prepare/{prepare_id}")
async def delete_prepared_builders(
    prepare_id: PreparePath, caller: Caller, parts: GatewayParts
) -> BuilderPrepareDeleted:
    """Delete prepared builders.  An unknown id is not an error."""
    found = await parts.services.prepared.delete(PreparedKind.BUILDER, prepare_id)
    deleted = None if found is None else builders_shown(caller, prepared_builders(found))
    return BuilderPrepareDeleted(deleted=deleted, demand=await _demand_of(parts, caller))


async def _announce(request: Request, caller: Principal, body: PrepareRequest | BuilderPrepareRequest) -> None:
    if body.id is not None:
        add_facts(request.scope, target={"prepare_id": qualified(caller.tenant, body.id)})
    await announce(request.scope)


async def _demand_of(parts: Parts, caller: Principal) -> Demand:
    return demand_shown(caller, await parts.services.capacity.demand(bound_to(caller)))
