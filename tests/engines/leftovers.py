"""What a node's runtimes left on this host: for tests that say "nothing".

Everything is found by the node's root directory or by its tag, so that neighbours on the same machine do not count.
"""

import contextlib
import json
import os
import subprocess
from pathlib import Path

from node_agent.host import mounts

_CGROUPS = Path("/sys/fs/cgroup")


def of_node(root: Path, tag: str) -> list[str]:
    """A line for each process, mount, namespace, interface, nft table, cgroup and loop device of that node."""
    found = [f"process {line}" for line in processes(str(root), tag)]
    found += [f"mount {point}" for point in mounts.mounted_below(root)]
    found += [f"netns {name}" for name in _listed(Path("/run/netns")) if tag in name]
    found += [f"interface {name}" for name in _listed(Path("/sys/class/net")) if tag in name]
    found += [f"nft table {name}" for name in _nft_tables() if tag in name]
    found += [f"cgroup {path}" for path in _cgroups(tag)]
    found += [f"loop device {name}" for name in _loops(root)]
    return sorted(found)


def processes(*needles: str) -> list[str]:
    """A line for each process that has one of ``needles`` in its command line."""
    own = {os.getpid(), os.getppid()}
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) not in own:
            with contextlib.suppress(OSError):  # it may end while we look
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if any(needle in line for needle in needles):
                    found.append(f"{entry.name} {line[:200]}")
    return found


def _listed(directory: Path) -> list[str]:
    return [entry.name for entry in directory.iterdir()] if directory.is_dir() else []


def _nft_tables() -> list[str]:
    done = subprocess.run(["nft", "-j", "list", "tables"], capture_output=True, timeout=15, check=True)
    return [entry["table"]["name"] for entry in json.loads(done.stdout)["nftables"] if "table" in entry]


def _cgroups(tag: str) -> list[str]:
    return [path for path, _, _ in os.walk(_CGROUPS) if tag in Path(path).name]


def _loops(root: Path) -> list[str]:
    found = []
    for entry in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):  # it may be detached while we look
            if Path(entry.read_text().strip().removesuffix(" (deleted)")).is_relative_to(root):
                found.append(entry.parent.parent.name)
    return found
