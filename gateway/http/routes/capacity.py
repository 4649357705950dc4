"""Demand for capacity, the ceilings of the pools, and capacity that is prepared ahead."""

from fastapi import Request

from gateway.core.model import PreparedKind
from gateway.http.audit import add_facts
from gateway.http.routes.parameters import Caller, GatewayParts, PreparePath, new_router
from gateway.services.to_wire import prepared_builders, prepared_capacity
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
    made = await parts.services.prepared.prepare(body)
    add_facts(request.scope, target={"prepare_id": made.id})
    return PrepareAnswer(prepare=prepared_capacity(made), demand=await parts.services.capacity.demand())


@router.get("/v1/capacity/prepare")
async def list_prepared_capacity(parts: GatewayParts) -> PreparedList:
    """List prepared capacity that nobody has claimed, ordered by expiry."""
    demand = await parts.services.capacity.demand()
    return PreparedList(prepared=demand.prepared, demand=demand)


@router.delete("/v1/capacity/prepare/{prepare_id}")
async def delete_prepared_capacity(prepare_id: PreparePath, parts: GatewayParts) -> PrepareDeleted:
    """Delete prepared capacity that nobody has claimed.  An unknown id is not an error."""
    found = await parts.services.prepared.delete(PreparedKind.SANDBOX, prepare_id)
    deleted = None if found is None else prepared_capacity(found)
    return PrepareDeleted(deleted=deleted, demand=await parts.services.capacity.demand())


@router.post("/v1/builders/prepare", status_code=201)
async def prepare_builders(body: BuilderPrepareRequest, request: Request, parts: GatewayParts) -> BuilderPrepareAnswer:
    """Ask for builders before a build needs them."""
    made = await parts.services.prepared.prepare_builders(body)
    add_facts(request.scope, target={"prepare_id": made.id})
    return BuilderPrepareAnswer(prepare=prepared_builders(made), demand=await parts.services.capacity.demand())


@router.get("/v1/builders/prepare")
async def list_prepared_builders(parts: GatewayParts) -> PreparedBuilderList:
    """List prepared builders, ordered by expiry."""
    demand = await parts.services.capacity.demand()
    return PreparedBuilderList(prepared_builders=demand.prepared_builders, demand=demand)


@router.delete("/v1/builders/prepare/{prepare_id}")
async def delete_prepared_builders(prepare_id: PreparePath, parts: GatewayParts) -> BuilderPrepareDeleted:
    """Delete prepared builders.  An unknown id is not an error."""
    found = await parts.services.prepared.delete(PreparedKind.BUILDER, prepare_id)
    deleted = None if found is None else prepared_builders(found)
    return BuilderPrepareDeleted(deleted=deleted, demand=await parts.services.capacity.demand())
