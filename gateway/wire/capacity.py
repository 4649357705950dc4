"""Demand for capacity, and what the autoscaler says could be had."""

from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from gateway.wire import limits
from gateway.wire.base import Answer, Request, SandboxId, Timestamp
from gateway.wire.resources import Shape
from gateway.wire.sandboxes import Isolation, RuntimeName


class WaitingSandbox(Answer):
    """One sandbox that no node has room for now."""

    sandbox_id: str
    shape: Shape
    runtime: str | None = None
    isolation: str = "gvisor"
    since: Timestamp


class PreparedCapacity(Answer):
    """Units of one shape that were asked for ahead.  They are demand, not a reservation."""

    prepare_id: str
    resources: Shape
    """One unit."""
    count: int
    """Units that no create has claimed yet."""
    total_resources: Shape
    """All of those."""
    runtime: RuntimeName | None = None
    isolation: Isolation = "gvisor"
    image: str | None = None
    created_at: Timestamp
    updated_at: Timestamp
    expires_at: Timestamp


class PreparedBuilders(Answer):
    """Builders that were asked for ahead."""

    prepare_id: str
    count: int
    created_at: Timestamp
    updated_at: Timestamp
    expires_at: Timestamp


class Demand(Answer):
    """What waits for capacity now, and what was asked for ahead.  Nothing is in both."""

    waiting: list[WaitingSandbox]
    pending_count: int
    pending_resources: Shape
    oldest_pending_seconds: float | None = None
    prepared: list[PreparedCapacity] = []
    """By the time at which they expire."""
    prepared_resources: Shape = Shape()
    desired_resources: Shape = Shape()
    """Pending and prepared together."""
    prepared_builders: list[PreparedBuilders] = []
    prepared_builder_count: int = 0


class PrepareRequest(Request):
    """Asks for capacity before it is needed.

    Each later create of the same shape (and image, where one is named) claims one unit; what nobody claims expires.
    The same id replaces what was asked for under it.
    """

    count: int = Field(ge=1, le=limits.MAX_PREPARED_COUNT)
    ttl_seconds: int = Field(default=limits.DEFAULT_PREPARED_TTL, ge=1, le=limits.MAX_PREPARED_TTL)
    id: SandboxId | None = None
    """``null`` makes one."""
    cpus: float | None = Field(default=None, gt=0, le=limits.MAX_CPUS)
    memory_mb: int | None = Field(default=None, ge=limits.MIN_MEMORY_MB, le=limits.MAX_MEMORY_MB)
    disk_mb: int | None = Field(default=None, ge=limits.MIN_DISK_MB, le=limits.MAX_DISK_MB)
    """What is left out takes the default of a create; one of the three is needed."""
    gpus: int = Field(default=0, ge=0, le=limits.MAX_GPUS)
    runtime: RuntimeName | None = None
    isolation: Isolation = "gvisor"
    image: Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=r"^[^\s]+$")] | None = None
    parkable: bool = False
    """Accepted for older clients: every sandbox here can be paused."""

    @model_validator(mode="after")
    def _some_resource(self) -> Self:
        if self.cpus is None and self.memory_mb is None and self.disk_mb is None:
            raise ValueError("one of cpus, memory_mb and disk_mb is needed: the shape of what will be created")
        return self

    @property
    def shape(self) -> Shape:
        """One unit."""
        return Shape(
            cpus=self.cpus or limits.DEFAULT_CPUS,
            memory_mb=self.memory_mb or limits.DEFAULT_MEMORY_MB,
            disk_mb=self.disk_mb or limits.DEFAULT_DISK_MB,
            gpus=self.gpus,
            slots=1,
        )

    @property
    def chosen_runtime(self) -> RuntimeName | None:
        """As `SandboxSpec.chosen_runtime`."""
        return "docker" if self.runtime is None and (self.gpus or self.isolation == "runc") else self.runtime


class BuilderPrepareRequest(Request):
    """Asks for builders before a build needs them."""

    count: int = Field(default=1, ge=1, le=limits.MAX_PREPARED_COUNT)
    ttl_seconds: int = Field(default=limits.DEFAULT_PREPARED_TTL, ge=1, le=limits.MAX_PREPARED_TTL)
    id: SandboxId | None = None


class PrepareAnswer(Answer):
    """What is prepared now, and all demand."""

    prepare: PreparedCapacity
    demand: Demand


class PreparedList(Answer):
    """All capacity that is prepared, and all demand."""

    prepared: list[PreparedCapacity]
    demand: Demand


class PrepareDeleted(Answer):
    """What was taken back; null where there was nothing of that id."""

    ok: bool = True
    deleted: PreparedCapacity | None
    demand: Demand


class BuilderPrepareAnswer(Answer):
    """As `PrepareAnswer`."""

    prepare: PreparedBuilders
    demand: Demand


class PreparedBuilderList(Answer):
    """As `PreparedList`."""

    prepared_builders: list[PreparedBuilders]
    demand: Demand


class BuilderPrepareDeleted(Answer):
    """As `PrepareDeleted`."""

    ok: bool = True
    deleted: PreparedBuilders | None
    demand: Demand


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
