"""What a service left behind on this machine: looked for on the host itself, not in anybody's records."""

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from sandboxes.local import dockerd

LIST_SECONDS: Final = 10.0
SETTLE_SECONDS: Final = 5.0  # the kernel frees loop devices and control groups a moment after their last user
SETTLE_STEP: Final = 0.1
FILES: Final = "file or directory"

Marks = tuple[str, ...]
"""Strings that stand in the name, path or command line of everything that the service makes: its state directory and
the tags of its nodes."""


def _marked(text: str, marks: Marks) -> bool:
    return any(mark in text for mark in marks)


def _names(directory: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in directory.iterdir())
    except FileNotFoundError:
        return []


def _text(path: Path) -> str:
    """Content with NULs as spaces; empty when the file went away meanwhile."""
    try:
        return path.read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def processes(marks: Marks) -> Iterator[str]:
    """Processes, other than this one and those above it, that name a mark in their command line or environment."""
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
    """Containers of the machine's own Docker engine; one of ours ended with its containers."""
    for container in dockerd.containers(dockerd.DEFAULT_SOCKET):
        if _marked(json.dumps(container), marks):
            yield str(container["Id"])[:12]


def mounts(marks: Marks) -> Iterator[str]:
    """Mount points that are marked themselves, or whose source or options are."""
    columns = ("target", "source", "fsroot", "options")
    listed = _listed("findmnt", "--json", "--list", "--output", ",".join(columns))
    for mount in listed["filesystems"]:
        if any(_marked(mount[column] or "", marks) for column in columns):
            yield mount["target"]


def loop_devices(marks: Marks) -> Iterator[str]:
    """Loop devices over a marked file."""
    for device in _names(Path("/sys/block")):
        backing = _text(Path("/sys/block", device, "loop/backing_file"))
        if backing and _marked(backing, marks):
            yield f"/dev/{device} over {backing}"


def network_namespaces(marks: Marks) -> Iterator[str]:
    """Named network namespaces."""
    return (name for name in _names(Path("/run/netns")) if _marked(name, marks))


def interfaces(marks: Marks) -> Iterator[str]:
    """Network interfaces: the host's ends of veth pairs."""
    return (name for name in _names(Path("/sys/class/net")) if _marked(name, marks))


def firewall_tables(marks: Marks) -> Iterator[str]:
    """nftables tables."""
    tables = (item["table"]["name"] for item in _listed("nft", "-j", "list", "tables")["nftables"] if "table" in item)
    return (name for name in tables if _marked(name, marks))


def _listed(*command: str) -> dict[str, Any]:
    """What a program of the system lists, as it tells it in JSON."""
    done = subprocess.run(command, capture_output=True, timeout=LIST_SECONDS, check=True)
    listed: dict[str, Any] = json.loads(done.stdout.decode(errors="surrogateescape"))
    return listed


def cgroups(marks: Marks) -> Iterator[str]:
    """Control groups, in every hierarchy."""
    for place, directories, _ in os.walk("/sys/fs/cgroup"):
        for name in directories:
            if _marked(name, marks):
                yield f"{place}/{name}"


def files(marks: Marks) -> Iterator[str]:
    """Files and directories: the marked paths themselves, and marked names where temporary things are put."""
    for mark in marks:
        if mark.startswith("/") and Path(mark).exists():
            yield mark
    for place in (Path("/tmp"), Path("/var/tmp"), Path("/run"), Path("/run/lock")):  # noqa: S108 - only looked at
        for name in _names(place):
            if _marked(f"{place}/{name}", marks) and f"{place}/{name}" not in marks:
                yield f"{place}/{name}"


LOOKS: Final[Mapping[str, Callable[[Marks], Iterable[str]]]] = {
    "process": processes,
    "container": containers,
    "mount": mounts,
    "loop device": loop_devices,
    "network namespace": network_namespaces,
    "interface": interfaces,
    "nftables table": firewall_tables,
    "cgroup": cgroups,
    FILES: files,
}


def find(marks: Marks) -> dict[str, list[str]]:
    """For each kind of thing, those that still carry one of ``marks``; empty lists where nothing is left."""
    found: dict[str, list[str]] = {}
    for kind, look in LOOKS.items():
        with contextlib.suppress(FileNotFoundError):  # no `nft`, so no table either
            found[kind] = list(look(marks))
    return found


def settled(marks: Marks) -> dict[str, list[str]]:
    """As `find`, once what the kernel still was about to remove is gone; waits `SETTLE_SECONDS` at most."""
    until = time.monotonic() + SETTLE_SECONDS
    while any((found := find(marks)).values()) and time.monotonic() < until:
        time.sleep(SETTLE_STEP)
    return found
