"""Demand for capacity, capacity prepared ahead, and the ceilings of the pools."""

from typing import Self

from pydantic import Field, model_validator

from gateway.wire import limits
from gateway.wire.base import SandboxId, Timestamp, WireAnswer, WireRequest
from gateway.wire.references import ImageName
from gateway.wire.resources import Shape
from gateway.wire.sandboxes import Isolation, RuntimeName
from gateway.wire.tenants import DEFAULT_TENANT


class WaitingSandbox(WireAnswer):
    """One sandbox that no node has room for now."""

    sandbox_id: str
    """Its id."""
    tenant: str = DEFAULT_TENANT
    """Whose it is."""
    shape: Shape
    """Resources that it needs."""
    runtime: str | None = None
    """Runtime that it needs; null for any."""
    isolation: str = "gvisor"
    """Isolation that it needs."""
    since: Timestamp
    """Since when it waits."""


class PreparedCapacity(WireAnswer):
    """Units of one shape that were requested ahead.  They are demand, not a reservation."""

    prepare_id: str
    """Id by which it is deleted."""
    tenant: str = DEFAULT_TENANT
    """Whose it is; only creates of this tenant claim its units."""
    resources: Shape
    """Resources of one unit."""
    count: int
    """Units that no create has claimed yet."""
    total_resources: Shape
    """All of them together."""
    runtime: RuntimeName | None = None
    """Runtime that it needs; null for any."""
    isolation: Isolation = "gvisor"
    """As requested."""
    image: str | None = None
    """Image that it is for; null for any."""
    created_at: Timestamp
    """When it was first requested."""
    updated_at: Timestamp
    """When it last changed."""
    expires_at: Timestamp
    """When it stops being demand."""


class PreparedBuilders(WireAnswer):
    """Builders that were requested ahead."""

    prepare_id: str
    """Id by which they are deleted."""
    tenant: str = DEFAULT_TENANT
    """Whose they are."""
    count: int
    """Number of builders."""
    created_at: Timestamp
    """When they were first requested."""
    updated_at: Timestamp
    """When it last changed."""
    expires_at: Timestamp
    """When they stop being demand."""


class Demand(WireAnswer):
    """What waits for capacity now, and what was requested ahead.  Nothing is in both.

    Operators get the whole, clients what is their tenant's.
    """

    waiting: list[WaitingSandbox]
    """The oldest first."""
    pending_count: int
    """Number of waiting sandboxes."""
    pending_resources: Shape
    """Sum of their shapes."""
    oldest_pending_seconds: float | None = None
    """Age of the oldest; null if none waits."""
    prepared: list[PreparedCapacity] = []
    """Ordered by expiry."""
    prepared_resources: Shape = Shape()
    """Everything that is prepared and unclaimed."""
    desired_resources: Shape = Shape()
    """Pending and prepared together."""
    prepared_builders: list[PreparedBuilders] = []
    """Ordered by expiry."""
    prepared_builder_count: int = 0
    """All of them together."""
    desired_builders: int = 0
    """Builders that should run: those requested ahead."""


class PrepareRequest(WireRequest):
    """Asks for capacity before it is needed.

    Each later create of the same shape (and image, if one is named) claims one unit; unclaimed units expire.
    The same id replaces an earlier request.
    """

    count: int = Field(ge=1, le=limits.MAX_PREPARED_COUNT)
    """Number of units."""
    ttl_seconds: int = Field(default=limits.DEFAULT_PREPARED_TTL, ge=1, le=limits.MAX_PREPARED_TTL)
    """Seconds after which unclaimed units stop being demand."""
    id: SandboxId | None = None
    """``null`` generates one."""
    cpus: float | None = Field(default=None, ge=limits.MIN_CPUS, le=limits.MAX_CPUS)
    """Cores of one unit."""
    memory_mb: int | None = Field(default=None, ge=limits.MIN_MEMORY_MB, le=limits.MAX_MEMORY_MB)
    """MiB of one unit."""
    disk_mb: int | None = Field(default=None, ge=limits.MIN_DISK_MB, le=limits.MAX_DISK_MB)
    """MiB of disk.  Omitted amounts take the defaults of a create; one of the three is required."""
    gpus: int = Field(default=0, ge=0, le=limits.MAX_GPUS)
    """Devices of one unit."""
    runtime: RuntimeName | None = None
    """As in a spec."""
    isolation: Isolation = "gvisor"
    """As in a spec."""
    image: ImageName | None = None
    """Only creates of this image claim a unit; ``null``: of any image."""
    parkable: bool = False
    """Accepted for older clients: every sandbox here can be paused."""

    @model_validator(mode="after")
    def _some_resource(self) -> Self:
        if self.cpus is None and self.memory_mb is None and self.disk_mb is None:
            raise ValueError("one of cpus, memory_mb and disk_mb is required: the shape of what will be created")
        return self

    @property
    def shape(self) -> Shape:
        """Resources of one unit."""
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


class BuilderPrepareRequest(WireRequest):
    """Asks for builders before a build needs them."""

    count: int = Field(default=1, ge=1, le=limits.MAX_PREPARED_COUNT)
    """Number of builders."""
    ttl_seconds: int = Field(default=limits.DEFAULT_PREPARED_TTL, ge=1, le=limits.MAX_PREPARED_TTL)
    """Seconds after which they stop being demand."""
    id: SandboxId | None = None
    """``null`` generates one."""


class PrepareAnswer(WireAnswer):
    """What is prepared now, and the whole demand."""

    prepare: PreparedCapacity
    """What is prepared under this id."""
    demand: Demand
    """The whole demand."""


class PreparedList(WireAnswer):
    """All prepared capacity, and the whole demand."""

    prepared: list[PreparedCapacity]
    """Ordered by expiry."""
    demand: Demand
    """The whole demand."""


class PrepareDeleted(WireAnswer):
    """What was deleted; null if there was nothing with that id."""

    ok: bool = True
    """Always true."""
    deleted: PreparedCapacity | None
    """Null if there was nothing with that id."""
    demand: Demand
    """The demand that is left."""


class BuilderPrepareAnswer(WireAnswer):
    """As `PrepareAnswer`."""

    prepare: PreparedBuilders
    """What is prepared under this id."""
    demand: Demand
    """The whole demand."""


class PreparedBuilderList(WireAnswer):
    """As `PreparedList`."""

    prepared_builders: list[PreparedBuilders]
    """Ordered by expiry."""
    demand: Demand
    """The whole demand."""


class BuilderPrepareDeleted(WireAnswer):
    """As `PrepareDeleted`."""

    ok: bool = True
    """Always true."""
    deleted: PreparedBuilders | None
    """Null if there was nothing with that id."""
    demand: Demand
    """The demand that is left."""


class PoolCeiling(WireRequest):
    """The largest node that one pool can ever have, and whether the pool may grow."""

    pool: str
    """Name of the pool."""
    shape: Shape
    """Total resources of one node of the largest offer."""
    runtimes: list[str]
    """Engines of its nodes."""
    isolations: list[str]
    """Isolations that those engines support."""
    max_nodes: int = Field(ge=0, le=limits.MAX_COUNTER)
    """Most nodes; 0 if it may not grow."""


class Ceilings(WireRequest):
    """All pools, reported by the autoscaler; a shape above all of them and above all nodes never fits."""

    pools: list[PoolCeiling]
    """All pools, each time."""
