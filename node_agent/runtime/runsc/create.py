"""A sandbox from its image to a running first process, and back to nothing.

`RunscSteps.bring_up` reads from start to end: volume, network, root file system, workspace, bundle, and the start.
`node_agent.runtime.incarnation` decides when each step is taken; callers hold the sandbox's lock.
"""

import contextlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from gateway.wire.errors import ErrorCode
from gateway.wire.states import DeathReason
from node_agent.errors import RuntimeFailure
from node_agent.host import accounts, cgroup, devices, mounts, programs
from node_agent.host.accounts import Account
from node_agent.host.disk import host_errors, out_of_space
from node_agent.host.images import EngineImage, Images
from node_agent.host.network import Networks
from node_agent.host.process import CommandError
from node_agent.host.programs import StaticPrograms
from node_agent.host.volume import Volumes
from node_agent.runtime.base import EngineState, Found, Order, Stream
from node_agent.runtime.etc_files import etc_files
from node_agent.runtime.incarnation import EngineSteps, not_started
from node_agent.runtime.locks import StartAttempt
from node_agent.runtime.record import RunscPart, RunscRecord, RunscRecords
from node_agent.runtime.runsc import oci_bundle
from node_agent.runtime.runsc.control import ControlLostError, PendingAnswer
from node_agent.runtime.runsc.exit_watch import SandboxExits
from node_agent.runtime.runsc.oci_bundle import BundleHost, GuestFiles, UnstartableError
from node_agent.runtime.runsc.paths import RunscPaths, SandboxPaths
from node_agent.runtime.runsc.rootfs import RootFileSystems
from node_agent.runtime.runsc.runsc_cli import Runsc

_ASK_EVERY: Final = 0.003  # seconds
_UPPER: Final = "upper"
_ROOM_WITHIN: Final = 3.0  # seconds
_WORK: Final = "work"


@dataclass(frozen=True)
class PreparedStart:
    """What a start needs and what may take minutes to get.

    Attributes:
        image: what the sandbox starts from.
        root: where that image lies unpacked.
        tools: the static programs that are bound into the sandbox.
        runsc: the engine, probed.
    """

    image: EngineImage
    root: Path
    tools: StaticPrograms
    runsc: Runsc


@dataclass(frozen=True)
class RunscSteps(EngineSteps[RunscPart, PreparedStart]):
    """What runsc does of the life of an incarnation.

    Attributes:
        probed: returns the engine; the first call may take seconds.
        resolvers: name servers of sandboxes with a network.
    """

    node: RunscPaths
    probed: Callable[[], Runsc]
    images: Images
    roots: RootFileSystems
    volumes: Volumes
    networks: Networks
    resolvers: tuple[str, ...]
    records: RunscRecords
    exits: SandboxExits

    def prepare(self, order: Order) -> PreparedStart:
        image = self.images.resolve(order.spec.image)
        root = self.roots.ensure(image)
        with host_errors("programs for the sandboxes"):
            provided = programs.provide(self.node.tools)
        return PreparedStart(image, root, provided, self.probed())

    def plan(self, record: RunscRecord, prepared: PreparedStart) -> RunscRecord:
        image = prepared.image
        return record.but(image_digest=image.digest).with_part(image_id=image.id, image_env=image.env)

    def bring_up(self, record: RunscRecord, prepared: PreparedStart, attempt: StartAttempt) -> RunscRecord:
        paths, spec = self.node.of(record.sandbox_id), record.spec
        self.volumes.ensure(paths.directory, spec.disk_mb)
        if spec.network == "bridge":
            record = self.records.save(record.with_part(net=self.networks.create()))
        with host_errors(f"devices of sandbox {record.sandbox_id}"):
            cgroup.confine_devices(self.node.tag, devices.ENGINE_RULES)
        _mount_rootfs(paths, prepared.root, etc_files(spec, self.resolvers))
        try:
            record = self._write_bundle(paths, record, prepared)
        except (accounts.UnknownAccountError, UnstartableError) as error:
            message = f"sandbox {record.sandbox_id} did not start: {error}"
            raise RuntimeFailure(ErrorCode.START_ERROR, message, reason=DeathReason.START_ERROR) from error
        return self._run(paths, record, prepared.runsc, attempt)

    def restore(self, record: RunscRecord, runsc: Runsc, attempt: StartAttempt) -> None:
        """Bring a checkpointed sandbox back.

        Raises:
            RuntimeFailure: the network or the start failed; the checkpoint stays.
        """
        paths = self.node.of(record.sandbox_id)
        if record.part.net is not None:
            # The first start took the address away from the interface; only a new one gives it back.
            self.networks.rebuild(record.part.net)
        try:
            self._run(paths, record, runsc, attempt, restore=True)
        except OSError as error:
            paths.kill()
            raise not_started(record.sandbox_id, error) from error
        except RuntimeFailure:
            paths.kill()
            raise
        shutil.rmtree(paths.checkpoint)

    def take_down(self, sandbox_id: str, record: RunscRecord | None) -> None:
        paths = self.node.of(sandbox_id)
        self.exits.forget(paths)
        paths.end_processes()
        if record is not None:
            self.exits.ended(record)
        paths.kill()
        if record is not None and record.part.net is not None:
            self.networks.remove(record.part.net)
        paths.clear()

    def interrupt(self, sandbox_id: str) -> None:
        # Calls that wait for the sandbox's kernel end with it, and let the lock go.
        self.node.of(sandbox_id).end_processes()

    def found(self, record: RunscRecord) -> Found:
        return Found(
            order=record.order,
            state=record.state,
            isolation="gvisor",
            image_digest=record.image_digest,
            started_at=record.part.started_at,
            death=record.death,
        )

    def _write_bundle(self, paths: SandboxPaths, record: RunscRecord, prepared: PreparedStart) -> RunscRecord:
        """Prepare what the mounted root's owner decides: workspace, logs and ``config.json``."""
        spec, image = record.spec, prepared.image
        account = accounts.look_up(paths.rootfs, image.user if spec.security.user is None else spec.security.user)
        _prepare_volume(paths, account)
        process = oci_bundle.first_process(spec, image, account)
        if problem := GuestFiles(paths.rootfs, paths.workspace, spec.filesystem.workspace_path).problem(process):
            raise UnstartableError(problem)
        host = BundleHost(
            init=prepared.tools.init and spec.security.init,
            rootfs=paths.rootfs,
            workspace=paths.workspace,
            tools=prepared.tools.path,
            cgroup=paths.cgroup.path,
            namespace=record.part.net.path if record.part.net else None,
        )
        write_config(paths, oci_bundle.config(spec, process, host))
        return record.but(working_dir=process.working_dir).with_part(account=account)

    def _run(
        self, paths: SandboxPaths, record: RunscRecord, runsc: Runsc, attempt: StartAttempt, *, restore: bool = False
    ) -> RunscRecord:
        """Start the bundle, or the checkpoint; then set the bounds that wait for the end of the start, and watch it."""
        started = start(runsc, paths, network=record.part.net is not None, attempt=attempt, restore=restore)
        paths.cgroup.set_cpus(record.spec.cpus)
        paths.cgroup.set_io_weight(record.spec.cpus)
        paths.cgroup.forbid_swap()
        began = record.part.started_at if restore else datetime.now(UTC)
        record = record.but(state=EngineState.RUNNING).with_part(sentry_pid=started.pid, started_at=began)
        self.records.save(record)
        self.exits.watch(paths, record, started.pending)
        return record


# -- the start ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StartedSandbox:
    """A sandbox whose first process has begun.

    Attributes:
        pid: host pid of its kernel.
        pending: the wait status of its first process, to come; ``None`` when it could not be asked for in time.
    """

    pid: int
    pending: PendingAnswer | None


def write_config(paths: SandboxPaths, config: dict[str, object]) -> None:
    """Write the bundle's ``config.json``.

    Raises:
        OSError: the host's disk is full.
    """
    paths.bundle.mkdir(mode=0o700, exist_ok=True)
    (paths.bundle / "config.json").write_text(json.dumps(config))


def start(
    runsc: Runsc, paths: SandboxPaths, *, network: bool, attempt: StartAttempt, restore: bool = False
) -> StartedSandbox:
    """Start the sandbox from its bundle, or from its checkpoint.

    Raises:
        RuntimeFailure: ``START_ERROR`` with the engine's own words, ``DISK_FULL``; ``CONFLICT`` when a delete came.
    """
    try:
        with _EarlyWait(paths) as early:
            (runsc.restore if restore else runsc.start)(paths, network, attempt)
            pid = int(paths.pid_file.read_text())
        return StartedSandbox(pid, early.pending)
    except (CommandError, OSError, ValueError) as error:
        raise _start_failure(paths, error) from error


def _start_failure(paths: SandboxPaths, error: Exception) -> RuntimeFailure:
    words = (error.output if isinstance(error, CommandError) else "").strip() or str(error)
    if paths.cgroup.oom_kills():
        message = f"sandbox {paths.sandbox_id} needs more memory than memory_mb allows only to start: {words}"
        return RuntimeFailure(ErrorCode.START_ERROR, message, reason=DeathReason.OOM)
    message = f"sandbox {paths.sandbox_id} did not start: {words}"
    if out_of_space(error):
        return RuntimeFailure(ErrorCode.DISK_FULL, f"{message}; the node's disk is full", reason=DeathReason.DISK_FULL)
    return RuntimeFailure(ErrorCode.START_ERROR, message, reason=DeathReason.START_ERROR)


class _EarlyWait:
    """Asks for the first process's wait status from another thread while the block starts the sandbox.

    runsc returns some milliseconds after the first process began, and a sentry ends with its first process: who asks
    for the exit code only then may ask nobody.  gVisor has no event for "it began", so this asks again and again, for
    the few dozen milliseconds between the pid file, which runsc writes just before, and the begin.
    """

    def __init__(self, paths: SandboxPaths) -> None:
        self._pid_file = paths.pid_file
        self._control = paths.control
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="early-wait", daemon=True)
        self.pending: PendingAnswer | None = None

    def __enter__(self) -> Self:
        self._pid_file.unlink(missing_ok=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        if self.pending is not None and (error is not None or self._refused(self.pending, 0)):
            self.pending.close()
            self.pending = None
        if self.pending is None and error is None:
            # On a busy host a refusal takes longer than a look; now that the first process has begun, none can come.
            with contextlib.suppress(ControlLostError):
                self.pending = self._control.wait_first()

    def _ask(self) -> None:
        while not self._over.wait(_ASK_EVERY):
            if self._pid_file.exists() and self._asked():
                return

    def _asked(self) -> bool:
        """Ask, and return whether the sentry took the question; before the first process began it refuses at once."""
        try:
            pending = self._control.wait_first()
        except ControlLostError:
            return False
        if self._refused(pending, _ASK_EVERY):
            pending.close()
            return False
        self.pending = pending
        return True

    @staticmethod
    def _refused(pending: PendingAnswer, within: float) -> bool:
        try:
            return pending.refused(within)
        except ControlLostError:
            return True


# -- files -------------------------------------------------------------------------------------------------------------


def _mount_rootfs(paths: SandboxPaths, image_root: Path, etc: dict[str, str]) -> None:
    """Mount the image below a fresh writable layer that holds the given files of ``/etc``."""
    upper, work = paths.volume.path / _UPPER, paths.volume.path / _WORK
    deadline = time.monotonic() + _ROOM_WITHIN
    while True:
        try:
            _make_layer(upper, work, image_root, etc)
            break
        except OSError as error:
            # What the last incarnation filled is free once the kernel has let go of its mounts; no event tells when.
            if not out_of_space(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    paths.rootfs.mkdir(exist_ok=True)
    mounts.overlay(image_root, upper, work, paths.rootfs)


def _make_layer(upper: Path, work: Path, image_root: Path, etc: dict[str, str]) -> None:
    for directory in (upper, work):
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(directory)
        directory.mkdir(mode=0o755)
    _take_mode(upper, image_root)
    _write_etc(upper / "etc", image_root / "etc", etc)


def _write_etc(upper: Path, lower: Path, files: dict[str, str]) -> None:
    """Write the files; an ``/etc`` that is a link stays as it is, as nobody would see files beside its target."""
    if lower.is_symlink():
        return
    upper.mkdir(mode=0o755)
    if lower.is_dir():
        _take_mode(upper, lower)
    for name, text in files.items():
        (upper / name).write_text(text)
        (upper / name).chmod(0o644)


def _take_mode(target: Path, source: Path) -> None:
    """Give the upper directory, which is the one that is seen, the owner and mode of the lower one."""
    status = source.stat()
    os.chown(target, status.st_uid, status.st_gid)
    target.chmod(status.st_mode & 0o7777)


def _prepare_volume(paths: SandboxPaths, account: Account) -> None:
    """Make empty logs, and a workspace that is the user's; what an earlier generation left in it stays."""
    paths.workspace.mkdir(mode=0o755, exist_ok=True)
    os.chown(paths.workspace, account.uid, account.gid)
    for stream in Stream:
        path = paths.log(stream)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.write_bytes(b"")
    paths.crash_log.unlink(missing_ok=True)
