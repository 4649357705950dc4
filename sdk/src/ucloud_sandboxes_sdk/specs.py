"""What a client asks for: images and sandbox specs."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Required, Self, TypedDict, cast


@dataclass(frozen=True)
class Image:
    """The image that a sandbox starts from; made with `from_registry` or `from_name`."""

    reference: str

    def __post_init__(self) -> None:
        if not self.reference or self.reference != self.reference.strip():
            raise ValueError("image reference: must not be empty or have blanks around it")

    @classmethod
    def from_registry(cls, tag: str) -> Self:
        """Return an image by its registry reference, e.g. ``python:3.12-slim`` or ``host/name@sha256:…``."""
        return cls(tag)

    @classmethod
    def from_name(cls, name: str) -> Self:
        """Return an image by the name under which the service knows it."""
        return cls(name)

    def to_sandbox_image(self) -> str:
        """Return the reference as it goes on the wire."""
        return self.reference


class SandboxSecurityInfo(TypedDict, total=False):
    """A `SandboxSecuritySpec` on the wire."""

    user: str | None
    cap_drop: list[str]
    cap_add: list[str]
    no_new_privileges: bool
    pids_limit: int | None
    read_only_rootfs: bool
    init: bool


class SandboxFilesystemInfo(TypedDict, total=False):
    """A `SandboxFilesystemSpec` on the wire."""

    enforce_disk_quota: bool
    workspace_path: str
    tmpfs_mb: int
    run_tmpfs_mb: int
    shm_mb: int


class SandboxSpecInfo(TypedDict, total=False):
    """A `SandboxSpec` on the wire; in answers the service's defaults are filled in."""

    id: Required[str]
    image: str
    command: list[str]
    env: dict[str, str]
    working_dir: str | None
    cpus: float
    memory_mb: int
    disk_mb: int
    gpus: int | str
    network: str
    ttl_seconds: int | None
    idle_seconds: int | None
    runtime: str | None
    isolation: str
    security: SandboxSecurityInfo
    filesystem: SandboxFilesystemInfo
    labels: dict[str, str]
    parkable: bool


@dataclass(frozen=True)
class SandboxSecuritySpec:
    """What the sandbox's processes may do.  The defaults are the safe ones."""

    user: str | None = "1000:1000"
    """``uid[:gid]`` or a name known in the image; ``None`` takes the image's own user."""
    cap_drop: Sequence[str] = ("ALL",)
    cap_add: Sequence[str] = ()
    no_new_privileges: bool = True
    pids_limit: int | None = 256
    """Most processes and threads at once; ``None`` leaves only the node's own bound."""
    read_only_rootfs: bool = False
    init: bool = True
    """Reap orphaned processes."""

    def to_dict(self) -> SandboxSecurityInfo:
        """Return the JSON object on the wire."""
        wire = asdict(self) | {"cap_drop": list(self.cap_drop), "cap_add": list(self.cap_add)}
        return cast("SandboxSecurityInfo", wire)


@dataclass(frozen=True)
class SandboxFilesystemSpec:
    """Where the workspace lies, and how large the in-memory file systems are."""

    enforce_disk_quota: bool = False
    """Kept for older programs: the quota always holds."""
    workspace_path: str = "/workspace"
    tmpfs_mb: int = 64
    """MiB of ``/tmp``, held in memory."""
    run_tmpfs_mb: int = 16
    """MiB of ``/run``, held in memory."""
    shm_mb: int = 64
    """MiB of ``/dev/shm``, held in memory."""

    def to_dict(self) -> SandboxFilesystemInfo:
        """Return the JSON object on the wire."""
        return cast("SandboxFilesystemInfo", asdict(self))


@dataclass(frozen=True)
class SandboxSpec:
    """One sandbox.  ``None`` leaves a choice to the service: 1 core, 1024 MiB of memory, 4096 MiB of disk.

    The id makes a create safe to repeat: the same id with an equal spec is the same sandbox.
    """

    id: str
    """Up to 64 letters, digits, ``_``, ``.`` and ``-``, the first a letter or digit."""
    image: Image
    command: Sequence[str] = ()
    """The first process, without a shell; empty takes the image's own."""
    env: Mapping[str, str] = field(default_factory=dict)
    working_dir: str | None = None
    """Absolute path; ``None`` takes the image's."""
    memory_mb: int | None = None
    """MiB."""
    cpus: float | None = None
    """Cores; fractions are fine."""
    disk_mb: int | None = None
    """MiB that the sandbox may write, workspace included."""
    network: str = "none"
    """``none``, or ``bridge``: outward, with private and metadata addresses closed."""
    ttl_seconds: int | None = None
    """Seconds after acceptance at which the sandbox is deleted."""
    security: SandboxSecuritySpec | Mapping[str, Any] | None = field(default_factory=SandboxSecuritySpec)
    filesystem: SandboxFilesystemSpec | Mapping[str, Any] | None = field(default_factory=SandboxFilesystemSpec)
    labels: Mapping[str, str] = field(default_factory=dict)
    parkable: bool = False
    """Kept for older programs: every sandbox can be paused."""
    idle_seconds: int | None = field(default=None, kw_only=True)
    """Seconds without a call and without a running exec after which the sandbox is deleted."""
    gpus: int | str = field(default=0, kw_only=True)
    """As ``docker run --gpus``: a count, ``all``, or ``device=0,1``."""
    runtime: str | None = field(default=None, kw_only=True)
    """``runsc`` or ``docker``; ``None`` lets the service choose."""
    isolation: str | None = field(default=None, kw_only=True)
    """``gvisor`` (the default) or ``runc``."""

    def to_dict(self) -> SandboxSpecInfo:
        """Return the JSON object on the wire; choices left to the service are left out."""
        return cast("SandboxSpecInfo", wire_fields({name: getattr(self, name) for name in self.__dataclass_fields__}))


class CreateFields(TypedDict, total=False):
    """The fields of a `SandboxSpec` as keyword arguments of a create; ``None`` is as good as left out."""

    id: str | None
    image: Image
    command: Sequence[str] | str | None
    env: Mapping[str, str] | None
    working_dir: str | None
    memory_mb: int | None
    cpus: float | None
    disk_mb: int | None
    network: str | None
    ttl_seconds: int | None
    security: SandboxSecuritySpec | Mapping[str, Any] | None
    filesystem: SandboxFilesystemSpec | Mapping[str, Any] | None
    labels: Mapping[str, str] | None
    parkable: bool | None
    idle_seconds: int | None
    gpus: int | str | None
    runtime: str | None
    isolation: str | None


def wire_fields(fields: Mapping[str, Any]) -> dict[str, object]:
    """Return the keyword arguments of a create as the JSON object on the wire; ``None`` is left out.

    Raises:
        TypeError: ``image`` is not an `Image`.
    """
    wire: dict[str, object] = {key: _wire_value(key, value) for key, value in fields.items() if value is not None}
    if not wire.get("parkable", True):
        del wire["parkable"]
    if wire.get("gpus") == 0:
        del wire["gpus"]
    return wire


def _wire_value(key: str, value: Any) -> object:
    if key == "image":
        if not isinstance(value, Image):
            raise TypeError("image: must be an Image; use Image.from_registry(…) or Image.from_name(…)")
        return value.to_sandbox_image()
    if isinstance(value, SandboxSecuritySpec | SandboxFilesystemSpec):
        return value.to_dict()
    if key == "command":
        return argv(value)
    if isinstance(value, Mapping):
        return dict(value)
    return value


def argv(command: Sequence[str] | str) -> list[str]:
    """Return a command as a list of arguments; a bare string is a program without arguments, never a shell line."""
    return [command] if isinstance(command, str) else list(command)
