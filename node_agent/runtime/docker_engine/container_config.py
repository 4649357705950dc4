"""The container of a sandbox, decided from its order and its image: pure, and alone in knowing Docker's names."""

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gateway.wire.limits import MIB
from gateway.wire.sandboxes import SandboxSpec
from node_agent.host import cgroup
from node_agent.host.accounts import Account
from node_agent.host.images import EngineImage
from node_agent.host.programs import BUSYBOX_INSIDE as BUSYBOX
from node_agent.runtime.base import Order
from node_agent.runtime.docker_engine import scripts
from node_agent.runtime.etc_files import hostname

STDOUT: Final = "/.sandbox/stdout"
STDERR: Final = "/.sandbox/stderr"

LABEL: Final = "sandbox-fleet.tag"
LABEL_ID: Final = "sandbox-fleet.id"
LABEL_GENERATION: Final = "sandbox-fleet.generation"
LABEL_OPERATION: Final = "sandbox-fleet.operation"
LABEL_SPEC: Final = "sandbox-fleet.spec"

RUNTIMES: Final = {"gvisor": "runsc", "runc": "runc"}
_STAY_UP: Final = (BUSYBOX, "sleep", "2147483647")
_PERIOD_US: Final = 100_000  # the kernel's default
_UNBOUNDED_PIDS: Final = 32_768


@dataclass(frozen=True)
class HostParts:
    """Where the parts of one sandbox lie on the host.

    Attributes:
        busybox: the static busybox.
        workspace, stdout, stderr: on the sandbox's volume.
        volumes: for each volume path that the image declares, a directory on the sandbox's volume.
        etc: by name, the files of ``/etc`` that the sandbox gets, on its volume.
        network: Docker's network; ``none`` without.
        account: the user of its processes.
    """

    busybox: Path
    workspace: Path
    stdout: Path
    stderr: Path
    volumes: dict[str, Path]
    etc: dict[str, Path]
    network: str
    account: Account


@dataclass(frozen=True)
class ContainerNames:
    """Names that the host and the first process's script go by.

    Attributes:
        tag: the node's.
        prefix: of the mark that the first process prints when it begins; see `scripts`.
        cgroup_parent: cgroup below which Docker puts the container; empty for Docker's own.
    """

    tag: str
    prefix: str
    cgroup_parent: str


def cgroup_parent(tag: str) -> str:
    """Return the cgroup of all of this node's containers."""
    return f"/{cgroup.parent_name(cgroup_tag(tag))}"


def cgroup_tag(tag: str) -> str:
    """Return the tag under which `node_agent.host.cgroup` knows the group of this runtime's containers."""
    return f"docker-{tag}"


def working_directory(spec: SandboxSpec, image: EngineImage) -> str:
    """Return where the sandbox's processes start."""
    if spec.working_dir is not None:
        return spec.working_dir
    if image.working_dir not in ("", "/"):
        return image.working_dir
    return spec.filesystem.workspace_path


def resolve_directory(start: str, wanted: str | None) -> str:
    """Return an exec's working directory, which may be relative to the sandbox's."""
    return start if wanted is None else posixpath.join(start, wanted)


def user(spec: SandboxSpec, image: EngineImage) -> str:
    """Return ``uid[:gid]`` or a name, as Docker takes it."""
    return spec.security.user or image.user or "0"


def labels(order: Order, tag: str) -> dict[str, str]:
    """Return the container's labels: no environment, no command, no secret."""
    return {
        LABEL: tag,
        LABEL_ID: order.sandbox_id,
        LABEL_GENERATION: str(order.generation),
        LABEL_OPERATION: order.operation_id,
        LABEL_SPEC: order.spec_hash,
    }


def container(order: Order, image: EngineImage, parts: HostParts, names: ContainerNames) -> dict[str, Any]:
    """Return the body of Docker's container create call."""
    spec = order.spec
    argv = (*image.entrypoint, *(tuple(spec.command) or image.command)) or _STAY_UP
    directory = working_directory(spec, image)
    return {
        "Image": image.id,
        "Entrypoint": [BUSYBOX, "sh", "-c", scripts.FIRST, "sh", STDOUT, STDERR, names.prefix, directory, *argv],
        "Cmd": [],
        "Hostname": hostname(spec),
        "Env": [f"{key}={value}" for key, value in (spec.env | _gpu_environment(order)).items()],
        "User": user(spec, image),
        "WorkingDir": "/",
        "Labels": labels(order, names.tag),
        "Healthcheck": {"Test": ["NONE"]},
        "AttachStdout": True,
        "AttachStderr": True,
        "HostConfig": _host_config(order, parts) | {"CgroupParent": names.cgroup_parent},
    }


def _host_config(order: Order, parts: HostParts) -> dict[str, Any]:
    spec = order.spec
    security = spec.security
    options = ["no-new-privileges:true"] if security.no_new_privileges else []
    owner = f"uid={parts.account.uid},gid={parts.account.gid}"
    return {
        "Runtime": RUNTIMES[spec.isolation],
        "NetworkMode": parts.network,
        # Not NanoCpus: Docker refuses more there than the host has.
        "CpuPeriod": _PERIOD_US,
        "CpuQuota": cgroup.cpu_quota(spec.cpus),
        "CpuShares": cgroup.cpu_shares(spec.cpus),
        "BlkioWeight": cgroup.io_weight(spec.cpus),
        "Memory": spec.memory_mb * MIB,
        "MemorySwap": spec.memory_mb * MIB,
        **_processes(spec),
        "CapDrop": _dropped(spec),
        "CapAdd": security.cap_add,
        "SecurityOpt": options,
        "ReadonlyRootfs": security.read_only_rootfs,
        "Init": security.init,
        "IpcMode": "private",
        "ShmSize": spec.filesystem.shm_mb * MIB,
        "Tmpfs": {
            "/tmp": f"rw,exec,nosuid,nodev,mode=1777,size={spec.filesystem.tmpfs_mb}m",  # noqa: S108 - the sandbox's
            "/run": f"rw,nosuid,nodev,mode=755,{owner},size={spec.filesystem.run_tmpfs_mb}m",
        },
        "Mounts": _mounts(spec, parts),
        "LogConfig": {"Type": "none", "Config": {}},
        "RestartPolicy": {"Name": "no"},
        "DeviceRequests": device_requests(order.gpus),
    }


def _dropped(spec: SandboxSpec) -> list[str]:
    """Return the capabilities to drop.

    MKNOD is the only one of `HOST_LEVEL_CAPABILITIES` that Docker leaves to a container by itself.
    """
    return [*spec.security.cap_drop, *(["MKNOD"] if spec.isolation == "runc" else [])]


def _processes(spec: SandboxSpec) -> dict[str, Any]:
    limit = spec.security.pids_limit or _UNBOUNDED_PIDS
    if spec.isolation == "runc":
        return {"PidsLimit": limit}
    return {
        "PidsLimit": cgroup.gvisor_threads(limit),
        "Ulimits": [{"Name": "nproc", "Soft": limit, "Hard": limit}],
    }


def _mounts(spec: SandboxSpec, parts: HostParts) -> list[dict[str, Any]]:
    bound = {path: (source, False) for path, source in parts.volumes.items()}
    bound |= {
        spec.filesystem.workspace_path: (parts.workspace, False),
        BUSYBOX: (parts.busybox, True),
        STDOUT: (parts.stdout, False),
        STDERR: (parts.stderr, False),
    }
    read_only = spec.security.read_only_rootfs
    bound |= {f"/etc/{name}": (source, read_only) for name, source in parts.etc.items()}
    return [
        {"Type": "bind", "Source": str(source), "Target": target, "ReadOnly": read_only}
        for target, (source, read_only) in bound.items()
    ]


def device_requests(devices: Sequence[str]) -> list[dict[str, Any]]:
    """Return what ``docker run --gpus device=…`` sends.  Never a count, which is the same devices for everybody."""
    if not devices:
        return []
    return [{"Driver": "", "Capabilities": [["gpu"]], "Options": {}, "Count": 0, "DeviceIDs": list(devices)}]


def _gpu_environment(order: Order) -> dict[str, str]:
    """Return the variable by which NVIDIA's hook learns the devices, so that neither image nor client says others."""
    return {"NVIDIA_VISIBLE_DEVICES": ",".join(order.gpus)} if order.gpus else {}
