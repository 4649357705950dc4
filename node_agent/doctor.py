"""The rows that the node adds to ``sandboxes doctor``: what its machine needs.  Looks only; changes nothing."""

import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gateway.wire.system import Check, Verdict
from node_agent.host import interfaces
from node_agent.host.programs import is_static

ADMIN_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PROBE_SECONDS: Final = 10.0
OLDEST_KERNEL: Final = (5, 10)  # pidfds and unprivileged overlayfs features that the runtimes use
OLDEST_GVISOR: Final = 20240101  # builds before it cannot start on kernels of today
CONTROLLERS: Final = ("cpu", "memory", "pids")
STATE: Final = Path("/var/lib")
LEAST_DISK_MB: Final = 2048
COMFORTABLE_DISK_MB: Final = 20480
WITHOUT_ALLOCATION: Final = frozenset({"zfs", "nfs", "9p", "ext2", "ext3", "vfat"})
"""File systems on which fallocate(2) is refused, or promises nothing."""


def checks() -> list[Check]:
    """Return all rows, in the order in which a person would cure them."""
    rows = [user(), kernel(), cgroups(), pressure()]
    rows += [tool(*row) for row in _TOOLS]
    rows += [
        filesystem("overlay"),
        loop_devices(),
        busybox(),
        gvisor(),
        new_kernel_probe(),
        docker_engine(),
        user_namespaces(),
        *engine_floors(_output_of),
        firewall(),
        disk(),
    ]
    return rows


def user(uid: int | None = None) -> Check:
    """Check that this is root."""
    uid = os.geteuid() if uid is None else uid
    if uid == 0:
        return _ok("node: user", "root")
    return _error(
        "node: user", f"uid {uid}", "run the node agent as root: sandboxes need mounts, namespaces and cgroups"
    )


def kernel(release: str | None = None) -> Check:
    """Check that the kernel is new enough."""
    release = release or platform.release()
    numbers = tuple(int(part) for part in re.findall(r"\d+", release)[:2])
    if numbers >= OLDEST_KERNEL:
        return _ok("node: kernel", release)
    return _error("node: kernel", release, f"boot Linux {'.'.join(map(str, OLDEST_KERNEL))} or newer")


def cgroups(root: Path = Path("/sys/fs/cgroup")) -> Check:
    """Check that cgroups of either version have the controllers that limits need."""
    name = "node: cgroups"
    unified = root / "cgroup.controllers"
    if unified.exists():
        absent = sorted(set(CONTROLLERS) - set(unified.read_text().split()))
        if not absent:
            return _ok(name, "v2 with cpu, memory and pids")
        return _error(name, f"v2 without {', '.join(absent)}", "boot with these controllers in the unified hierarchy")
    absent = [controller for controller in CONTROLLERS if not (root / controller).is_dir()]
    if not absent:
        return _ok(name, "v1 with cpu, memory and pids")
    return _error(name, f"no {', '.join(absent)} below {root}", "mount the cgroup controllers, as systemd does at boot")


def pressure(directory: Path = Path("/proc/pressure")) -> Check:
    """Check that the kernel measures pressure."""
    if (directory / "cpu").exists():
        return _ok("node: pressure", "PSI")
    return _warning("node: pressure", "no PSI: nodes report no pressure", "boot with psi=1")


def tool(name: str, package: str, why: str) -> Check:
    """Check that a program is installed."""
    path = shutil.which(name, path=ADMIN_PATH)
    if path is not None:
        return _ok(f"node: {name}", path)
    return _error(f"node: {name}", f"not installed; {why}", f"apt-get install {package}")


def filesystem(kind: str, listing: Path = Path("/proc/filesystems"), modules: Path = Path("/lib/modules")) -> Check:
    """Check that the kernel knows a file system, or has a module for it."""
    name = f"node: {kind}"
    if kind in listing.read_text().split():
        return _ok(name, "in the kernel")
    if any((modules / platform.release()).rglob(f"{kind}*.ko*")):
        return _ok(name, "as a module")
    return _error(name, "the kernel has no such file system", f"boot a kernel with {kind}")


def loop_devices(device: Path = Path("/dev/loop-control")) -> Check:
    """Check that loop devices can be made: each sandbox's disk is one."""
    if device.exists():
        return _ok("node: loop devices", str(device))
    return _error("node: loop devices", f"{device} is missing", "modprobe loop")


def busybox(path: Path = Path("/bin/busybox")) -> Check:
    """Check that the busybox that moves files in sandboxes is there, and static."""
    name, cure = "node: busybox", "apt-get install busybox-static"
    if not path.exists():
        return _error(name, "not installed; files are moved with it", cure)
    if not is_static(path):
        return _error(name, f"{path} is not static: it cannot run inside a sandbox", cure)
    return _ok(name, f"{path}, static")


def gvisor() -> Check:
    """Check that gVisor is installed and of a build that starts today."""
    name, cure = (
        "node: gVisor",
        "apt-get install -t bookworm-backports runsc (Debian 12), apt-get install runsc (Debian 13)",
    )
    output = _output_of(["runsc", "--version"])
    if output is None:
        return _warning(name, "runsc is not installed: no runtime 'runsc', no isolation 'gvisor'", cure)
    version = output.splitlines()[0] if output else "no version"
    match = re.search(r"(\d{8})", version)
    if match is not None and int(match[1]) < OLDEST_GVISOR:
        return _error(name, f"{version} is too old for this kernel", cure)
    return _ok(name, f"{version}, platform systrap")


def new_kernel_probe() -> Check:
    """Find out whether gVisor needs ``/proc/sys/net`` hidden from it, as on Linux 6.15 and later."""
    seen = _output_of(
        ["unshare", "-n", "sh", "-c", "test -e /proc/sys/net/core/rmem_default && echo visible || echo hidden"]
    )
    if seen is None:
        return _warning("node: gVisor on this kernel", "not tried: network namespaces cannot be made", "run as root")
    wrapped = seen.strip() == "visible"
    found = "needs /proc/sys/net hidden; the node agent does that" if wrapped else "starts as it is"
    return _ok("node: gVisor on this kernel", found)


def docker_engine() -> Check:
    """Check that a Docker engine answers: it holds the images."""
    name = "node: Docker engine"
    output = _output_of(["docker", "version", "--format", "{{.Server.Version}}"])
    if output is not None:
        return _ok(
            name,
            f"{output.strip()} answers; of what it pulls only the registry's address is checked, and it may send"
            " the engine on to addresses inside: where clients are not trusted, list registries in the policy",
        )
    if shutil.which("dockerd", path=ADMIN_PATH):
        return _warning(name, "installed, but none answers on its default socket", "sandboxes up starts one of its own")
    return _error(name, "not installed; it holds the images", "apt-get install docker.io")


def firewall() -> Check:
    """Check that every sandbox with a network on this machine is behind its node's firewall."""
    name, cure = "node: firewall", "restart the node agent and read its log: it puts the firewall back, or says why not"
    found = {interface: match for interface in interfaces.names() if (match := _SANDBOX_INTERFACE.fullmatch(interface))}
    if not found:
        return _ok(name, "no sandbox with a network")
    listed = _output_of(["nft", "-j", "list", "tables", "inet"])
    entries = json.loads(listed)["nftables"] if listed is not None else []
    tables = {entry["table"]["name"] for entry in entries if "table" in entry}
    open_ones = [one for one, match in found.items() if f"sandbox_{match[2]}{_OWNER[match[1]]}" not in tables]
    reachable = sorted(one for one in open_ones if interfaces.is_up(one))
    if reachable:
        return _error(name, f"nothing stands between the host and {', '.join(reachable)}", cure)
    if any(interfaces.is_up(one) is False for one in found):
        return _error(name, "lost; sandboxes are cut off the network", cure)
    return _ok(name, f"protects {len(found)} sandboxes with a network")


def disk(path: Path = STATE, mountinfo: Path = Path("/proc/self/mountinfo")) -> Check:
    """Check that there is room for sandboxes, and that what each is promised can be set aside."""
    state = os.statvfs(path)
    free = state.f_bavail * state.f_frsize >> 20
    found, cure = f"{free} MiB free below {path}", "free disk space, or set root to a larger file system"
    if free < LEAST_DISK_MB:
        return _error("node: disk", found, cure)
    kind = _file_system_of(path, mountinfo)
    if kind in WITHOUT_ALLOCATION:
        return _warning(
            "node: disk",
            f"{found}; {kind} sets no blocks aside, so sandboxes end when the disk is almost full (disk_full)",
            "set root to a directory on ext4, XFS or Btrfs",
        )
    if free < COMFORTABLE_DISK_MB:
        return _warning("node: disk", found, cure)
    return _ok("node: disk", found)


def _file_system_of(path: Path, mountinfo: Path) -> str:
    """Return the kind of the file system that holds ``path``; empty where the kernel does not list it."""
    device = path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in mountinfo.read_text().splitlines():
        words = line.split()
        if words[2] == number:
            return words[words.index("-") + 1]
    return ""


def user_namespaces() -> Check:
    """Check whether root in a container is another user on this host, which isolation ``runc`` asks for."""
    name = "node: user namespaces"
    output = _output_of(["docker", "info", "--format", "{{.SecurityOptions}}"])
    if output is None:
        return _ok(name, "no Docker engine answers on its default socket, so none is asked for")
    if "name=userns" in output or "name=rootless" in output:
        return _ok(name, "the Docker engine has them: isolation runc is offered")
    return _warning(
        name,
        "the Docker engine has none: nodes do not offer isolation runc, where root would be root of this host",
        "isolation gvisor needs none; for runc set userns-remap in /etc/docker/daemon.json, or take the risk with"
        " allow_runc_without_user_namespaces",
    )


# -- versions ---------------------------------------------------------------------------------------------------------

Version = tuple[int, ...]


@dataclass(frozen=True)
class EngineFloor:
    """The least version of one engine.

    Attributes:
        name: of the program.
        command: prints the version.
        pattern: finds the version in what it prints, in one group.
        least: versions with the fixes, one for each line of releases that got them, ascending.
        why: what an older one lets happen.
        source: where that was told.
        meanwhile: what keeps a node's sandboxes in where the fix is not there.
    """

    name: str
    command: tuple[str, ...]
    pattern: str
    least: tuple[Version, ...]
    why: str
    source: str
    meanwhile: str


FLOORS: Final = (
    EngineFloor(
        "runsc",
        ("runsc", "--version"),
        r"version\s+(?:release-|0\.0~)?(\d{8})",
        ((20250401,),),
        "in an older one a sandbox's process holds permissions like root's until its first fork (CVE-2025-2713), and"
        " the network's ports and header values can be guessed (CVE-2024-10603, CVE-2024-10026)",
        "https://osv.dev/vulnerability/CVE-2025-2713",
        "the node keeps sandboxes from devices, setuid programs and closed networks whatever gVisor does",
    ),
    EngineFloor(
        "runc",
        ("runc", "--version"),
        r"version (\d+\.\d+\.\d+)",
        ((1, 2, 8), (1, 3, 3)),
        "a container can make an older one write to files of the host (CVE-2025-31133, CVE-2025-52565, CVE-2025-52881),"
        " and before 1.1.12 leave through a leaked descriptor (CVE-2024-21626)",
        "https://github.com/opencontainers/runc/security/advisories",
        "isolation runc is not offered without user namespaces; gVisor does not use it",
    ),
    EngineFloor(
        "containerd",
        ("containerd", "--version"),
        r" v?(\d+\.\d+\.\d+)",
        ((1, 7, 33), (2, 0, 10), (2, 1, 9), (2, 2, 5), (2, 3, 2)),
        "an image can make an older one run commands on the host through its CRI plugin (CVE-2026-53488)",
        "https://github.com/advisories/GHSA-xhf5-7wjv-pqxp",
        "nodes do not use the CRI plugin; do not enable it here",
    ),
    EngineFloor(
        "dockerd",
        ("dockerd", "--version"),
        r"version (\d+\.\d+\.\d+)",
        ((23, 0, 15), (25, 0, 6), (26, 1, 5), (27, 1, 1)),
        "an older one can be asked past its authorization plugins (CVE-2024-41110)",
        "https://github.com/moby/moby/security/advisories/GHSA-v23v-6jw2-98fq",
        "nodes use no such plugin, and only root reaches their engine's socket",
    ),
)


def engine_floors(output_of: Callable[[list[str]], str | None]) -> list[Check]:
    """Check each engine that is installed for the fixes that matter to a node.

    An older engine is a warning: distributions carry fixes back under an older number, and what a fix closes may be
    closed by the node itself.

    Args:
        output_of: runs a command, and returns what it printed or ``None``.
    """
    rows = ((floor, output_of(list(floor.command))) for floor in FLOORS)
    return [_floor_row(floor, output) for floor, output in rows if output is not None]


def is_fixed(version: Version, least: tuple[Version, ...]) -> bool:
    """Return whether a version has the fixes: by the least of its own line, or as a line after all of them.

    A line is what stands before the last number, and lines between two that got the fixes never did.
    """
    own = [floor for floor in least if floor[:-1] == version[:-1]]
    return version >= (own[0] if own else least[-1])


def _floor_row(floor: EngineFloor, output: str) -> Check:
    name = f"node: {floor.name} with its fixes"
    wanted = " or ".join(".".join(map(str, version)) for version in floor.least)
    match = re.search(floor.pattern, output)
    if match is None:
        found = f"version unknown: {output.strip()[:80]}"
    elif is_fixed(tuple(map(int, match[1].split("."))), floor.least):
        return Check(name=name, verdict=Verdict.OK, found=match[1], cure="")
    else:
        found = f"{match[1]}: {floor.why}"
    cure = f"install {wanted} or later, or make sure that your distribution's package has the fixes ({floor.source})"
    return Check(name=name, verdict=Verdict.WARNING, found=found, cure=f"{cure}; until then: {floor.meanwhile}")


# -- parts of all rows -------------------------------------------------------------------------------------------------

_TOOLS: Final[tuple[tuple[str, str, str], ...]] = (
    ("ip", "iproute2", "sandbox networks are made with it"),
    ("nft", "nftables", "closed address ranges are kept closed with it"),
    ("mkfs.ext4", "e2fsprogs", "each sandbox's bounded disk is made with it"),
    ("mount", "mount", "each sandbox's disk is mounted with it"),
)

_SANDBOX_INTERFACE: Final = re.compile(r"s([bd])([0-9a-f]{8})[0-9a-f]{3}")
_OWNER: Final = {"b": "", "d": "_docker"}  # the end of the table's name, by engine


def _output_of(argv: list[str]) -> str | None:
    """Return what a short command printed; ``None`` when it is missing, fails or hangs."""
    environment = {"PATH": ADMIN_PATH, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            check=True,
            env=environment,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def _row(verdict: Verdict) -> Callable[..., Check]:
    def make(name: str, found: str, cure: str = "") -> Check:
        return Check(name=name, verdict=verdict, found=found, cure=cure)

    return make


_ok, _warning, _error = _row(Verdict.OK), _row(Verdict.WARNING), _row(Verdict.ERROR)
