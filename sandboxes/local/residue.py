"""What a service left behind on this machine: looked for on the host itself, not in anybody's records."""

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from sandboxes.local import dockerd
from sandboxes.local.mounts import mounts

LIST_SECONDS: Final = 10.0
SETTLE_SECONDS: Final = 5.0  # the kernel frees loop devices and control groups a moment after their last user
SETTLE_STEP: Final = 0.1
FILES: Final = "file or directory"

Marks = tuple[str, ...]
"""Strings that stand in the name, path or command line of everything that the service makes: its state directory and
the tags of its nodes."""


def find(marks: Marks) -> dict[str, list[str]]:
    """Return, by kind, what still carries one of ``marks``; empty lists where nothing is left."""
    found: dict[str, list[str]] = {}
    for kind, look in KINDS.items():
        with contextlib.suppress(FileNotFoundError):  # no `nft`, so no table either
            found[kind] = list(look(marks))
    return found


def find_settled(marks: Marks) -> dict[str, list[str]]:
    """Return what `find` does, after waiting `SETTLE_SECONDS` at most for what the kernel is still removing."""
    until = time.monotonic() + SETTLE_SECONDS
    while any((found := find(marks)).values()) and time.monotonic() < until:
        time.sleep(SETTLE_STEP)
    return found


def processes(marks: Marks) -> Iterator[str]:
    """Yield processes, other than this one and its ancestors, with a mark in their command line or environment."""
    own = set(_ancestors())
    for name in _names(Path("/proc")):
        if not name.isdigit() or int(name) in own:
            continue
        command = _text(Path("/proc", name, "cmdline"))
        if _marked(f"{command} {_text(Path('/proc', name, 'environ'))}", marks):
            yield f"{name} {command[:120]}"


def _ancestors() -> Iterator[int]:
    pid = os.getpid()
    while pid > 0:
        yield pid
        status = _text(Path("/proc", str(pid), "stat"))
        pid = int(status.rpartition(")")[2].split()[1]) if status else 0


def containers(marks: Marks) -> Iterator[str]:
    """Yield containers of the machine's own Docker engine; an engine of ours ended with its containers."""
    for container_id, description in dockerd.containers(dockerd.DEFAULT_SOCKET).items():
        if _marked(description, marks):
            yield container_id[:12]


def mount_points(marks: Marks) -> Iterator[str]:
    """Yield mount points that are marked themselves, or whose source or options are."""
    for mount in mounts():
        if any(_marked(text, marks) for text in (str(mount.target), mount.root, mount.source, mount.options)):
            yield str(mount.target)


def loop_devices(marks: Marks) -> Iterator[str]:
    """Yield loop devices over a marked file."""
    for device in _names(Path("/sys/block")):
        backing = _text(Path("/sys/block", device, "loop/backing_file"))
        if backing and _marked(backing, marks):
            yield f"/dev/{device} over {backing}"


def network_namespaces(marks: Marks) -> Iterator[str]:
    """Yield named network namespaces."""
    return (name for name in _names(Path("/run/netns")) if _marked(name, marks))


def interfaces(marks: Marks) -> Iterator[str]:
    """Yield network interfaces: the host's ends of veth pairs."""
    return (name for name in _names(Path("/sys/class/net")) if _marked(name, marks))


def firewall_tables(marks: Marks) -> Iterator[str]:
    """Yield nftables tables."""
    listed = subprocess.run(["nft", "-j", "list", "tables"], capture_output=True, timeout=LIST_SECONDS, check=True)
    tables = (item["table"]["name"] for item in json.loads(listed.stdout)["nftables"] if "table" in item)
    return (name for name in tables if _marked(name, marks))


def cgroups(marks: Marks) -> Iterator[str]:
    """Yield control groups, in every hierarchy."""
    for place, directories, _ in os.walk("/sys/fs/cgroup"):
        for name in directories:
            if _marked(name, marks):
                yield f"{place}/{name}"


def files(marks: Marks) -> Iterator[str]:
    """Yield the marked paths themselves, and marked names where temporary things are put."""
    for mark in marks:
        if mark.startswith("/") and Path(mark).exists():
            yield mark
    for place in (Path("/tmp"), Path("/var/tmp"), Path("/run"), Path("/run/lock")):  # noqa: S108 - only looked at
        for name in _names(place):
            if _marked(f"{place}/{name}", marks) and f"{place}/{name}" not in marks:
                yield f"{place}/{name}"


KINDS: Final[Mapping[str, Callable[[Marks], Iterable[str]]]] = {
    "process": processes,
    "container": containers,
    "mount": mount_points,
    "loop device": loop_devices,
    "network namespace": network_namespaces,
    "interface": interfaces,
    "nftables table": firewall_tables,
    "cgroup": cgroups,
    FILES: files,
}


def _marked(text: str, marks: Marks) -> bool:
    return any(mark in text for mark in marks)


def _names(directory: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in directory.iterdir())
    except FileNotFoundError:
        return []


def _text(path: Path) -> str:
    """Return the content with NULs as blanks; nothing when the file went away meanwhile."""
    try:
        return path.read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""
