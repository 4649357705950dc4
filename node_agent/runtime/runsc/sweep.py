"""Removing what this node made and no sandbox owns any more."""

import contextlib
import shutil
from collections.abc import Iterable
from pathlib import Path

from node_agent.host import cgroup, mounts, programs
from node_agent.host.cgroup import Cgroup
from node_agent.host.network import Networks
from node_agent.runtime.runsc import start
from node_agent.runtime.runsc.fd_store import Keeping
from node_agent.runtime.runsc.paths import Layout
from node_agent.runtime.runsc.record import Record
from node_agent.runtime.runsc.rootfs import RootFileSystems


def sweep(
    layout: Layout, networks: Networks, roots: RootFileSystems, keeping: Keeping, owned: dict[str, Record]
) -> list[str]:
    """Removes everything of this node but the sandboxes in ``owned``; a sentence for each thing removed.

    Raises:
        RuntimeFailure: ``BUSY`` when a process does not end.
        OSError, CommandError: the host refuses to give something up.
    """
    gone: list[str] = []
    for sandbox_id in sorted(_orphans(layout) | cgroup.names(layout.tag)):
        if sandbox_id not in owned:
            keeping.drop(sandbox_id)
            gone += _remove(layout, sandbox_id)
    gone += [f"loop device {name}" for name in mounts.detach_loop_devices(layout.sandboxes, keep=owned)]
    gone += networks.sweep({record.net.namespace for record in owned.values() if record.net})
    gone += roots.sweep()
    gone += _partial_files(layout.templates)
    if not owned:
        gone += _remove_shared(layout)
    return gone


def _orphans(layout: Layout) -> set[str]:
    return {entry.name for entry in layout.sandboxes.iterdir()} if layout.sandboxes.is_dir() else set()


def _remove(layout: Layout, sandbox_id: str) -> list[str]:
    places = layout.places(sandbox_id)
    gone = [f"process {pid} of sandbox {sandbox_id}" for pid in sorted(places.cgroup.pids())]
    start.kill(places)
    gone += [f"mount {point}" for point in mounts.unmount_below(places.directory)]
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(places.directory)
        gone.append(f"directory {places.directory}")
    return gone or [f"control group {Cgroup(layout.tag, sandbox_id).path}"]


def _partial_files(directory: Path) -> list[str]:
    partial = sorted(directory.glob("*.partial")) if directory.is_dir() else []
    for path in partial:
        path.unlink()
    return [f"file {path}" for path in partial]


def _remove_shared(layout: Layout) -> list[str]:
    """What all sandboxes share, once the last is gone."""
    gone = [f"control group /{cgroup.parent_name(layout.tag)}"] if cgroup.remove_parent(layout.tag) else []
    if programs.release(layout.tools):
        gone.append(f"mount of the programs in {layout.tools}")
    if layout.run.is_dir():
        shutil.rmtree(layout.run)
        gone.append(f"directory {layout.run}")
    return gone


def owned_by(records: Iterable[Record | None]) -> dict[str, Record]:
    """Records by id."""
    return {record.sandbox_id: record for record in records if record is not None}
