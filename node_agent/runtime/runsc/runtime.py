"""gVisor run directly: OCI bundles, the control socket, and bounded volumes."""

import contextlib
import logging
import os
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import ClassVar, Final

import docker

from gateway.wire.errors import ErrorCode
from gateway.wire.sandboxes import RuntimeName
from gateway.wire.states import DeathReason
from node_agent.errors import RuntimeFailure
from node_agent.host import cgroup, mounts, programs
from node_agent.host.disk import host_errors
from node_agent.host.firewall import DEFAULT_RULES, Firewall, FirewallRules, PullFirewall
from node_agent.host.image_budget import ImageBudget, Kind
from node_agent.host.images import Images
from node_agent.host.network import DEFAULT_POOL, DEFAULT_RESOLVERS, Networks
from node_agent.host.process import CommandError
from node_agent.host.volume import Volumes
from node_agent.runtime.base import (
    Death,
    EngineState,
    ExecCommand,
    ExecProcess,
    Found,
    LogPiece,
    Order,
    RuntimeFacts,
    SandboxRuntime,
    Stream,
    UsageNow,
    deleted,
    not_running,
)
from node_agent.runtime.counters import CounterFiles
from node_agent.runtime.incarnation import Incarnations
from node_agent.runtime.locks import SandboxLock, SandboxLocks
from node_agent.runtime.record import RecordStore, RunscPart, RunscRecord
from node_agent.runtime.runsc import pause, probe
from node_agent.runtime.runsc.control import ControlError, ControlLostError
from node_agent.runtime.runsc.create import RunscSteps
from node_agent.runtime.runsc.death import EngineLogs
from node_agent.runtime.runsc.exec import start_exec
from node_agent.runtime.runsc.exit_watch import SandboxExits
from node_agent.runtime.runsc.fd_store import FdStore
from node_agent.runtime.runsc.paths import RunscPaths, SandboxPaths
from node_agent.runtime.runsc.probe import ProbedRunsc
from node_agent.runtime.runsc.rootfs import RootFileSystems
from node_agent.runtime.runsc.runsc_cli import Runsc

log = logging.getLogger(__name__)

_ENGINE_TIMEOUT: Final = 60  # seconds for one answer of the Docker engine
_USING: Final = (EngineState.RUNNING, EngineState.PAUSED, EngineState.CHECKPOINTED)


class RunscRuntime(SandboxRuntime):
    """Sandboxes by runsc, their images from a Docker engine.

    Args:
        root: directory of the node; everything that lasts lies below it.
        tag: 8 hex digits of the node, in the name of everything host-wide.
        base_url: of the Docker engine that has the images, as the SDK takes it, e.g. ``unix:///var/run/docker.sock``.
        resolvers: name servers of sandboxes with a network.
        pool: private range for the addresses of sandboxes with a network.
        rules: what the firewall of those lets through; and where registries may be.
        budget: what images may take of the disk; ``None`` for no bound.
    """

    name: ClassVar[RuntimeName] = "runsc"

    def __init__(
        self,
        root: Path,
        *,
        tag: str,
        base_url: str,
        resolvers: Sequence[str] = DEFAULT_RESOLVERS,
        pool: str = DEFAULT_POOL,
        rules: FirewallRules = DEFAULT_RULES,
        budget: ImageBudget | None = None,
    ) -> None:
        self._node = RunscPaths(root, tag)
        budget = budget or ImageBudget(root / "images")
        firewall = PullFirewall(tag, base_url, rules.addresses)
        client = partial(docker.APIClient, base_url=base_url, timeout=_ENGINE_TIMEOUT)
        self._images = Images(client, rules.addresses, firewall, budget=budget)
        self._roots = RootFileSystems(self._node.images, self._images, tag, budget)
        budget.remove_with(Kind.PULLED, self._images.discard)
        budget.remove_with(Kind.UNPACKED, self._remove_root)
        self._networks = Networks(tag, pool, rules)
        self._fd_store = FdStore(tag)
        self._records = RecordStore(self._node.sandboxes, RunscPart)
        self._locks = SandboxLocks()
        logs = EngineLogs(root / "engine-logs")
        self._exits = SandboxExits(self._records, self._locks, self._networks, self._fd_store, logs, self._ended)
        self._steps = RunscSteps(
            node=self._node,
            probed=lambda: self._runsc,
            images=self._images,
            roots=self._roots,
            volumes=Volumes(self._node.templates),
            networks=self._networks,
            resolvers=tuple(resolvers),
            records=self._records,
            exits=self._exits,
        )
        self._incarnations = Incarnations(self._records, self._locks, self._steps)
        self._probing = threading.Lock()
        self._probed: ProbedRunsc | None = None

    # -- the engine ------------------------------------------------------------------------------------------------

    def probe(self) -> RuntimeFacts:
        return self._engine().facts

    def _engine(self) -> ProbedRunsc:
        """Return the probe's findings; the first call makes it."""
        with self._probing:
            if self._probed is None:
                self._probed = probe.probe(self._node)
                for note in self._probed.facts.notes:
                    log.info("runsc: %s", note)
            return self._probed

    @property
    def _runsc(self) -> Runsc:
        return self._engine().runsc

    def images(self) -> list[str]:
        return self._images.local()

    def firewalls(self) -> list[Firewall]:
        return [self._networks.firewall]

    def busybox(self, sandbox_id: str) -> str:
        return programs.BUSYBOX_INSIDE

    def _remove_root(self, image_id: str) -> bool:
        """Remove an unpacked image unless a sandbox is made from it; return whether it is gone."""
        records = map(self._records.remains, self._records.ids())  # also those whose delete has only begun
        if any(record is not None and record.part.image_id == image_id for record in records):
            return False
        return self._roots.remove(image_id)

    # -- incarnations ----------------------------------------------------------------------------------------------

    def create(self, order: Order) -> Found:
        return self._incarnations.create(order)

    def delete(self, sandbox_id: str) -> None:
        self._incarnations.delete(sandbox_id)

    def found(self) -> list[Found]:
        records = [record for record in map(self._adopted_or_not, self._records.ids()) if record is not None]
        return [self._steps.found(record) for record in records]

    def _adopted_or_not(self, sandbox_id: str) -> RunscRecord | None:
        """Return the record as `_adopted` does, or as it is written where the host does not show what became of it."""
        try:
            return self._adopted(sandbox_id)
        except (RuntimeFailure, OSError, CommandError) as error:
            log.error("sandbox %s could not be taken over: %s", sandbox_id, error)
            return self._records.load(sandbox_id)

    def _adopted(self, sandbox_id: str) -> RunscRecord | None:
        """Return the record after the engine was asked; what runs is watched from here on."""
        with self._locks.of(sandbox_id).held_if_free() as held:
            record = self._records.load(sandbox_id)
            if record is None or not held:
                return record  # the call in flight knows better
            return self._exits.adopt(self._node.of(sandbox_id), record)

    def wait(self, sandbox_id: str) -> Death:
        lock = self._locks.of(sandbox_id)
        death = self._death(sandbox_id, lock)
        with lock.held():  # its death is written before the last of its processes has ended
            return death

    def _death(self, sandbox_id: str, lock: SandboxLock) -> Death:
        first = self._adopted(sandbox_id)
        with lock.changed:
            while True:
                record = self._records.load(sandbox_id)
                if first is None or record is None or record.generation != first.generation:
                    return deleted(sandbox_id)
                if record.death is not None:
                    return record.death
                lock.changed.wait()

    def close(self) -> None:
        if not self._records.ids():
            self.sweep()
        self._exits.close()

    def fail(self, sandbox_id: str, reason: DeathReason, detail: str) -> None:
        lock, paths = self._locks.of(sandbox_id), self._node.of(sandbox_id)
        with lock.changing(), host_errors(f"sandbox {sandbox_id} is to end"):
            record = self._records.load(sandbox_id)
            if record is not None and record.state in _USING:
                self._exits.end(paths, record, Death(reason, None, detail, datetime.now(UTC)))

    # -- freezing --------------------------------------------------------------------------------------------------

    def pause(self, sandbox_id: str) -> None:
        with self._changing(sandbox_id, EngineState.RUNNING, EngineState.PAUSED) as (_, paths, record):
            pause.pause(self._runsc, self._records, paths, record)

    def resume(self, sandbox_id: str) -> None:
        with self._changing(sandbox_id, EngineState.RUNNING, EngineState.PAUSED) as (_, paths, record):
            pause.resume(self._runsc, self._records, paths, record)

    def checkpoint(self, sandbox_id: str) -> None:
        if not self.probe().checkpoint:
            return super().checkpoint(sandbox_id)
        with self._changing(sandbox_id, EngineState.RUNNING, EngineState.CHECKPOINTED) as (_, paths, record):
            if record.state is EngineState.CHECKPOINTED:
                return None
            pause.refuse_live_execs(self._runsc, paths)
            self._exits.forget(paths)
            try:
                pause.checkpoint(self._runsc, self._records, paths, record)
            except RuntimeFailure:
                self._exits.watch(paths, record)
                raise
        return None

    def restore(self, sandbox_id: str) -> None:
        with self._changing(sandbox_id, EngineState.RUNNING, EngineState.CHECKPOINTED) as (lock, _, record):
            if record.state is EngineState.RUNNING:
                return
            with lock.attempt() as attempt:
                self._steps.restore(record, self._runsc, attempt)

    @contextlib.contextmanager
    def _changing(
        self, sandbox_id: str, *states: EngineState
    ) -> Iterator[tuple[SandboxLock, SandboxPaths, RunscRecord]]:
        """Hold the lock of a sandbox that is in one of these states.

        Raises:
            RuntimeFailure: ``SANDBOX_NOT_RUNNING`` in any other state.
        """
        lock, paths = self._locks.of(sandbox_id), self._node.of(sandbox_id)
        with lock.changing():
            record = self._records.load(sandbox_id)
            if record is not None:
                record = self._exits.adopt(paths, record)
            yield lock, paths, _in_one_of(states, sandbox_id, record)

    # -- inside ----------------------------------------------------------------------------------------------------

    def exec(self, sandbox_id: str, command: ExecCommand) -> ExecProcess:
        lock, paths = self._locks.of(sandbox_id), self._node.of(sandbox_id)
        with lock.held():  # a pause in between would leave the start for the resume
            record = _in_one_of((EngineState.RUNNING,), sandbox_id, self._records.load(sandbox_id))
            return start_exec(self._runsc, paths, record, command, partial(_awake, lock, paths))

    def logs(self, sandbox_id: str, stream: Stream, offset: int, limit: int) -> LogPiece:
        paths = self._node.of(sandbox_id)
        try:
            with self._locks.of(sandbox_id).held():
                if self._records.load(sandbox_id) is None:
                    raise not_running(sandbox_id)
                paths.volume.mount()  # after a reboot of the host it is not
                file = paths.log(stream).open("rb")
        except OSError as error:
            raise RuntimeFailure(ErrorCode.INTERNAL, f"logs of sandbox {sandbox_id}: {error}") from error
        with file:
            size = os.fstat(file.fileno()).st_size
            file.seek(min(offset, size))  # file systems refuse to seek beyond their longest file
            return LogPiece(file.read(limit), size)

    def usage(self, sandbox_id: str) -> UsageNow:
        lock, paths = self._locks.of(sandbox_id), self._node.of(sandbox_id)
        try:
            with _awake(lock, paths):
                record = _in_one_of(_USING, sandbox_id, self._records.load(sandbox_id))
                pids = 0 if record.state is EngineState.CHECKPOINTED else paths.control.count()
            used = paths.volume.used_mb()
        except (ControlError, ControlLostError, OSError) as error:
            raise RuntimeFailure(ErrorCode.SANDBOX_NOT_RUNNING, f"sandbox {sandbox_id}: {error}") from error
        return UsageNow(paths.cgroup.memory_mb(), paths.cgroup.cpu_seconds(), used, pids)

    def counter_files(self, sandbox_id: str) -> CounterFiles | None:
        record = self._records.load(sandbox_id)
        return None if record is None else self._files_of(record)

    def _files_of(self, record: RunscRecord) -> CounterFiles:
        paths, net = self._node.of(record.sandbox_id), record.part.net
        return CounterFiles(record.generation, paths.cgroup, None if net is None else net.host_interface, paths.volume)

    def _ended(self, record: RunscRecord) -> None:
        self._ending(record.sandbox_id, self._files_of(record))

    # -- the sweep -------------------------------------------------------------------------------------------------

    def sweep(self) -> list[str]:
        owned = {record.sandbox_id: record for record in self._records.all()}
        try:
            return self._sweep(owned)
        except (OSError, CommandError) as error:
            raise RuntimeFailure(ErrorCode.INTERNAL, f"sweep: {error}") from error

    def _sweep(self, owned: Mapping[str, RunscRecord]) -> list[str]:
        gone: list[str] = []
        for sandbox_id in sorted({*self._records.ids(), *cgroup.names(self._node.tag)} - set(owned)):
            self._fd_store.drop(sandbox_id)
            try:
                gone += _remove_orphan(self._node.of(sandbox_id))
            except (OSError, RuntimeFailure) as error:
                # The others are not to wait for it, and neither is the node.
                log.error("what is left of sandbox %s could not be removed: %s", sandbox_id, error)
        gone += [f"loop device {name}" for name in mounts.detach_loop_devices(self._node.sandboxes, keep=owned)]
        gone += self._networks.sweep({record.part.net.namespace for record in owned.values() if record.part.net})
        gone += self._roots.sweep()
        for path in sorted(self._node.templates.glob("*.partial")):
            path.unlink()
            gone.append(f"file {path}")
        return gone if owned else gone + self._images.release() + _remove_shared(self._node)


def _in_one_of(states: Sequence[EngineState], sandbox_id: str, record: RunscRecord | None) -> RunscRecord:
    """Return the record of a sandbox that is in one of these states.

    Raises:
        RuntimeFailure: ``SANDBOX_NOT_RUNNING`` in any other state.
    """
    if record is None:
        raise not_running(sandbox_id)
    if record.state not in states:
        raise not_running(sandbox_id, record.state, record.death)
    return record


@contextlib.contextmanager
def _awake(lock: SandboxLock, paths: SandboxPaths) -> Iterator[None]:
    """Surround a question to the kernel of a sandbox that may be paused; no pause or resume comes in between."""
    with lock.held(), pause.awake(paths):
        yield


def _remove_orphan(paths: SandboxPaths) -> list[str]:
    """Remove what no record owns, and return a sentence for each thing."""
    gone = [f"process {pid} of sandbox {paths.sandbox_id}" for pid in sorted(paths.cgroup.pids())]
    paths.kill()
    gone += [f"mount {point}" for point in mounts.unmount_below(paths.directory)]
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(paths.directory)
        gone.append(f"directory {paths.directory}")
    return gone or [f"control group {paths.cgroup.path}"]


def _remove_shared(node: RunscPaths) -> list[str]:
    """Remove what all sandboxes share, once the last is gone, and return a sentence for each thing."""
    gone = [f"control group /{cgroup.parent_name(node.tag)}"] if cgroup.remove_parent(node.tag) else []
    if programs.release(node.tools):
        gone.append(f"mount of the programs in {node.tools}")
    if node.run.is_dir():
        shutil.rmtree(node.run)
        gone.append(f"directory {node.run}")
    return gone
