"""Bringing one sandbox up and taking it down, step by step.  Callers serialize calls for one sandbox."""

import contextlib
import logging
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from gateway.wire.errors import ErrorCode
from gateway.wire.states import DeathReason
from node_agent.errors import RuntimeFailure
from node_agent.host import accounts
from node_agent.host.disk import out_of_space
from node_agent.host.images import Image
from node_agent.host.network import Net, Networks
from node_agent.host.programs import StaticPrograms
from node_agent.host.volume import Volumes
from node_agent.runtime.base import Death, EngineState, Order
from node_agent.runtime.runsc import files, oci_bundle, start
from node_agent.runtime.runsc.control import Pending
from node_agent.runtime.runsc.inspection import View
from node_agent.runtime.runsc.paths import Places
from node_agent.runtime.runsc.record import Record
from node_agent.runtime.runsc.runsc_cli import Guard, Runsc

log = logging.getLogger(__name__)


class NotStartableError(Exception):
    """The image lacks what the first process needs."""


@dataclass(frozen=True)
class Host:
    """What of the host every sandbox needs.

    Attributes:
        tools: the static programs that are bound into every sandbox.
        resolvers: name servers of sandboxes with a network.
    """

    volumes: Volumes
    networks: Networks
    tools: StaticPrograms
    resolvers: tuple[str, ...]


@dataclass(frozen=True)
class Running:
    """A sandbox that runs: its record, and the wait status of its first process to come, where that was asked for."""

    record: Record
    pending: Pending | None


_REFUSALS: Final = (accounts.UnknownAccountError, oci_bundle.UnknownCapabilityError, NotStartableError)


def bring_up(host: Host, runsc: Runsc, places: Places, order: Order, image: Image, root: Path, guard: Guard) -> Running:
    """Everything from an empty directory, or the workspace of an earlier generation, to a running first process.

    Raises:
        RuntimeFailure: as `SandboxRuntime.create` tells; what was made so far stays for `take_down`.
    """
    inherited = places.volume.image.exists()
    record = Record.of(order).but(
        image_id=image.id, image_digest=image.digest, image_env=image.env, inherited=inherited
    )
    try:
        places.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        record.save(places.directory, durable=True)
        record = _prepare(host, places, record, image, root)
        _refuse_if_cancelled(guard, places)
        network = record.net is not None
        started = start.start(runsc, places, network=network, guard=guard)
        return Running(settle_running(places, record, started.pid), started.pending)
    except (OSError, *_REFUSALS) as error:
        raise _not_started(places, error) from error


def settle_running(places: Places, record: Record, pid: int) -> Record:
    """Writes that the sandbox runs, and sets the bounds that wait for the end of the start."""
    places.cgroup.set_cpus(record.spec.cpus)
    places.cgroup.forbid_swap()
    record = record.but(state=EngineState.RUNNING, sentry_pid=pid, started_at=datetime.now(UTC))
    record.save(places.directory)
    return record


def _prepare(host: Host, places: Places, record: Record, image: Image, root: Path) -> Record:
    spec = record.spec
    host.volumes.ensure(places.directory, spec.disk_mb)
    net: Net | None = None
    if spec.network == "bridge":
        net = host.networks.create()
        record = record.but(net=net)
        record.save(places.directory)
    resolvers = host.resolvers if net else ()
    files.mount_rootfs(places, root, files.etc_files(oci_bundle.hostname(spec), resolvers))
    user = image.user if spec.security.user is None else spec.security.user
    account = accounts.look_up(places.rootfs, user)
    files.prepare_workspace(places, account)
    files.prepare_logs(places)
    process = oci_bundle.first_process(spec, image, account)
    view = View(places.rootfs, places.workspace, spec.filesystem.workspace_path)
    if problem := view.problem(process):
        raise NotStartableError(problem)
    start.write_bundle(places, oci_bundle.config(spec, process, _host_side(host, places, record)))
    return record.but(working_dir=process.working_dir, account=account)


def _host_side(host: Host, places: Places, record: Record) -> oci_bundle.Host:
    return oci_bundle.Host(
        init=host.tools.init and record.spec.security.init,
        rootfs=places.rootfs,
        workspace=places.workspace,
        tools=host.tools.path,
        cgroup=places.cgroup.path,
        namespace=record.net.path if record.net else None,
    )


def _refuse_if_cancelled(guard: Guard, places: Places) -> None:
    if guard.cancelled:
        raise RuntimeFailure(ErrorCode.CONFLICT, f"sandbox {places.sandbox_id} was deleted while it was created")


def _not_started(places: Places, error: Exception) -> RuntimeFailure:
    message = f"sandbox {places.sandbox_id} did not start: {error}"
    if out_of_space(error):
        return RuntimeFailure(ErrorCode.DISK_FULL, f"{message}; the node's disk is full", reason=DeathReason.DISK_FULL)
    code = ErrorCode.INTERNAL if isinstance(error, OSError) else ErrorCode.START_ERROR
    return RuntimeFailure(code, message, reason=DeathReason.START_ERROR)


def take_down(networks: Networks, places: Places, record: Record | None) -> None:
    """Ends processes, network and root file system; volume and record stay.  Idempotent.

    Raises:
        RuntimeFailure: ``BUSY``, see `launcher.kill`.
    """
    start.kill(places)
    if record is not None and record.net is not None:
        networks.remove(record.net)
    start.unmount(places)
    start.forget_files(places)


def erase(networks: Networks, places: Places) -> None:
    """Removes every trace.  Idempotent.

    Raises:
        RuntimeFailure: ``BUSY``.
    """
    try:
        record = Record.load(places.directory)
    except ValueError:
        record = None  # damaged: its network, if it had one, is left to the sweep
    take_down(networks, places, record)
    places.volume.destroy()
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(places.directory)


def fail(networks: Networks, places: Places, record: Record, failure: RuntimeFailure, *, keep: bool) -> None:
    """Cleans up after a start that failed.

    Args:
        keep: whether an earlier generation's workspace is there and has to stay.
    """
    if not keep:
        erase(networks, places)
        return
    current = Record.load(places.directory) or record  # the network may have been made since
    take_down(networks, places, current)
    reason = failure.reason or DeathReason.START_ERROR
    death = Death(reason, None, failure.message, datetime.now(UTC))
    try:
        current.but(state=EngineState.DEAD, net=None, sentry_pid=None, death=death).save(places.directory)
    except OSError as error:
        # The record still says that it is being created, so that its next start takes over the workspace all the same.
        log.error("sandbox %s: its failed start could not be written down: %s", places.sandbox_id, error)


def restore(host: Host, runsc: Runsc, places: Places, record: Record, guard: Guard) -> Running:
    """The reverse of `checkpoint`.

    Raises:
        RuntimeFailure: the network or the start failed; the checkpoint stays.
    """
    if record.net is not None:
        # The first start took the address away from the interface; only a new one gives it back.
        host.networks.rebuild(record.net)
    try:
        started = start.start(runsc, places, network=record.net is not None, guard=guard, image=places.checkpoint)
    except RuntimeFailure:
        start.kill(places)
        raise
    started_at = record.started_at
    record = settle_running(places, record, started.pid).but(started_at=started_at)
    record.save(places.directory)
    shutil.rmtree(places.checkpoint)
    return Running(record, started.pending)
