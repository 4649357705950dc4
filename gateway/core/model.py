"""Domain values of the gateway: what its decisions are made over."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

from gateway.wire.errors import ErrorCode
from gateway.wire.nodes import BootStages, NodeRole, Pressure, RuntimeReport
from gateway.wire.references import parse_image
from gateway.wire.resources import Shape
from gateway.wire.sandboxes import Isolation, RuntimeName, SandboxSpec
from gateway.wire.states import DeathReason, NodeState, SandboxState
from gateway.wire.tenants import DEFAULT_TENANT, qualified

NOTHING: Final = Shape()
NOTHING_HELD: Final = frozenset({SandboxState.PENDING, SandboxState.LOST, SandboxState.DELETED})
FULLY_HELD: Final = frozenset(
    {
        SandboxState.CREATING,
        SandboxState.RUNNING,
        SandboxState.PAUSED,
        SandboxState.RESTORING,
        SandboxState.FAILED,
        SandboxState.DELETING,
    }
)
"""States in which all is held while no end is known; a failed one has none after a refused restart only."""

# -- sandboxes --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sandbox:
    """One sandbox as the store has it. ``version`` grows by one with every change of the row."""

    spec: SandboxSpec
    spec_hash: str
    generation: int
    version: int
    operation_id: str
    """Names the present attempt; every order to a node carries it."""
    state: SandboxState
    created_at: datetime
    updated_at: datetime
    active_at: datetime
    """Last known use, by the clock of the gateway that wrote it."""
    expires_at: datetime | None = None
    node_id: str | None = None
    runtime: RuntimeName | None = None
    isolation: Isolation | None = None
    image_digest: str | None = None
    granted_gpus: int = 0
    """GPUs taken from the node: all of them where the spec says ``all``."""
    reason: DeathReason | None = None
    detail: str | None = None
    error: ErrorCode | None = None
    """With which a create of a sandbox that never ran is refused."""
    batch: str | None = None
    """The prepared units of which it has one, since it was accepted; a tombstone keeps it for the next of its id."""
    exit_code: int | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    tenant: str = DEFAULT_TENANT
    """Whose it is."""
    uses: int = 0
    """Grows whenever ``active_at`` is written; a change of it is a use, whichever gateway saw it."""

    @property
    def id(self) -> str:
        """Its qualified id; the client's own is the spec's."""
        return qualified(self.tenant, self.spec.id)

    @property
    def asked(self) -> Shape:
        """What it may turn out to take."""
        return self.spec.asked

    @property
    def granted(self) -> Shape:
        """What it takes of its node while it lives."""
        return self.spec.shape.model_copy(update={"gpus": self.granted_gpus})

    @property
    def ever_ran(self) -> bool:
        """Whether its processes ever ran, so that a workspace worth keeping exists."""
        return self.started_at is not None

    @property
    def held(self) -> Shape:
        """What it takes of its node now; an ended sandbox keeps the disk of its workspace until it is deleted."""
        if self.node_id is None or self.state in NOTHING_HELD:
            return NOTHING
        if self.state in FULLY_HELD and self.ended_at is None:
            return self.granted
        return Shape(disk_mb=self.spec.disk_mb) if self.ever_ran else NOTHING

    @property
    def claimed(self) -> Shape:
        """What counts against its tenant's quota: what it takes of its node, or waits for."""
        return self.asked if self.state is SandboxState.PENDING else self.held

    def same_operation(self, other: "Sandbox") -> bool:
        """Return whether both are at the same operation: what was decided for one still holds for the other."""
        return (self.operation_id, self.state) == (other.operation_id, other.state)


class PreparedKind(StrEnum):
    """What is prepared."""

    SANDBOX = "sandbox"
    BUILDER = "builder"


@dataclass(frozen=True)
class PreparedBatch:
    """Capacity that was asked for ahead: units of one kind, as the store has them."""

    id: str
    """Qualified as a sandbox's is."""
    kind: PreparedKind
    shape: Shape
    count: int
    """Units that nobody has claimed yet."""
    created_at: datetime
    updated_at: datetime
    expires_at: datetime
    runtime: RuntimeName | None = None
    isolation: Isolation = "gvisor"
    image: str | None = None
    batch: str = ""
    """Names these units; asking again under the same id makes others, which nobody has claimed."""
    tenant: str = DEFAULT_TENANT
    """Whose they are."""

    @property
    def total(self) -> Shape:
        """All units together."""
        return self.shape.times(self.count)

    def is_for(self, tenant: str, spec: SandboxSpec) -> bool:
        """Return whether a create of ``spec`` by a client of ``tenant`` takes a unit.

        It does with the same shape and engine, and with the same image where one is named. An engine that either side
        leaves open is no difference.
        """
        engines = {self.runtime, spec.chosen_runtime} - {None}
        return (
            self.kind is PreparedKind.SANDBOX
            and self.tenant == tenant
            and spec.shape.fits(self.shape)
            and self.shape.fits(spec.shape)
            and len(engines) <= 1
            and self.isolation == spec.isolation
            and (self.image is None or parse_image(self.image) == parse_image(spec.image))
        )


# -- nodes ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Node:
    """One node as the store has it."""

    id: str
    instance: str
    pool: str
    state: NodeState
    node_url: str
    agent_version: str
    total: Shape
    runtimes: tuple[RuntimeReport, ...]
    registered_at: datetime
    version: int = 1
    draining: bool = False
    """The operator closed it."""
    agent_draining: bool = False
    """The agent closed itself."""
    pressure: Pressure = field(default_factory=Pressure)
    heartbeat_at: datetime | None = None
    beats: int = 0
    """Heartbeats ever taken in; a change of it is a sign of life, whichever gateway took it."""
    boot_id: str | None = None
    sequence: int = 0
    operation_id: str | None = None
    """The order that its instance came from."""
    stages: BootStages | None = None
    role: NodeRole = "sandbox"

    @property
    def open_state(self) -> NodeState:
        """Its state while its heartbeats come."""
        return NodeState.DRAINING if self.draining or self.agent_draining else NodeState.READY

    @property
    def hosts_sandboxes(self) -> bool:
        """Whether sandboxes may be placed there."""
        return self.role != "builder"


@dataclass(frozen=True)
class NodeLoad:
    """A node together with what its sandboxes take."""

    node: Node
    reserved: Shape
    sandboxes: int
    """How many hold something of it."""
    idle_since: datetime | None
    """Since when none does."""


@dataclass(frozen=True)
class NodeAddress:
    """Where a node is reached, and the bearer that it expects."""

    node_id: str
    url: str
    control_token: str = field(repr=False)


@dataclass(frozen=True)
class Route:
    """Where one incarnation of a sandbox is served."""

    sandbox_id: str
    generation: int
    node: NodeAddress
    isolation: Isolation
    idle_seconds: int | None = None
    """Of its spec."""


# -- tokens -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Token:
    """A token as stored: everything but its secret."""

    id: str
    name: str
    scope: str
    created_at: datetime
    node_id: str | None = None
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    tenant: str = DEFAULT_TENANT


@dataclass(frozen=True)
class JoinGrant:
    """A join token as stored."""

    id: str
    instance: str
    pool: str
    expires_at: datetime
    used_at: datetime | None = None
    node_id: str | None = None
    operation_id: str | None = None
    created_at: datetime | None = None
    role: NodeRole = "sandbox"
