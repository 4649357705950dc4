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
    """Its id."""
    shape: Shape
    """What it needs."""
    runtime: str | None = None
    """Null where any will do."""
    isolation: str = "gvisor"
    """What it needs."""
    since: Timestamp
    """When it began to wait."""


class PreparedCapacity(Answer):
    """Units of one shape that were asked for ahead.  They are demand, not a reservation."""

    prepare_id: str
    """Takes it back."""
    resources: Shape
    """One unit."""
    count: int
    """Units that no create has claimed yet."""
    total_resources: Shape
    """All of those."""
    runtime: RuntimeName | None = None
    """Null where any will do."""
    isolation: Isolation = "gvisor"
    """As asked for."""
    image: str | None = None
    """Null for any."""
    created_at: Timestamp
    """When it was first asked for."""
    updated_at: Timestamp
    """When it last changed."""
    expires_at: Timestamp
    """When it stops being demand."""


class PreparedBuilders(Answer):
    """Builders that were asked for ahead."""

    prepare_id: str
    """Takes them back."""
    count: int
    """How many."""
    created_at: Timestamp
    """When they were first asked for."""
    updated_at: Timestamp
    """When it last changed."""
    expires_at: Timestamp
    """When they stop being demand."""


class Demand(Answer):
    """What waits for capacity now, and what was asked for ahead.  Nothing is in both."""

    waiting: list[WaitingSandbox]
    """The oldest first."""
    pending_count: int
    """How many wait."""
    pending_resources: Shape
    """What they need together."""
    oldest_pending_seconds: float | None = None
    """How long the oldest has waited; null where none waits."""
    prepared: list[PreparedCapacity] = []
    """By the time at which they expire."""
    prepared_resources: Shape = Shape()
    """All that is prepared and unclaimed."""
    desired_resources: Shape = Shape()
    """Pending and prepared together."""
    prepared_builders: list[PreparedBuilders] = []
    """By the time at which they expire."""
    prepared_builder_count: int = 0
    """All of those."""


class PrepareRequest(Request):
    """Asks for capacity before it is needed.

    Each later create of the same shape (and image, where one is named) claims one unit; what nobody claims expires.
    The same id replaces what was asked for under it.
    """

    count: int = Field(ge=1, le=limits.MAX_PREPARED_COUNT)
    """How many units."""
    ttl_seconds: int = Field(default=limits.DEFAULT_PREPARED_TTL, ge=1, le=limits.MAX_PREPARED_TTL)
    """What nobody claimed by then stops being demand."""
    id: SandboxId | None = None
    """``null`` makes one."""
    cpus: float | None = Field(default=None, gt=0, le=limits.MAX_CPUS)
    """Cores of one unit."""
    memory_mb: int | None = Field(default=None, ge=limits.MIN_MEMORY_MB, le=limits.MAX_MEMORY_MB)
    """MiB of one unit."""
    disk_mb: int | None = Field(default=None, ge=limits.MIN_DISK_MB, le=limits.MAX_DISK_MB)
    """What is left out takes the default of a create; one of the three is needed."""
    gpus: int = Field(default=0, ge=0, le=limits.MAX_GPUS)
    """Devices of one unit."""
    runtime: RuntimeName | None = None
    """As in a spec."""
    isolation: Isolation = "gvisor"
    """As in a spec."""
    image: Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=r"^[^\s]+$")] | None = None
    """Only creates of this image claim a unit; ``null`` for any."""
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
    """How many."""
    ttl_seconds: int = Field(default=limits.DEFAULT_PREPARED_TTL, ge=1, le=limits.MAX_PREPARED_TTL)
    """They stop being demand after this."""
    id: SandboxId | None = None
    """``null`` makes one."""


class PrepareAnswer(Answer):
    """What is prepared now, and all demand."""

    prepare: PreparedCapacity
    """What is prepared under this id."""
    demand: Demand
    """All of it."""


class PreparedList(Answer):
    """All capacity that is prepared, and all demand."""

    prepared: list[PreparedCapacity]
    """What expires first comes first."""
    demand: Demand
    """All of it."""


class PrepareDeleted(Answer):
    """What was taken back; null where there was nothing of that id."""

    ok: bool = True
    """Always true."""
    deleted: PreparedCapacity | None
    """Null where there was nothing of that id."""
    demand: Demand
    """What is left."""


class BuilderPrepareAnswer(Answer):
    """As `PrepareAnswer`."""

    prepare: PreparedBuilders
    """What is prepared under this id."""
    demand: Demand
    """All of it."""


class PreparedBuilderList(Answer):
    """As `PreparedList`."""

    prepared_builders: list[PreparedBuilders]
    """What expires first comes first."""
    demand: Demand
    """All of it."""


class BuilderPrepareDeleted(Answer):
    """As `PrepareDeleted`."""

    ok: bool = True
    """Always true."""
    deleted: PreparedBuilders | None
    """Null where there was nothing of that id."""
    demand: Demand
    """What is left."""


class PoolCeiling(Request):
    """The largest node that one pool can ever hold, and whether it may still grow."""

    pool: str
    """Its name."""
    shape: Shape
    """Total resources of one node of the largest offer."""
    runtimes: list[str]
    """Engines that its nodes have."""
    isolations: list[str]
    """What those engines can do."""
    max_nodes: int = Field(ge=0)
    """0 where it may not grow."""


class Ceilings(Request):
    """All pools, told by the autoscaler; a shape above all of them and above all nodes never fits."""

    pools: list[PoolCeiling]
    """All of them, each time."""
