"""What calls return: `TypedDict`s for the service's JSON objects, and dataclasses where bytes are decoded.

Fields that a `TypedDict` does not require are absent from what older services answer.
"""

import base64
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NotRequired, Required, Self, TypedDict

from .specs import SandboxSpecInfo


class ServiceHealth(TypedDict):
    """Health of the service."""

    ok: bool
    service: str
    version: str


class SandboxInfo(TypedDict, total=False):
    """One sandbox as the service describes it.  Times are ISO 8601 with an offset."""

    id: Required[str]
    tenant: str
    """Whose it is."""
    generation: int
    """Counts incarnations of the id, from 1."""
    image: str
    image_digest: str | None
    labels: dict[str, str]
    spec: SandboxSpecInfo
    spec_hash: str
    state: str
    """E.g. ``running``, ``paused``, ``failed``, ``deleted``."""
    reason: str | None
    """Why it ended, e.g. ``oom``; ``None`` while it has not."""
    waiting: str | None
    """What it waits for while it is ``pending``, e.g. ``no_room``."""
    detail: str | None
    """A sentence that goes with ``reason`` or ``waiting``."""
    exit_code: int | None
    """Of the first process."""
    runtime: str | None
    isolation: str | None
    node_id: str | None
    operation_id: str
    created_at: str
    updated_at: str
    started_at: str | None
    ended_at: str | None
    expires_at: str | None


class SandboxResponse(TypedDict, total=False):
    """Response to create, pause, resume and restart."""

    sandbox: SandboxInfo
    recovered: bool
    """The create found the sandbox already there."""


class SandboxListResponse(TypedDict):
    """One page of sandboxes, oldest first."""

    sandboxes: list[SandboxInfo]
    next_cursor: NotRequired[str | None]


class SandboxDeleteResponse(TypedDict):
    """Response to a delete."""

    ok: bool
    deleted: SandboxInfo | Literal[False]
    """``False`` when there was no such sandbox."""


class SandboxUploadResponse(TypedDict):
    """A file that was written whole."""

    ok: bool
    sandbox_id: str
    path: str
    size: int
    """Bytes."""


@dataclass(frozen=True)
class SandboxUsage:
    """What a running sandbox uses now.

    Attributes:
        memory_mb: MiB of memory.
        cpu_seconds: processor time since its start.
        disk_mb: MiB of writable disk.
        pids: processes and threads.
    """

    memory_mb: float
    cpu_seconds: float
    disk_mb: float
    pids: int

    @classmethod
    def from_payload(cls, payload: dict[str, Any]) -> Self:
        """Read the service's response."""
        return cls(**{name: payload[name] for name in cls.__dataclass_fields__})


@dataclass(frozen=True)
class SandboxLogChunk:
    """A piece of the output of a sandbox's first process.

    Attributes:
        stream: ``stdout`` or ``stderr``.
        offset: where in that stream ``data`` begins, in bytes.
        next_offset: where to read on.
        data: the exact bytes.
        eof: nothing more is there yet; more may come while the process lives.
    """

    stream: str
    offset: int
    next_offset: int
    data: bytes
    eof: bool

    @classmethod
    def from_payload(cls, payload: dict[str, Any]) -> Self:
        """Read the service's response."""
        return cls(
            stream=payload["stream"],
            offset=payload["offset"],
            next_offset=payload["next_offset"],
            data=base64.b64decode(payload["data"]),
            eof=payload["eof"],
        )


class SandboxExecSession(TypedDict, total=False):
    """State of an exec session."""

    id: Required[str]
    sandbox_id: str
    generation: int
    """Of the sandbox."""
    command: list[str]
    working_dir: str | None
    status: str
    """``running``, ``exited`` or ``failed``."""
    exit_code: int | None
    """As a shell reports it: 128 + n after signal n, 124 after a timeout; ``None`` while it runs."""
    signal: int | None
    timed_out: bool
    stdin_open: bool
    stdout_bytes: int
    """True total, also where the stored output was cut."""
    stderr_bytes: int
    truncated: bool
    """Some output was counted and not stored."""
    last_sequence: int
    lost: bool
    """The outcome is unknown; `SandboxClient.exec` and `ExecHandle` raise `ExecLostError`."""
    error: str | None
    """Why the session failed, when the process did not end by itself."""
    created_at: str
    updated_at: str


class SandboxExecEvent(TypedDict, total=False):
    """One event of a session; `event_bytes` returns the exact bytes of its output."""

    sequence: Required[int]
    """From 1, without gaps."""
    stream: Required[str]
    """``stdout``, ``stderr``, ``status``, ``stdin_closed``, ``truncated``, ``error`` or ``exit``."""
    data: str
    """Output as text, with replacement characters where it is not UTF-8."""
    data_base64: str | None
    """The exact bytes, where the output is not UTF-8."""
    exit_code: int | None
    created_at: str


class SandboxExecResponse(TypedDict):
    """A session, and its events where they were asked for."""

    session: SandboxExecSession
    events: NotRequired[list[SandboxExecEvent]]


def event_bytes(event: SandboxExecEvent) -> bytes:
    """Return the exact bytes of a ``stdout`` or ``stderr`` event.

    ``event["data"]`` is the same as text, with replacement characters where the bytes are not valid UTF-8.
    """
    exact = event.get("data_base64")
    if isinstance(exact, str):
        return base64.b64decode(exact)
    data = event.get("data")
    return data.encode() if isinstance(data, str) else b""


@dataclass(frozen=True)
class SandboxExecResult:
    """A command that has ended, or was killed by its timeout.

    Attributes:
        session_id: id of the exec session.
        status: ``exited`` when the process ended by itself, whatever its exit code; ``failed`` when it could not be
            started, was killed by its timeout, or (as `ExecLostError.result`) its end could not be seen.
        exit_code: as a shell reports it: 128 + n after signal n, 124 after a timeout; ``None`` when unknown.
        events: everything that happened, in order.
        session: the last known state of the session.
    """

    session_id: str
    status: str
    exit_code: int | None
    events: tuple[SandboxExecEvent, ...]
    session: SandboxExecSession

    @classmethod
    def of(cls, session: SandboxExecSession, events: tuple[SandboxExecEvent, ...]) -> Self:
        """Make the result of a session that has ended."""
        code = session.get("exit_code")
        return cls(
            session_id=session["id"],
            status=str(session.get("status")),
            exit_code=code if isinstance(code, int) and not session.get("lost") else None,
            events=events,
            session=session,
        )

    @cached_property
    def stdout_bytes(self) -> bytes:
        """Standard output, byte for byte."""
        return self._bytes("stdout")

    @cached_property
    def stderr_bytes(self) -> bytes:
        """Standard error, byte for byte."""
        return self._bytes("stderr")

    @cached_property
    def stdout(self) -> str:
        """Standard output as UTF-8 text, with replacement characters where it is not."""
        return self.stdout_bytes.decode(errors="replace")

    @cached_property
    def stderr(self) -> str:
        """Standard error as UTF-8 text, with replacement characters where it is not."""
        return self.stderr_bytes.decode(errors="replace")

    @property
    def success(self) -> bool:
        """The process ended by itself with exit code 0."""
        return self.status == "exited" and self.exit_code == 0

    @property
    def timed_out(self) -> bool:
        """The process group was killed because ``timeout_seconds`` ran out; the output so far is here."""
        return self.session.get("timed_out") is True

    @property
    def truncated(self) -> bool:
        """Output went over ``max_output_bytes`` and was not kept; ``session`` has the true totals."""
        return self.session.get("truncated") is True

    @property
    def error(self) -> str | None:
        """Why the session failed, when the process did not end by itself."""
        value = self.session.get("error")
        return value if isinstance(value, str) else None

    def _bytes(self, stream: Literal["stdout", "stderr"]) -> bytes:
        return b"".join(event_bytes(event) for event in self.events if event.get("stream") == stream)


class ResourceAmounts(TypedDict):
    """An amount of every resource."""

    cpus: float
    memory_mb: int
    disk_mb: int
    gpus: int
    slots: int


class PreparedUnitsInfo(TypedDict):
    """Units of one shape that were asked for ahead and that no create has claimed yet."""

    prepare_id: str
    tenant: str
    resources: ResourceAmounts
    """Of one unit."""
    count: int
    total_resources: ResourceAmounts
    runtime: str | None
    isolation: str
    image: str | None
    """``None`` for any image."""
    created_at: str
    updated_at: str
    expires_at: str


class PreparedBuildersInfo(TypedDict):
    """Builders that were asked for ahead."""

    prepare_id: str
    tenant: str
    count: int
    created_at: str
    updated_at: str
    expires_at: str


class WaitingSandboxInfo(TypedDict):
    """One sandbox that no node has room for now."""

    sandbox_id: str
    tenant: str
    shape: ResourceAmounts
    runtime: str | None
    isolation: str
    since: str


class CapacityDemand(TypedDict):
    """Everything that capacity is wanted for: waiting sandboxes and what was asked for ahead."""

    waiting: list[WaitingSandboxInfo]
    """Oldest first."""
    pending_count: int
    pending_resources: ResourceAmounts
    oldest_pending_seconds: float | None
    prepared: list[PreparedUnitsInfo]
    prepared_resources: ResourceAmounts
    desired_resources: ResourceAmounts
    """Pending and prepared together."""
    prepared_builders: list[PreparedBuildersInfo]
    prepared_builder_count: int
    desired_builders: NotRequired[int]
    """Builders that should run."""


class PrepareCapacityResponse(TypedDict):
    """What is prepared under one id now."""

    prepare: PreparedUnitsInfo
    demand: CapacityDemand


class PreparedCapacityResponse(TypedDict):
    """All prepared capacity, in the order in which it expires."""

    prepared: list[PreparedUnitsInfo]
    demand: CapacityDemand


class DeleteCapacityResponse(TypedDict):
    """Prepared capacity that was taken back; ``deleted`` is ``None`` when there was nothing of that id."""

    ok: bool
    deleted: PreparedUnitsInfo | None
    demand: CapacityDemand


class PrepareBuilderResponse(TypedDict):
    """The builders that are prepared under one id now."""

    prepare: PreparedBuildersInfo
    demand: CapacityDemand


class PreparedBuildersResponse(TypedDict):
    """All prepared builders, in the order in which they expire."""

    prepared_builders: list[PreparedBuildersInfo]
    demand: CapacityDemand


class DeleteBuilderResponse(TypedDict):
    """Prepared builders that were taken back; ``deleted`` is ``None`` when there was nothing of that id."""

    ok: bool
    deleted: PreparedBuildersInfo | None
    demand: CapacityDemand
