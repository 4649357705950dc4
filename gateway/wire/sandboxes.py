"""A sandbox: what a client asks for, and what the API reports about it."""

import hashlib
import json
import posixpath
import re
from typing import Annotated, Final, Literal, Self
from uuid import uuid4

from pydantic import Field, StringConstraints, field_validator, model_validator

from gateway.wire import limits
from gateway.wire.base import SandboxId, Timestamp, WireAnswer, WireRequest
from gateway.wire.references import ImageName
from gateway.wire.resources import ALL_GPUS, GpuRequest, Shape, count_of
from gateway.wire.states import DeathReason, SandboxState, WaitReason
from gateway.wire.tenants import DEFAULT_TENANT, QualifiedId
from gateway.wire.text import of_form

RuntimeName = Literal["runsc", "docker"]
Isolation = Literal["gvisor", "runc"]
Network = Literal["none", "bridge"]

UserName = Annotated[
    str,
    of_form(
        r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,63})?$",
        "a uid or a user's name, with a gid or a group's name after a colon if at all, such as 1000:1000",
    ),
]
Capability = Annotated[str, of_form(r"^(CAP_)?[A-Z][A-Z0-9_]{0,40}$", "a Linux capability, such as NET_BIND_SERVICE")]
AbsolutePath = Annotated[str, of_form(r"^/", "an absolute path", max_length=limits.MAX_PATH_BYTES)]
Argument = Annotated[str, StringConstraints(max_length=limits.MAX_COMMAND_BYTES)]

_SHADOWED: Final = frozenset({"/", "/proc", "/sys", "/dev", "/tmp", "/run", "/.sandbox"})  # noqa: S108 - inside
_ENGINES_OWN: Final = ("/proc/", "/sys/", "/dev/", "/.sandbox/")

# capabilities(7): what each of these may do is done to the whole host.  The others act on the sandbox's own files,
# processes and network.
HOST_LEVEL_CAPABILITIES: Final = frozenset(
    """
    ALL AUDIT_CONTROL AUDIT_READ BLOCK_SUSPEND BPF CHECKPOINT_RESTORE DAC_READ_SEARCH LINUX_IMMUTABLE MAC_ADMIN
    MAC_OVERRIDE MKNOD NET_ADMIN PERFMON SYSLOG SYS_ADMIN SYS_BOOT SYS_MODULE SYS_NICE SYS_PACCT SYS_PTRACE SYS_RAWIO
    SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG WAKE_ALARM
    """.split()  # noqa: SIM905 - two dozen names are a list to read, not to quote
)
"""Capabilities, without ``CAP_``, that reach the host where a sandbox shares its kernel (``isolation: runc``)."""

DEFAULT_CAPABILITIES: Final = frozenset(
    """
    CHOWN DAC_OVERRIDE FSETID FOWNER MKNOD NET_RAW SETGID SETUID SETFCAP SETPCAP NET_BIND_SERVICE SYS_CHROOT KILL
    AUDIT_WRITE
    """.split()  # noqa: SIM905 - as above
)
"""What Docker leaves to a container that drops nothing; see "Runtime privilege and Linux capabilities" there."""


def check_size(command: list[str], env: dict[str, str]) -> None:
    """Check that Linux will accept a command line, so that nothing is ever cut.

    Raises:
        ValueError: one argument or the sum is over the limits of `gateway.wire.limits`.
    """
    for index, argument in enumerate(command):
        if len(argument.encode()) > limits.MAX_ARGUMENT_BYTES:
            raise ValueError(
                f"command[{index}]: one argument may have {limits.MAX_ARGUMENT_BYTES} bytes at most (a limit of Linux);"
                " send it through stdin or a file"
            )
    for key, value in env.items():
        if not re.fullmatch(limits.ENV_KEY_PATTERN, key):
            raise ValueError(f"env: {key!r} is not a variable name (letters, digits and _, no leading digit)")
        if len(key.encode()) + len(value.encode()) + 1 > limits.MAX_ARGUMENT_BYTES:
            raise ValueError(f"env: {key} is longer than {limits.MAX_ARGUMENT_BYTES} bytes (a limit of Linux)")
    total = sum(len(text.encode()) + 1 for text in command) + sum(len(k) + len(v.encode()) + 2 for k, v in env.items())
    if total > limits.MAX_COMMAND_BYTES:
        raise ValueError(f"command and env together may have {limits.MAX_COMMAND_BYTES} bytes at most, not {total}")


class Security(WireRequest):
    """Privileges of the sandbox's processes.  The defaults are safe."""

    user: UserName | None = limits.DEFAULT_USER
    """``uid[:gid]`` or a name known in the image; ``null`` takes the image's own user."""
    cap_drop: list[Capability] = ["ALL"]
    """Linux capabilities to drop; ``ALL`` drops all."""
    cap_add: list[Capability] = []
    """Added after ``cap_drop``, such as ``NET_BIND_SERVICE``; with runc those that reach the host are refused."""
    no_new_privileges: bool = True
    """Whether setuid programs grant no privileges; ``false`` needs runc, as gVisor never lets them."""
    pids_limit: int | None = Field(default=limits.DEFAULT_PIDS, ge=limits.MIN_PIDS, le=limits.MAX_PIDS)
    """Most processes and threads at once; ``null`` leaves only the node's own limit."""
    read_only_rootfs: bool = False
    """Whether only the workspace and the in-memory file systems are writable."""
    init: bool = True
    """Whether a small init (tini) becomes the parent of the first process and reaps orphans."""

    @field_validator("user", mode="before")
    @classmethod
    def _empty_is_unset(cls, value: object) -> object:
        return None if value == "" else value


class Filesystem(WireRequest):
    """Location of the workspace, and sizes of the in-memory file systems."""

    enforce_disk_quota: bool = False
    """Accepted for older clients; the quota is always enforced."""
    workspace_path: AbsolutePath = limits.DEFAULT_WORKSPACE
    """Where the workspace is mounted: absolute, without ``..``.  It survives a restart."""
    tmpfs_mb: int = Field(default=limits.DEFAULT_TMPFS_MB, ge=1, le=65536)
    """MiB of /tmp, held in memory and counted against the sandbox's memory."""
    run_tmpfs_mb: int = Field(default=limits.DEFAULT_RUN_TMPFS_MB, ge=1, le=65536)
    """MiB of /run, likewise."""
    shm_mb: int = Field(default=limits.DEFAULT_SHM_MB, ge=1, le=65536)
    """MiB of /dev/shm, likewise."""

    @field_validator("workspace_path")
    @classmethod
    def _own_directory(cls, value: str) -> str:
        path = "/" + posixpath.normpath(value).lstrip("/")
        if ".." in value.split("/") or path in _SHADOWED or path.startswith(_ENGINES_OWN):
            raise ValueError(
                "workspace_path: must be a directory of its own, without '..' and not in /proc, /sys, /dev or /.sandbox"
            )
        return path


class Ssh(WireRequest):
    """Accepted for older clients; only ``enabled: false`` is supported."""

    enabled: Literal[False] = False
    """Only ``false`` is supported."""
    user: str = "root"
    """Not used."""
    host: str = "127.0.0.1"
    """Not used."""
    host_port: int | None = Field(default=None, ge=0, le=65535)
    """Not used."""
    container_port: int = Field(default=22, ge=0, le=65535)
    """Not used."""
    authorized_keys: list[str] = []
    """Not used."""


def generated_id() -> str:
    """Return a new id, for a spec without one."""
    return f"sandbox-{uuid4().hex}"


class SandboxSpec(WireRequest):
    """What a client asks for.  Specs are equal when all fields are, with defaults filled in."""

    id: SandboxId = Field(default_factory=generated_id)
    """If absent, the service generates one.  Only a create that names its id can be repeated."""
    image: ImageName
    """Name of an image, such as ``docker.io/library/debian:12``, or its whole id: ``sha256:`` and 64 digits."""
    command: list[Argument] = Field(default=[], max_length=4096)
    """The first process; if empty, the image's own, and without one in the image the sandbox just stays up."""
    env: dict[str, Argument] = Field(default={}, max_length=limits.MAX_ENV_ENTRIES)
    """Variables of the first process and of every exec; they appear in every answer about the sandbox."""
    working_dir: AbsolutePath | None = None
    """``null`` takes the image's, or the workspace if the image names none or ``/``."""
    cpus: float = Field(default=limits.DEFAULT_CPUS, ge=limits.MIN_CPUS, le=limits.MAX_CPUS)
    """Cores; fractions are allowed."""
    memory_mb: int = Field(default=limits.DEFAULT_MEMORY_MB, ge=limits.MIN_MEMORY_MB, le=limits.MAX_MEMORY_MB)
    """MiB for all processes together and /tmp; exceeding it ends the whole sandbox: ``oom``."""
    disk_mb: int = Field(default=limits.DEFAULT_DISK_MB, ge=limits.MIN_DISK_MB, le=limits.MAX_DISK_MB)
    """MiB for the writable layer and the workspace together."""
    gpus: GpuRequest = 0
    """As ``docker run --gpus``: a count, ``all``, or ``device=0,1`` with numbers or whole UUIDs.  No other sandbox
    gets them."""
    network: Network = "none"
    """``none``: loopback only; ``bridge``: the internet, but no private network."""
    ttl_seconds: int | None = Field(default=None, ge=1, le=limits.MAX_TTL_SECONDS)
    """Seconds from acceptance after which the sandbox is deleted; ``null``: the default of the tenant's policy."""
    idle_seconds: int | None = Field(default=None, ge=1, le=limits.MAX_TTL_SECONDS)
    """Seconds without a call and without a running exec after which the sandbox is deleted."""
    runtime: RuntimeName | None = None
    """``null`` lets the service choose: docker for GPUs or runc, runsc otherwise."""
    isolation: Isolation = "gvisor"
    """``gvisor``, or ``runc`` for an ordinary container, which needs the docker runtime."""
    ssh: Ssh | None = None
    """Accepted for older clients; only ``null`` and ``enabled: false`` are supported."""
    security: Security = Security()
    """Privileges of its processes; see `Security`."""
    filesystem: Filesystem = Filesystem()
    """Workspace and in-memory file systems; see `Filesystem`."""
    labels: dict[str, str] = Field(default={}, max_length=limits.MAX_LABELS)
    """The client's own labels, by which lists can be filtered."""
    parkable: bool = False
    """Accepted for older clients: every sandbox here can be paused."""
    managed_process: Literal[False] = False
    """Accepted for older clients; only ``false`` is supported."""

    @field_validator("memory_mb", "cpus", "disk_mb", "network", "security", "filesystem", mode="before")
    @classmethod
    def _null_takes_default(cls, value: object, info: object) -> object:
        # The SDK in the field sends every field, including nulls.
        if value is None:
            return cls.model_fields[info.field_name].get_default()  # type: ignore[attr-defined]
        return value

    @field_validator("ssh", mode="before")
    @classmethod
    def _ssh_off(cls, value: object) -> object:
        return None if value is False else value

    @field_validator("labels")
    @classmethod
    def _label_grammar(cls, value: dict[str, str]) -> dict[str, str]:
        for key, text in value.items():
            if key.startswith(limits.LABEL_RESERVED_PREFIX):
                raise ValueError(
                    f"labels: {key!r}: keys that start with {limits.LABEL_RESERVED_PREFIX!r} are the service's own"
                )
            if not key or len(key) > limits.MAX_LABEL_LENGTH or len(text) > limits.MAX_LABEL_LENGTH:
                raise ValueError(
                    f"labels: keys and values have at most {limits.MAX_LABEL_LENGTH} characters, keys at least 1"
                )
        return value

    @model_validator(mode="after")
    def _as_a_whole(self) -> Self:
        check_size(self.command, self.env)
        if self.isolation == "runc" and self.runtime == "runsc":
            raise ValueError("isolation: 'runc' needs runtime 'docker'")
        if self.isolation == "gvisor" and not self.security.no_new_privileges:
            raise ValueError(
                "security.no_new_privileges: false needs isolation 'runc': under gVisor setuid programs grant nothing"
            )
        if self.gpu_count and self.runtime == "runsc":
            raise ValueError("gpus: GPUs need runtime 'docker'")
        return self

    @property
    def gpu_count(self) -> int:
        """Number of GPUs that placement must find; ``all`` needs at least one."""
        return count_of(self.gpus)

    @property
    def host_level_capabilities(self) -> list[str]:
        """Added capabilities that would reach the host; none under gVisor, whose kernel is the sandbox's own."""
        if self.isolation != "runc":
            return []
        return sorted({name.removeprefix("CAP_") for name in self.security.cap_add} & HOST_LEVEL_CAPABILITIES)

    @property
    def capabilities(self) -> frozenset[str]:
        """Capabilities that its processes may hold, without ``CAP_``; ``ALL`` stands for every one."""
        dropped = {name.removeprefix("CAP_") for name in self.security.cap_drop}
        kept = frozenset() if "ALL" in dropped else DEFAULT_CAPABILITIES - dropped
        kept -= HOST_LEVEL_CAPABILITIES if self.isolation == "runc" else frozenset()
        return kept | {name.removeprefix("CAP_") for name in self.security.cap_add}

    @property
    def shape(self) -> Shape:
        """What a node must have free to take this sandbox."""
        return Shape(cpus=self.cpus, memory_mb=self.memory_mb, disk_mb=self.disk_mb, gpus=self.gpu_count, slots=1)

    @property
    def asked(self) -> Shape:
        """What it may turn out to take: ``all`` GPUs of a node that is not chosen yet may be any number."""
        return self.shape.model_copy(update={"gpus": limits.MAX_GPUS}) if self.gpus == ALL_GPUS else self.shape

    @property
    def chosen_runtime(self) -> RuntimeName | None:
        """The runtime that the spec implies; ``None`` if either will do (runsc is preferred)."""
        if self.runtime is None and (self.gpu_count or self.isolation == "runc"):
            return "docker"
        return self.runtime

    def sha256(self) -> str:
        """Return the hex digest of the spec with defaults filled in: equal specs have equal digests."""
        canonical = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


class RecordedSpec(SandboxSpec):
    """The spec as an answer shows it: every field of `SandboxSpec`, and for operators its id says whose it is."""

    id: QualifiedId
    """As ``id`` of the record."""

    @classmethod
    def of(cls, spec: SandboxSpec, sandbox_id: str) -> "RecordedSpec":
        """Return a spec that was checked before, under the id of its record."""
        return RecordedSpec.model_construct(spec.model_fields_set, **{**spec.__dict__, "id": sandbox_id})


class SandboxRecord(WireAnswer):
    """Everything the service knows about one sandbox."""

    id: str
    """The spec's id, or one that the service generated; for operators ``<tenant>..<id>`` unless it is the default
    tenant's."""
    tenant: str = DEFAULT_TENANT
    """Whose it is: the tenant of the token that created it."""
    generation: int
    """Counts the incarnations of the id, from 1."""
    image: str
    """As in the spec."""
    image_digest: str | None = None
    """Digest that the reference resolved to; null until the node has reported it."""
    labels: dict[str, str] = {}
    """As in the spec."""
    spec: RecordedSpec
    """What was requested, with defaults filled in."""
    spec_hash: str
    """Hex SHA-256 of what was requested: equal specs have equal digests."""
    state: SandboxState
    """Its state."""
    reason: DeathReason | None = None
    """Why it ended; null before its end."""
    waiting: WaitReason | None = None
    """What it waits for; null unless it is ``pending``, and until the service has looked for room."""
    detail: str | None = None
    """A sentence for people that goes with ``reason`` or ``waiting``."""
    exit_code: int | None = None
    """Exit code of its first process; null while that runs, or if unknown."""
    runtime: RuntimeName | None = None
    """Engine that runs it; null until known."""
    isolation: Isolation | None = None
    """What isolates it from the node's kernel; null until known."""
    node_id: str | None = None
    """Node that it is on; null until one is chosen."""
    operation_id: str
    """Id of the service's last order about it."""
    created_at: Timestamp
    """When it was accepted."""
    updated_at: Timestamp
    """When the record last changed."""
    started_at: Timestamp | None = None
    """When its first process started; null before."""
    ended_at: Timestamp | None = None
    """When it ended; null before."""
    expires_at: Timestamp | None = None
    """When its ttl runs out, its own or the policy's default; null without one."""


class SandboxEnvelope(WireAnswer):
    """Answer to create, get, pause, resume and restart."""

    sandbox: SandboxRecord
    """Its current state."""
    recovered: bool = False
    """Whether the create found the sandbox already there."""


class SandboxList(WireAnswer):
    """One page of sandboxes, oldest first."""

    sandboxes: list[SandboxRecord]
    """May be fewer than ``limit`` if the specs are large; only ``next_cursor`` says whether there are more."""
    next_cursor: str | None = None
    """Pass as ``cursor`` to get the next page; null on the last page."""


class DeleteAnswer(WireAnswer):
    """Answer to delete; ``deleted`` is false if there was no such sandbox."""

    ok: bool = True
    """Always true."""
    deleted: SandboxRecord | Literal[False]
    """The record, in state ``deleted`` or still ``deleting``; ``false`` if there was none."""


class Usage(WireAnswer):
    """Current resource use of a running sandbox."""

    memory_mb: float
    """MiB."""
    cpu_seconds: float
    """CPU time since it started."""
    disk_mb: float
    """MiB of its writable disk."""
    pids: int
    """Number of processes and threads."""


class LogChunk(WireAnswer):
    """A part of the first process's output.  ``data`` is base64; ``eof`` means caught up, not finished."""

    stream: Literal["stdout", "stderr"]
    """Name of the output."""
    offset: int
    """Offset of the first byte of ``data``."""
    next_offset: int
    """Pass as ``offset`` to continue."""
    data: str
    """Base64; empty if there is nothing yet."""
    eof: bool
    """Whether this is all so far; a running process may still write more."""
