"""Messages between gateway and node agent.

Node to gateway: register with a join token, then heartbeat with the node's own credential.  Gateway to node: orders
about sandboxes, with the control token from the registration.  Before all that, a machine fetches the bundle.
"""

from typing import Literal

from pydantic import ConfigDict, Field

from gateway.wire import limits
from gateway.wire.base import NodeId, Timestamp, WireAnswer, WireRequest
from gateway.wire.exec import ExecRequest
from gateway.wire.resources import Shape
from gateway.wire.sandboxes import Isolation, RuntimeName, SandboxSpec
from gateway.wire.states import DeathReason, NodeState, SandboxState
from gateway.wire.tenants import QualifiedId
from gateway.wire.usage import MAX_REPORTS, UsageReport

NodeRole = Literal["sandbox", "builder", "both"]
"""What a node is used for."""


class RuntimeReport(WireRequest):
    """One engine of a node and its capabilities."""

    name: RuntimeName
    """Name of the engine."""
    version: str
    """As the engine reports it."""
    isolations: list[Isolation]
    """Kinds of isolation that it supports."""
    pause: bool = False
    """Whether it can freeze a sandbox."""
    checkpoint: bool = False
    """Whether it can checkpoint a sandbox."""
    gpus: bool = False
    """Whether it can pass GPUs to a sandbox."""


class Pressure(WireRequest):
    """Percentage of the last 10 s in which some task was stalled (Linux PSI ``some avg10``); null without PSI."""

    cpu: float | None = Field(default=None, ge=0, le=100)
    """Stalled on the CPU."""
    memory: float | None = Field(default=None, ge=0, le=100)
    """Stalled on memory."""
    io: float | None = Field(default=None, ge=0, le=100)
    """Stalled on the disk."""


class BootStages(WireRequest):
    """When a new machine reached each stage of its boot, in seconds since its kernel started.

    Measured on the machine's monotonic clock, because its wall clock may not be set yet.  A stage is null where it was
    skipped, such as the installation on a prepared image.
    """

    cloud_init: float | None = Field(default=None, ge=0, le=limits.MAX_UPTIME, strict=False)
    """The bootstrap script started."""
    engines: float | None = Field(default=None, ge=0, le=limits.MAX_UPTIME, strict=False)
    """All engines are installed."""
    bundle: float | None = Field(default=None, ge=0, le=limits.MAX_UPTIME, strict=False)
    """The node agent was downloaded from the gateway and is installed."""
    agent: float | None = Field(default=None, ge=0, le=limits.MAX_UPTIME, strict=False)
    """The node agent's process started."""
    registered: float | None = Field(default=None, ge=0, le=limits.MAX_UPTIME, strict=False)
    """The node agent registered."""
    heartbeat: float | None = Field(default=None, ge=0, le=limits.MAX_UPTIME, strict=False)
    """The gateway accepted its first heartbeat; set by the gateway."""


class RegisterRequest(WireRequest):
    """Registers a node.  Sent with the join token as bearer token."""

    node_url: str
    """Absolute http(s) origin at which the gateway reaches the agent."""
    instance: str
    """Name of the instance behind the node, as the provider knows it."""
    agent_version: str
    total: Shape
    runtimes: list[RuntimeReport]
    labels: dict[str, str] = {}
    stages: BootStages | None = None
    """How the machine booted; null where nothing measured it."""


class RegisterAnswer(WireAnswer):
    """The node's identity and both credentials.  Sent once; the node keeps them in a file that only root can read."""

    node_id: NodeId
    credential: str
    """Bearer token of the node's calls to the gateway."""
    control_token: str
    """Bearer token of the gateway's calls to the node."""
    heartbeat_seconds: float


class InventoryItem(WireRequest):
    """One sandbox as the node's engine has it; dead ones are included until the gateway deletes them."""

    sandbox_id: QualifiedId
    generation: int = Field(ge=1, le=limits.MAX_COUNTER)
    operation_id: str
    spec_hash: str
    state: SandboxState = Field(strict=False)
    reason: DeathReason | None = Field(default=None, strict=False)
    detail: str | None = None
    exit_code: int | None = Field(default=None, ge=-limits.MAX_COUNTER, le=limits.MAX_COUNTER)
    runtime: RuntimeName
    isolation: Isolation
    image_digest: str | None = None
    shape: Shape
    live_execs: int = Field(default=0, ge=0, le=limits.MAX_COUNTER)
    started_at: Timestamp | None = Field(default=None, strict=False)
    ended_at: Timestamp | None = Field(default=None, strict=False)


class Heartbeat(WireRequest):
    """The complete inventory of one node at one moment.  A node sends its heartbeats one after the other."""

    sequence: int = Field(ge=1, le=limits.MAX_COUNTER)
    """Incremented by each heartbeat of one agent process."""
    boot_id: str
    """New in every agent process."""
    node_url: str
    agent_version: str
    total: Shape
    reserved: Shape
    """Sum of the shapes of the sandboxes that hold resources."""
    used_memory_mb: int = Field(ge=0, le=limits.MAX_INTEGER)
    used_disk_mb: int = Field(ge=0, le=limits.MAX_INTEGER)
    pressure: Pressure = Pressure()
    runtimes: list[RuntimeReport]
    images: list[str] = []
    """Digests of the images that start without a pull."""
    inventory: list[InventoryItem]
    draining: bool = False
    usage: list[UsageReport] = Field(default=[], max_length=MAX_REPORTS)
    """Meters that are due, and those that the gateway has not yet taken for the last time."""


class Removal(WireAnswer):
    """A sandbox that no row owns in that generation; the node must remove it."""

    sandbox_id: str
    generation: int


class HeartbeatAnswer(WireAnswer):
    """What the gateway asks of the node."""

    remove: list[Removal] = []
    meters_taken: list[str] = []
    """Final meters of the heartbeat; the node need not keep them."""
    draining: bool = False
    heartbeat_seconds: float


class JoinTokenRequest(WireRequest):
    """Requests a join token that one instance may use once."""

    instance: str
    """Name of the instance that may use it."""
    pool: str
    """Pool that the machine belongs to."""
    role: NodeRole = "sandbox"
    """What the machine is used for; no sandbox is placed on a ``builder``."""
    ttl_seconds: int = Field(default=limits.JOIN_TOKEN_TTL, ge=1, le=limits.MAX_JOIN_TOKEN_TTL)
    """Seconds for which it is valid."""
    operation_id: str | None = Field(default=None, min_length=1, max_length=128)
    """The order of this instance.  A token for another operation of the same instance invalidates all older ones."""


class JoinToken(WireAnswer):
    """A join token; its secret is returned once."""

    token: str
    """The secret; returned only here."""
    instance: str
    """As requested."""
    expires_at: Timestamp
    """When it expires."""


class NodeRecord(WireAnswer):
    """A node as the gateway knows it."""

    id: str
    """Assigned at registration."""
    instance: str
    """Name of its instance, as the provider knows it."""
    pool: str
    """Pool that it belongs to."""
    role: NodeRole = "sandbox"
    """What it is used for; no sandbox is placed on a ``builder``."""
    state: NodeState
    """Its state."""
    node_url: str
    """Where the gateway reaches its agent."""
    agent_version: str
    """Version of its node agent."""
    total: Shape
    """Resources that it offers to sandboxes."""
    reserved: Shape
    """Sum of the shapes of all sandboxes that the gateway has placed there."""
    runtimes: list[RuntimeReport]
    """Its engines."""
    pressure: Pressure = Pressure()
    """As last reported."""
    sandboxes: int
    """Number of sandboxes on it that are not deleted."""
    registered_at: Timestamp
    """When it registered."""
    heartbeat_at: Timestamp | None = None
    """When its last heartbeat arrived; null before the first."""
    idle_since: Timestamp | None = None
    """Since when it has had no sandbox; null while it has one."""
    operation_id: str | None = None
    """The order of its instance, if its join token was bound to one."""
    stages: BootStages | None = None
    """How its machine booted."""


class NodeList(WireAnswer):
    """All nodes that are not gone."""

    nodes: list[NodeRecord]
    """The nodes, oldest first."""


class DrainRequest(WireRequest):
    """Closes a node to new sandboxes, or opens it again; what runs there keeps running."""

    draining: bool = True
    """``false`` opens it again."""


class NodeEnvelope(WireAnswer):
    """Answer to drain and remove."""

    node: NodeRecord
    """Its current state."""


# -- gateway to node --------------------------------------------------------------------------------------------------


class CreateOrder(WireRequest):
    """Run this sandbox: ``PUT /v1/sandboxes/{id}`` on the node.  Idempotent by id and generation.

    The id in the path is the qualified one, the spec's is the client's own.  A newer generation replaces the present
    one and keeps its workspace; an older one is refused.
    """

    # The spec has passed the gateway's strict check; the node reads it from the gateway's own JSON.
    model_config = ConfigDict(strict=False)

    generation: int = Field(ge=1, le=limits.MAX_COUNTER)
    operation_id: str
    spec: SandboxSpec
    runtime: RuntimeName


class OrderAnswer(WireAnswer):
    """The sandbox after an order."""

    sandbox: InventoryItem


class ExecOrder(WireRequest):
    """Start this session: ``POST /v1/sandboxes/{id}/exec`` on the node."""

    model_config = ConfigDict(strict=False)

    session_id: str
    generation: int = Field(ge=1, le=limits.MAX_COUNTER)
    exec: ExecRequest


class NodeHealth(WireAnswer):
    """``GET /healthz`` of a node agent."""

    ok: bool
    node_id: str | None
    state: Literal["starting", "ready", "draining"]


# -- the bundle that makes a machine a node ----------------------------------------------------------------------------

SUMS = "SHA256SUMS"
"""Name of the file that lists all others, in the format of ``sha256sum --check``."""


class BundleFile(WireAnswer):
    """One file of the bundle."""

    file: str
    sha256: str
    """Hex digest."""
    size: int
    """Bytes."""
    python: str | None = None
    """Python tag of a wheel, such as ``cp311`` or ``py3``; null for other files."""


class BundleManifest(WireAnswer):
    """The node agent in this gateway's version, and everything that it needs."""

    version: str
    """Version of the node agent."""
    sha256: str
    """Hex digest of `SUMS`, which pins every file."""
    files: list[BundleFile]
