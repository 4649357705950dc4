"""The OCI bundle of a sandbox, decided from its spec and its image, and whether its first process can start at all.

An init would start well and only then fail to start a program that is not there; and runsc makes a working directory
that is missing, as root.  Both are mistakes of the spec that its author has to hear of, so the files are looked at on
the host before anything starts.
"""

import os
import posixpath
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gateway.wire.limits import MIB
from gateway.wire.sandboxes import DEFAULT_CAPABILITIES, SandboxSpec, Security
from node_agent.host import programs
from node_agent.host.accounts import Account
from node_agent.host.cgroup import cpu_quota, cpu_shares, gvisor_threads
from node_agent.host.disk import open_below
from node_agent.host.images import EngineImage
from node_agent.host.programs import BUSYBOX_INSIDE
from node_agent.runtime.etc_files import hostname

DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TOOLS: Final = posixpath.dirname(BUSYBOX_INSIDE)
NODE_PIDS: Final = 8192  # bound on processes where the spec sets none
_OPEN_FILES: Final = 65536
_PERIOD_US: Final = 100_000
_START_CPUS: Final = 2.0  # a start is short work on two threads; the true bound is set once it is done

_ENGINES: Final = ("/proc", "/sys", "/dev", "/.sandbox")  # mounted by the engine; always there
_EMPTY: Final = ("/tmp", "/run")  # noqa: S108 - fresh file systems inside the sandbox
_ANY_PROGRAM: Final = os.stat_result((stat.S_IFREG | 0o755, 0, 0, 1, 0, 0, 0, 0, 0, 0))

# capabilities(7), by number.
_CAPABILITIES: Final = tuple(
    """
    CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE NET_BIND_SERVICE
    NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN
    SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE
    MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE
    """.split()  # noqa: SIM905 - forty names are a list to read, not to quote
)


class UnstartableError(Exception):
    """Spec and image do not go together, or the spec names a capability that Linux does not have."""


@dataclass(frozen=True)
class FirstProcess:
    """What a sandbox starts with, and what every exec starts from."""

    argv: tuple[str, ...]
    env: dict[str, str]
    working_dir: str
    account: Account


@dataclass(frozen=True)
class BundleHost:
    """What of the host goes into the bundle.

    Attributes:
        tools: directory with the programs that are bound in at `TOOLS`.
        init: whether one of them is to be the parent of the first process and reap orphans.
        namespace: of the network; ``None`` for an empty one.
    """

    rootfs: Path
    workspace: Path
    tools: Path
    init: bool
    cgroup: str
    namespace: Path | None


def first_process(spec: SandboxSpec, image: EngineImage, account: Account) -> FirstProcess:
    """Choose the first process as ``docker run`` does; an image and a spec without one just stay up."""
    command = tuple(spec.command) or image.command
    argv = (*image.entrypoint, *command) or (BUSYBOX_INSIDE, "sleep", "2147483647")
    image_dir = image.working_dir if image.working_dir not in ("", "/") else None
    working_dir = spec.working_dir or image_dir or spec.filesystem.workspace_path
    return FirstProcess(argv, environment(spec, image.env, account), working_dir, account)


def environment(spec: SandboxSpec, image_env: Mapping[str, str], account: Account) -> dict[str, str]:
    """Merge the image's environment over what a login sets, and the spec's over both."""
    login = {"PATH": DEFAULT_PATH, "HOSTNAME": hostname(spec)}
    return login | identity_env(spec, account) | dict(image_env) | spec.env


def identity_env(spec: SandboxSpec, account: Account) -> dict[str, str]:
    """Return HOME and USER of an account; one without an entry in the image is at home in the workspace."""
    home = {"HOME": account.home or spec.filesystem.workspace_path}
    return home | ({"USER": account.name} if account.name else {})


def capabilities(security: Security) -> frozenset[str]:
    """Return names without ``CAP_``: Docker's default set, less the dropped, plus the added.

    Raises:
        UnstartableError: a name is unknown.
    """
    dropped, added = _named(security.cap_drop), _named(security.cap_add)
    return (DEFAULT_CAPABILITIES - dropped) | added


def _named(names: Iterable[str]) -> frozenset[str]:
    plain = {name.removeprefix("CAP_") for name in names}
    unknown = plain - {*_CAPABILITIES, "ALL"}
    if unknown:
        raise UnstartableError(f"unknown capability {', '.join(sorted(unknown))}")
    return frozenset(_CAPABILITIES) if "ALL" in plain else frozenset(plain)


def capability_bits(names: Iterable[str]) -> int:
    """Return one bit for each, as the kernel numbers them."""
    return sum(1 << _CAPABILITIES.index(name) for name in names)


def process_limit(spec: SandboxSpec) -> int:
    """Return the most processes that a user may have inside."""
    return spec.security.pids_limit or NODE_PIDS


def config(spec: SandboxSpec, process: FirstProcess, host: BundleHost) -> dict[str, Any]:
    """Return the content of ``config.json``."""
    return {
        "ociVersion": "1.0.2",
        "hostname": hostname(spec),
        "root": {"path": str(host.rootfs), "readonly": spec.security.read_only_rootfs},
        "process": _process(spec, process, host.init),
        "mounts": _mounts(spec, process.account, host),
        "linux": _linux(spec, host),
    }


def _process(spec: SandboxSpec, process: FirstProcess, init: bool) -> dict[str, Any]:
    account = process.account
    allowed = sorted(f"CAP_{name}" for name in capabilities(spec.security))
    # As on Linux without ambient capabilities: only root holds what it may have.
    held = allowed if account.uid == 0 else []
    pids = process_limit(spec)
    return {
        "terminal": False,
        "user": {"uid": account.uid, "gid": account.gid, "additionalGids": list(account.groups)},
        "args": [f"{TOOLS}/{programs.INIT_NAME}", "--", *process.argv] if init else list(process.argv),
        "env": [f"{key}={value}" for key, value in process.env.items()],
        "cwd": process.working_dir,
        "capabilities": {
            "bounding": allowed,
            "effective": held,
            "permitted": held,
            "inheritable": [],
            "ambient": [],
        },
        "noNewPrivileges": spec.security.no_new_privileges,
        # gVisor holds processes by this limit, per user; the host's pids controller counts gVisor's threads instead.
        "rlimits": [_limit("RLIMIT_NPROC", pids), _limit("RLIMIT_NOFILE", _OPEN_FILES)],
    }


def _limit(kind: str, value: int) -> dict[str, Any]:
    return {"type": kind, "soft": value, "hard": value}


def _mounts(spec: SandboxSpec, account: Account, host: BundleHost) -> list[dict[str, Any]]:
    files = spec.filesystem
    owner = (f"uid={account.uid}", f"gid={account.gid}")
    return [
        _mount("/proc", "proc"),
        _mount("/dev", "tmpfs", "nosuid", "mode=755"),
        _mount("/dev/pts", "devpts"),
        _mount("/dev/shm", "tmpfs", "nosuid", "nodev", "mode=1777", f"size={files.shm_mb}m"),  # noqa: S108 - inside the sandbox
        _mount("/sys", "sysfs", "nosuid", "noexec", "nodev", "ro"),
        _mount("/tmp", "tmpfs", "nosuid", "nodev", "mode=1777", f"size={files.tmpfs_mb}m"),  # noqa: S108
        _mount("/run", "tmpfs", "nosuid", "nodev", "mode=755", *owner, f"size={files.run_tmpfs_mb}m"),
        _bind(files.workspace_path, host.workspace, "rw"),
        _bind(TOOLS, host.tools, "ro"),
    ]


def _mount(destination: str, kind: str, *options: str) -> dict[str, Any]:
    return {"destination": destination, "type": kind, "source": kind, "options": list(options)}


def _bind(destination: str, source: Path, mode: str) -> dict[str, Any]:
    options = ["bind", "nodev", "nosuid", mode]
    return {"destination": destination, "type": "bind", "source": str(source), "options": options}


def _linux(spec: SandboxSpec, host: BundleHost) -> dict[str, Any]:
    network = {"type": "network"} | ({"path": str(host.namespace)} if host.namespace else {})
    return {
        "namespaces": [network, *({"type": kind} for kind in ("pid", "ipc", "uts", "mount"))],
        "cgroupsPath": host.cgroup,
        "resources": {
            "memory": {"limit": spec.memory_mb * MIB},
            "cpu": {
                "period": _PERIOD_US,
                "quota": cpu_quota(max(spec.cpus, _START_CPUS)),
                "shares": cpu_shares(spec.cpus),
            },
            "pids": {"limit": gvisor_threads(process_limit(spec))},
        },
    }


@dataclass(frozen=True)
class GuestFiles:
    """The file systems of a sandbox, as the host has them.

    Attributes:
        rootfs: its root on the host.
        workspace: its workspace on the host.
        workspace_path: where that is mounted inside.
    """

    rootfs: Path
    workspace: Path
    workspace_path: str

    def problem(self, process: FirstProcess) -> str | None:
        """Explain why the process cannot start, as far as its files show; ``None`` when nothing speaks against it."""
        directory = self._status(process.working_dir)
        if directory is None or not stat.S_ISDIR(directory.st_mode):
            return f"its working directory {process.working_dir} is not there"
        name = process.argv[0]
        search = [""] if "/" in name else process.env.get("PATH", "").split(":")
        problem = f"{name} was not found in PATH ({process.env.get('PATH', '')})"
        for folder in search:
            path = posixpath.join(process.working_dir, folder, name)
            found = self._status(path)
            if found is not None:
                if _executable(found, process.account):
                    return None
                problem = f"{path} is not an executable file for user {process.account.uid}"
            elif "/" in name:
                problem = f"{name} is not there"
        return problem

    def shows_directory(self, path: str) -> bool:
        """Return whether there is a directory; ``False`` also where only the sandbox itself can look."""
        path = posixpath.normpath(path)
        found = None if _is_below(path, *_ENGINES, *_EMPTY) else self._status(path)
        return found is not None and stat.S_ISDIR(found.st_mode)

    def _status(self, path: str) -> os.stat_result | None:
        path = posixpath.normpath(path)
        if _is_below(path, *_ENGINES):
            return self.rootfs.stat() if path in _ENGINES else _ANY_PROGRAM
        if path in _EMPTY:
            return self.rootfs.stat()
        if _is_below(path, *_EMPTY) and not _is_below(self.workspace_path, *_EMPTY):
            return None
        root = self.rootfs
        if _is_below(path, self.workspace_path):
            root, path = self.workspace, path.removeprefix(self.workspace_path) or "/"
        try:
            descriptor = open_below(root, path, os.O_PATH)
        except OSError:
            return None
        try:
            return os.fstat(descriptor)
        finally:
            os.close(descriptor)


def _is_below(path: str, *directories: str) -> bool:
    return any(path == directory or path.startswith(f"{directory}/") for directory in directories)


def _executable(status: os.stat_result, account: Account) -> bool:
    if not stat.S_ISREG(status.st_mode):
        return False
    if account.uid == 0:
        return bool(status.st_mode & 0o111)
    if account.uid == status.st_uid:
        return bool(status.st_mode & stat.S_IXUSR)
    if status.st_gid in (account.gid, *account.groups):
        return bool(status.st_mode & stat.S_IXGRP)
    return bool(status.st_mode & stat.S_IXOTH)
