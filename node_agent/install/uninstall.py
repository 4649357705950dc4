"""Removes everything that one node has on this machine: after its end, or when its instance goes."""

import json
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path

from gateway.wire.errors import ErrorCode
from gateway.wire.sandboxes import RuntimeName
from node_agent.errors import RuntimeFailure
from node_agent.host import mounts
from node_agent.host.disk import write_atomically
from node_agent.runtime.base import SandboxRuntime
from node_agent.settings import NodeSettings
from node_agent.startup import Factory, NodeStartError, hold_root

log = logging.getLogger(__name__)

RECORD = "engines.json"


def record_engines(settings: NodeSettings) -> None:
    """Record how this node reaches its engines, so that a cleanup needs to know the root only.

    Raises:
        OSError: it could not be written.
    """
    record = json.dumps({"docker_url": settings.docker_url, "runtimes": settings.runtimes}).encode()
    path = settings.root / RECORD
    if not path.exists() or path.read_bytes() != record:  # a full disk takes no second copy of the same
        write_atomically(path, record)


def recorded_settings(root: Path) -> NodeSettings:
    """Return the settings with which the node last reached its engines; the defaults where it never ran."""
    record: dict[str, object] = {}
    if (root / RECORD).exists():
        record = json.loads((root / RECORD).read_text())
    return NodeSettings.model_validate({"gateway_url": "http://localhost", "root": root} | record)


def remove_traces(runtimes: Mapping[RuntimeName, SandboxRuntime]) -> list[str]:
    """Remove every sandbox of these engines and every trace on the host.

    Returns:
        A phrase for each thing that was removed.
    """
    removed: list[str] = []
    for name, runtime in runtimes.items():
        try:
            for found in runtime.found():
                removed += _remove_sandbox(name, runtime, found.order.sandbox_id)
            removed += [f"{name}: {sentence}" for sentence in runtime.sweep()]
        except RuntimeFailure as failure:
            log.error("%s: traces could not be removed: %s", name, failure.message)
    return removed


def _remove_sandbox(name: RuntimeName, runtime: SandboxRuntime, sandbox_id: str) -> list[str]:
    """Remove one sandbox; where it does not go, the others do not wait for it.

    Raises:
        RuntimeFailure: ``BUSY``: the engine does not answer, and each further sandbox would wait for it again.
    """
    try:
        runtime.delete(sandbox_id)
    except RuntimeFailure as failure:
        if failure.code is ErrorCode.BUSY:
            raise
        log.error("%s: sandbox %s could not be removed: %s", name, sandbox_id, failure.message)
        return []
    return [f"{name}: sandbox {sandbox_id}"]


def remove_node(settings: NodeSettings, factories: Mapping[RuntimeName, Factory]) -> list[str]:
    """Remove every trace of the node below ``settings.root``, the root included.  Can run twice.

    Returns:
        A phrase for each thing that was removed.

    Raises:
        NodeStartError: its agent still runs, or something below the root is still mounted.
    """
    if not settings.root.exists():
        return []
    with hold_root(settings.root, full_disk_is_fine=True):
        runtimes: dict[RuntimeName, SandboxRuntime] = {}
        for name in settings.runtimes:
            try:
                runtimes[name] = factories[name](settings)
            except (RuntimeFailure, ImportError) as error:
                log.warning("%s: %s", name, error)
        removed = remove_traces(runtimes)
        for runtime in runtimes.values():
            runtime.close()
        if mounted := mounts.mounts_inside(settings.root):
            raise NodeStartError(
                f"still mounted below {settings.root}: {', '.join(mounted)}; unmount it, then try again"
            )
        shutil.rmtree(settings.root)
        return [*removed, f"directory {settings.root}"]
