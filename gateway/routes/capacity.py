"""Demand for capacity, and what could be had."""

from gateway.routes.context import Context, new_router
from gateway.wire.capacity import Ceilings, Demand

router = new_router("capacity")


@router.get("/v1/demand")
async def demand(edge: Context) -> Demand:
    """What waits for room now, oldest first."""
    return await edge.services.capacity.demand()


@router.put("/v1/capacity/ceilings", status_code=204)
async def put_ceilings(body: Ceilings, edge: Context) -> None:
    """Tell the largest shapes that could be had; replaces what was told before."""
    await edge.services.capacity.set_ceilings(body)
