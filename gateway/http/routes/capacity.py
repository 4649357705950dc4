"""Demand for capacity, what could be had, and what is prepared ahead."""

from gateway.core.prepared import PreparedKind
from gateway.http.routes.parameters import Context, PreparePath, new_router
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
async def demand(edge: Context) -> Demand:
    """What waits for room now, oldest first, and what is prepared."""
    return await edge.services.capacity.demand()


@router.put("/v1/capacity/ceilings", status_code=204)
async def put_ceilings(body: Ceilings, edge: Context) -> None:
    """Tell the largest shapes that could be had; replaces what was told before."""
    await edge.services.capacity.set_ceilings(body)


@router.post("/v1/capacity/prepare", status_code=201)
async def prepare_capacity(body: PrepareRequest, edge: Context) -> PrepareAnswer:
    """Ask for capacity before it is needed; each create of the same shape claims one unit."""
    made = await edge.services.prepared.prepare(body)
    return PrepareAnswer(prepare=prepared_capacity(made), demand=await edge.services.capacity.demand())


@router.get("/v1/capacity/prepare")
async def list_prepared_capacity(edge: Context) -> PreparedList:
    """List prepared capacity that nobody has claimed, what expires first to the front."""
    told = await edge.services.capacity.demand()
    return PreparedList(prepared=told.prepared, demand=told)


@router.delete("/v1/capacity/prepare/{prepare_id}")
async def delete_prepared_capacity(prepare_id: PreparePath, edge: Context) -> PrepareDeleted:
    """Take back what nobody has claimed.  An id that is not there is fine too."""
    found = await edge.services.prepared.delete(PreparedKind.SANDBOX, prepare_id)
    deleted = None if found is None else prepared_capacity(found)
    return PrepareDeleted(deleted=deleted, demand=await edge.services.capacity.demand())


@router.post("/v1/builders/prepare", status_code=201)
async def prepare_builders(body: BuilderPrepareRequest, edge: Context) -> BuilderPrepareAnswer:
    """Ask for builders before a build needs them."""
    made = await edge.services.prepared.prepare_builders(body)
    return BuilderPrepareAnswer(prepare=prepared_builders(made), demand=await edge.services.capacity.demand())


@router.get("/v1/builders/prepare")
async def list_prepared_builders(edge: Context) -> PreparedBuilderList:
    """List prepared builders, what expires first to the front."""
    told = await edge.services.capacity.demand()
    return PreparedBuilderList(prepared_builders=told.prepared_builders, demand=told)


@router.delete("/v1/builders/prepare/{prepare_id}")
async def delete_prepared_builders(prepare_id: PreparePath, edge: Context) -> BuilderPrepareDeleted:
    """Take back prepared builders.  An id that is not there is fine too."""
    found = await edge.services.prepared.delete(PreparedKind.BUILDER, prepare_id)
    deleted = None if found is None else prepared_builders(found)
    return BuilderPrepareDeleted(deleted=deleted, demand=await edge.services.capacity.demand())
