"""What gateway and node agent exchange.

Node to gateway: register with a join token, then heartbeat with the node's own credential.  Gateway to node: orders
about sandboxes, with the control token from the registration.  Before all that, a machine fetches the bundle.
"""

from typing import Literal

from pydantic import ConfigDict, Field

from gateway.wire.base import Answer, NodeId, Request, SandboxId, Timestamp
from gateway.wire.exec import ExecRequest
from gateway.wire.resources import Shape
from gateway.wire.sandboxes import Isolation, RuntimeName, SandboxSpec
from gateway.wire.states import DeathReason, NodeState, SandboxState

NodeRole = Literal["sandbox", "builder", "both"]
"""What a node is for."""


class RuntimeReport(Request):
    """One engine of a node and what it can do."""

    name: RuntimeName
    """Which engine."""
    version: str
    """As the engine tells it."""
    isolations: list[Isolation]
    """What it can do."""
    pause: bool = False
    """Whether it can freeze a sandbox."""
    checkpoint: bool = False
    """Whether it can store a sandbox."""
    gpus: bool = False
    """Whether it can give GPUs to a sandbox."""


class Pressure(Request):
    """Share of the last 10 s, in percent, in which some task waited (Linux PSI ``some avg10``); null without PSI."""

    cpu: float | None = None
    """Waited for a core."""
    memory: float | None = None
    """Waited for memory."""
    io: float | None = None
    """Waited for the disk."""


class BootStages(Request):
    """How long a new machine took, stage by stage: seconds from the start of its kernel.

    Counted on the machine's own monotonic clock, so that a wall clock that is not set yet does no harm.  A stage is
    null where it did not happen, such as the installation on a prepared image.
    """

    cloud_init: float | None = Field(default=None, ge=0, strict=False)
    """The bootstrap script began."""
    engines: float | None = Field(default=None, ge=0, strict=False)
    """All engines are installed."""
    bundle: float | None = Field(default=None, ge=0, strict=False)
    """The node agent was fetched from the gateway and is installed."""
    agent: float | None = Field(default=None, ge=0, strict=False)
    """The node agent's process began."""
    registered: float | None = Field(default=None, ge=0, strict=False)
    """It introduced itself."""
    heartbeat: float | None = Field(default=None, ge=0, strict=False)
    """The gateway took in its first heartbeat; the gateway's own addition."""


class RegisterRequest(Request):
    """A node introduces itself.  Sent with the join token as bearer."""

    node_url: str
    """Absolute http(s) origin at which the gateway reaches the agent."""
    instance: str
    """Name of the instance behind the node, as the provider knows it."""
    agent_version: str
    total: Shape
    runtimes: list[RuntimeReport]
    labels: dict[str, str] = {}
    stages: BootStages | None = None
    """How the machine came up; null where nothing measured it."""


class RegisterAnswer(Answer):
    """The node's identity and both credentials.  Told once; the node keeps them in a file only root can read."""

    node_id: NodeId
    credential: str
    """Bearer of the node's calls to the gateway."""
    control_token: str
    """Bearer that the gateway will show on its calls to the node."""
    heartbeat_seconds: float


class InventoryItem(Request):
    """One sandbox as the engine of the node has it, dead ones included until the gateway deletes them."""

    sandbox_id: SandboxId
    generation: int = Field(ge=1)
    operation_id: str
    spec_hash: str
    state: SandboxState = Field(strict=False)
    reason: DeathReason | None = Field(default=None, strict=False)
    detail: str | None = None
    exit_code: int | None = None
    runtime: RuntimeName
    isolation: Isolation
    image_digest: str | None = None
    shape: Shape
    live_execs: int = 0
    started_at: Timestamp | None = Field(default=None, strict=False)
    ended_at: Timestamp | None = Field(default=None, strict=False)


class Heartbeat(Request):
    """The complete truth of one node at one moment.  Heartbeats of a node are sent one after the other."""

    sequence: int = Field(ge=1)
    """Grows by one a heartbeat within one life of the agent."""
    boot_id: str
    """New in every life of the agent."""
    node_url: str
    agent_version: str
    total: Shape
    reserved: Shape
    """Sum of the shapes of the sandboxes that hold resources."""
    used_memory_mb: int
    used_disk_mb: int
    pressure: Pressure = Pressure()
    runtimes: list[RuntimeReport]
    images: list[str] = []
    """Digests of the images that start without a pull."""
    inventory: list[InventoryItem]
    draining: bool = False


class Removal(Answer):
    """A sandbox that no row owns in that generation: the node removes it."""

    sandbox_id: str
    generation: int


class HeartbeatAnswer(Answer):
    """What the gateway wants of the node."""

    remove: list[Removal] = []
    draining: bool = False
    heartbeat_seconds: float


class JoinTokenRequest(Request):
    """Asks for a join token that one instance may use once."""

    instance: str
    """Name of the one machine that may use it."""
    pool: str
    """The pool that the machine belongs to."""
    role: NodeRole = "sandbox"
    """What the machine is for; no sandbox is placed on a ``builder``."""
    ttl_seconds: int = Field(default=3600, ge=1, le=86400)
    """How long it is good for."""
    operation_id: str | None = Field(default=None, min_length=1, max_length=128)
    """The order of this very instance.  A token for another operation of the same instance ends all older ones."""


class JoinToken(Answer):
    """A join token; the secret is told once."""

    token: str
    """The secret; told this once."""
    instance: str
    """As asked for."""
    expires_at: Timestamp
    """It is refused after this."""


class NodeRecord(Answer):
    """A node as the gateway knows it."""

    id: str
    """Made at registration."""
    instance: str
    """Its machine, as the provider knows it."""
    pool: str
    """The pool that it belongs to."""
    role: NodeRole = "sandbox"
    """What it is for; no sandbox is placed on a ``builder``."""
    state: NodeState
    """Where it stands."""
    node_url: str
    """Where the gateway reaches its agent."""
    agent_version: str
    """Of its node agent."""
    total: Shape
    """What it has for sandboxes."""
    reserved: Shape
    """Sum of the shapes of all sandboxes that the gateway has placed there."""
    runtimes: list[RuntimeReport]
    """Its engines."""
    pressure: Pressure = Pressure()
    """As last told."""
    sandboxes: int
    """How many sandboxes have a row there that is not deleted."""
    registered_at: Timestamp
    """When it introduced itself."""
    heartbeat_at: Timestamp | None = None
    """When it last told of itself; null before the first time."""
    idle_since: Timestamp | None = None
    """Since when no sandbox is there; null while one is."""
    operation_id: str | None = None
    """The order that its instance came from, where its join token was bound to one."""
    stages: BootStages | None = None
    """How long its machine took to come up."""


class NodeList(Answer):
    """All nodes that are not gone."""

    nodes: list[NodeRecord]
    """Each as the gateway knows it."""


class DrainRequest(Request):
    """Closes (or opens again) a node for new sandboxes; what runs there goes on."""

    draining: bool = True
    """``false`` opens it again."""


class NodeEnvelope(Answer):
    """Answer to drain and remove."""

    node: NodeRecord
    """As it stands now."""


# -- gateway to node --------------------------------------------------------------------------------------------------


class CreateOrder(Request):
    """Make this sandbox run: ``PUT /v1/sandboxes/{id}`` on the node.  Idempotent by id and generation.

    A generation above the one that is there replaces it and keeps its workspace; a lower one is refused.
    """

    # The spec has passed the gateway's strict check; the order is read again from its own JSON.
    model_config = ConfigDict(strict=False)

    generation: int = Field(ge=1)
    operation_id: str
    spec: SandboxSpec
    runtime: RuntimeName


class OrderAnswer(Answer):
    """The sandbox after an order."""

    sandbox: InventoryItem


class ExecOrder(Request):
    """Start this session: ``POST /v1/sandboxes/{id}/exec`` on the node."""

    model_config = ConfigDict(strict=False)

    session_id: str
    generation: int = Field(ge=1)
    exec: ExecRequest


class NodeHealth(Answer):
    """``GET /healthz`` of a node agent."""

    ok: bool
    node_id: str | None
    state: Literal["starting", "ready", "draining"]


# -- the bundle that makes a machine a node ----------------------------------------------------------------------------

SUMS = "SHA256SUMS"
"""Name of the file that lists all others, in the form that ``sha256sum --check`` reads."""
INSTALLER = "install.sh"
"""Name of the script that makes a machine a node out of the other files."""


class BundleFile(Answer):
    """One file of the bundle."""

    file: str
    sha256: str
    """Hex."""
    size: int
    """Bytes."""
    python: str | None = None
    """Python tag of a wheel, such as ``cp311`` or ``py3``; null for other files."""


class BundleManifest(Answer):
    """The exact node agent of this gateway, and everything that it needs."""

    version: str
    """Of the node agent."""
    sha256: str
    """Hex digest of `SUMS`: pins every file."""
    files: list[BundleFile]
