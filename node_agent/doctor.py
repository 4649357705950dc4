"""The rows that the node adds to ``sandboxes doctor``: what its machine needs.  Looks only; changes nothing."""

import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable
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
        return _ok(name, f"{output.strip()} answers")
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


def disk(path: Path = STATE) -> Check:
    """Check that there is room for sandboxes."""
    state = os.statvfs(path)
    free = state.f_bavail * state.f_frsize >> 20
    found, cure = f"{free} MiB free below {path}", "free disk space, or set root to a larger file system"
    if free < LEAST_DISK_MB:
        return _error("node: disk", found, cure)
    if free < COMFORTABLE_DISK_MB:
        return _warning("node: disk", found, cure)
    return _ok("node: disk", found)


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
