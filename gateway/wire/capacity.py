"""Demand for capacity, and what the autoscaler says could be had."""

from pydantic import Field

from gateway.wire.base import Answer, Request, Timestamp
from gateway.wire.resources import Shape


class WaitingSandbox(Answer):
    """One sandbox that no node has room for now."""

    sandbox_id: str
    shape: Shape
    runtime: str | None = None
    isolation: str = "gvisor"
    since: Timestamp


class Demand(Answer):
    """What waits for capacity now."""

    waiting: list[WaitingSandbox]
    pending_count: int
    pending_resources: Shape
    oldest_pending_seconds: float | None = None


class PoolCeiling(Request):
    """The largest node that one pool can ever hold, and whether it may still grow."""

    pool: str
    shape: Shape
    """Total resources of one node of the largest offer."""
    runtimes: list[str]
    isolations: list[str]
    max_nodes: int = Field(ge=0)


class Ceilings(Request):
    """All pools, told by the autoscaler; a shape above all of them and above all nodes never fits."""

    pools: list[PoolCeiling]
