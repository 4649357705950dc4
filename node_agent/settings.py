"""Settings of the node agent, from a TOML file and the environment; nothing is read at import."""

import hashlib
import socket
from pathlib import Path
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from gateway.wire import limits
from gateway.wire.closed_ranges import IpNetwork, parse_range
from gateway.wire.sandboxes import RuntimeName
from gateway.wire.settings import DaemonSettings

Range = Annotated[IpNetwork, BeforeValidator(parse_range)]


class NodeSettings(DaemonSettings):
    """One frozen value; every field may be set in the file or as ``SANDBOXES_NODE_<FIELD>``.  Unknown keys fail."""

    env_prefix = "SANDBOXES_NODE_"
    owner = "node agent"

    gateway_url: str = Field(pattern=r"^https?://[^/\s]+")
    """Where the gateway is reached from here."""
    join_token_file: Path | None = None
    """File with a join token that works once; needed until the node has registered."""
    root: Path = Path("/var/lib/sandbox-fleet/node")
    """Directory of everything that the node keeps: identity, sandboxes, spools.  Its path gives the node's tag."""
    host: str = "127.0.0.1"
    """Address to listen on: a private one that the gateway reaches."""
    port: int = Field(default=8091, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""
    node_url: str | None = Field(default=None, pattern=r"^https?://[^/\s]+$")
    """Origin at which the gateway reaches this node; ``None`` is http on ``host`` and the port listened on."""
    instance: str = Field(default_factory=socket.gethostname, min_length=1, max_length=253)
    """Name of this machine as its provider knows it."""
    labels: dict[str, str] = {}
    """Sent to the gateway at registration."""

    runtimes: tuple[RuntimeName, ...] = Field(default=("runsc", "docker"), min_length=1)
    """Engines to offer; one that fails its probe is reported and left out."""
    docker_url: str = "unix:///var/run/docker.sock"
    """The Docker engine: runs sandboxes of the docker runtime, and holds the images of both."""
    allow_runc_without_user_namespaces: bool = False
    """Whether to offer isolation ``runc`` with a Docker engine that gives containers no user namespaces.  Root in such
    a sandbox is root of this machine, kept in by capabilities and seccomp alone."""

    cpu_overcommit: float = Field(default=4.0, gt=0)
    """Cores given away per core of the machine.  Agents wait for a model most of the time, and a core that is short
    makes them slower, not wrong; the pressure that the node reports shows when it is too much."""
    cpus: float | None = Field(default=None, gt=0)
    """Cores to give away; ``None`` is the machine's, times ``cpu_overcommit``."""
    memory_mb: int | None = Field(default=None, gt=0)
    """MiB to give away; ``None`` is the machine's, less ``reserve_memory_mb``.  Memory is never overcommitted."""
    disk_mb: int | None = Field(default=None, gt=0)
    """MiB to give away; ``None`` is what is free below ``root`` at start, less ``reserve_disk_mb``."""
    reserve_memory_mb: int = Field(default=512, ge=0)
    """MiB kept for the agent, the engines and the kernel."""
    reserve_disk_mb: int = Field(default=2048, ge=0)
    """MiB kept free for spools and logs."""
    images_mb: int | None = Field(default=None, ge=1)
    """MiB kept for images: unpacked ones, and what this node's pulls brought into the engine; ``None`` is a quarter of
    what is free below ``root`` at start.  Where one more does not fit, those go that were not used for the longest time
    and that no sandbox is made from.  Images that an operator loaded are not counted and stay."""
    least_disk_mb: int = Field(default=512, ge=0)
    """MiB below ``root`` that new sandboxes leave free; with less it takes none until twice as much is free.  What
    runs is not concerned: the disk of each sandbox is set aside when it is created."""
    slots: int = Field(default=250, ge=1)
    """Most sandboxes at once, whatever the machine."""
    slots_per_core: float = Field(default=24.0, gt=0)
    """Most sandboxes at once per core.  An idle gVisor kernel wakes 2500 times a second to look at its fast path,
    which was measured at 2 % of a core; with this bound idle sandboxes take half of the machine at most, and the
    agent, the engines and the gateway's calls go on being served."""
    spool_mb: int = Field(default=8192, ge=16)
    """MiB that the histories of all exec sessions may take, shared fairly; output beyond it is counted, not stored."""
    max_execs: int = Field(default=limits.MAX_EXECS_PER_NODE, ge=1)
    """Most processes of exec sessions at once; tenants and sandboxes share them fairly."""
    exec_retention: float = Field(default=limits.EXEC_RETENTION, gt=0)
    """Seconds for which an ended session can be read."""

    closed_ranges: tuple[Range, ...] = Field(default=(), max_length=limits.MAX_ADDRESS_RANGES)
    """Ranges that sandboxes and pulls of images cannot reach, in addition to every special-purpose range."""
    open_ranges: tuple[Range, ...] = Field(default=(), max_length=limits.MAX_ADDRESS_RANGES)
    """Exceptions, such as the range of a private registry or mirror.  A node, its gateway and the metadata service of a
    cloud stay closed inside a range; only an entry for that one address (``10.0.0.5/32``) opens them."""
    max_connections: int | None = Field(default=None, ge=16, le=limits.MAX_CONNECTIONS_SETTING)
    """Most entries of one sandbox in the host's table of connections; ``None`` is an equal share of four fifths of the
    table, and 2048 at most."""
    max_connections_per_second: int = Field(
        default=limits.MAX_CONNECTIONS_PER_SECOND, ge=1, le=limits.MAX_CONNECTIONS_SETTING
    )
    """Most new connections of one sandbox; it may save up those of ten seconds."""

    boot_stages_file: Path | None = None
    """Where the bootstrap noted when it reached which stage; sent to the gateway at registration."""
    cleanup_on_exit: bool = False
    """Whether SIGTERM removes all sandboxes; by default they run on and the next start adopts them."""
    graceful_seconds: int = Field(default=5, ge=1)
    """Seconds that open requests have to end after SIGTERM."""

    @field_validator("root")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @field_validator("open_ranges")
    @classmethod
    def _narrow(cls, value: tuple[IpNetwork, ...]) -> tuple[IpNetwork, ...]:
        for network in value:
            if network.prefixlen < limits.WIDEST_OPEN_RANGE:
                raise ValueError(f"{network} is too wide: the widest that can be opened is /{limits.WIDEST_OPEN_RANGE}")
        return value

    @model_validator(mode="after")
    def _known_port(self) -> Self:
        if self.node_url is None and self.host in {"0.0.0.0", "::"}:  # noqa: S104 - refused, not bound
            raise ValueError("node_url: must be set where host is a wildcard: the gateway has to reach one address")
        return self

    @property
    def tag(self) -> str:
        """See `tag_of`."""
        return tag_of(self.root)


def tag_of(root: Path) -> str:
    """Return 8 hex digits from the root's path: in the name of everything that this node makes on its host."""
    return hashlib.sha256(str(root.absolute()).encode()).hexdigest()[:8]
