"""Pause, resume and checkpoint of a sandbox that its record describes.  Callers hold its lock."""

import contextlib
import shutil
from collections.abc import Iterator
from typing import Final

from gateway.wire.errors import ErrorCode
from node_agent.errors import RuntimeFailure
from node_agent.host.disk import out_of_space
from node_agent.host.process import CommandError, readable
from node_agent.host.programs import BUSYBOX_INSIDE
from node_agent.runtime.base import EngineState
from node_agent.runtime.record import RunscRecord, RunscRecords
from node_agent.runtime.runsc.control import ControlError, ControlLostError, Launch
from node_agent.runtime.runsc.paths import SandboxPaths
from node_agent.runtime.runsc.process import Pipes, SocketHandle
from node_agent.runtime.runsc.runsc_cli import Runsc

_ANSWERS_WITHIN: Final = 2.0  # seconds for a process that ends at once, in a sandbox that is not frozen
_FIRST_PID: Final = 1


def pause(runsc: Runsc, records: RunscRecords, paths: SandboxPaths, record: RunscRecord) -> None:
    """Freeze the sandbox; nothing happens when it is paused already.

    Its processes stop first, and then its kernel on the host: gVisor's goes on looking for work otherwise, and costs 2
    to 4 % of a core.  Only what `awake` surrounds may ask a paused sandbox anything.

    Raises:
        RuntimeFailure: ``SANDBOX_NOT_RUNNING``; ``DISK_FULL`` or ``INTERNAL`` when the host refuses.
    """
    with _switching("pause", paths):
        record = settle(records, paths, record)
        if record.state is not EngineState.PAUSED:
            # gVisor counts pauses, and a resume too many would end the sandbox: a crash in between must leave a trace.
            paths.settling.touch()
            paths.control.pause() if runsc.socket else runsc.pause(paths.sandbox_id)
            paths.cgroup.freeze()
            try:
                _settled(records, paths, record, EngineState.PAUSED)
            except OSError:  # nobody would know that it is frozen
                paths.cgroup.thaw()
                paths.control.resume() if runsc.socket else runsc.resume(paths.sandbox_id)
                raise


def resume(runsc: Runsc, records: RunscRecords, paths: SandboxPaths, record: RunscRecord) -> None:
    """Let the sandbox go on; nothing happens when it runs already.

    Raises:
        RuntimeFailure: as `pause`.
    """
    with _switching("resume", paths):
        record = settle(records, paths, record)
        if record.state is not EngineState.RUNNING:
            paths.settling.touch()
            paths.cgroup.thaw()
            paths.control.resume() if runsc.socket else runsc.resume(paths.sandbox_id)
            _settled(records, paths, record, EngineState.RUNNING)


@contextlib.contextmanager
def _switching(action: str, paths: SandboxPaths) -> Iterator[None]:
    try:
        yield
    except (ControlError, ControlLostError, CommandError, OSError) as error:
        code = ErrorCode.SANDBOX_NOT_RUNNING
        if isinstance(error, OSError):
            code = ErrorCode.DISK_FULL if out_of_space(error) else ErrorCode.INTERNAL
        raise RuntimeFailure(code, f"{action} of sandbox {paths.sandbox_id} failed: {error}") from error


def _settled(records: RunscRecords, paths: SandboxPaths, record: RunscRecord, state: EngineState) -> RunscRecord:
    """Write the state that a pause or resume has come to, and take its trace away."""
    record = records.save(record.but(state=state))
    paths.settling.unlink()
    return record


@contextlib.contextmanager
def awake(paths: SandboxPaths) -> Iterator[None]:
    """Let the kernel of a paused sandbox answer meanwhile; the sandbox's own processes stay where they are.

    Raises:
        OSError: the host does not let it go.
    """
    frozen = paths.cgroup.frozen()
    if frozen:
        paths.cgroup.thaw()
    try:
        yield
    finally:
        if frozen:
            paths.cgroup.freeze()


def settle(records: RunscRecords, paths: SandboxPaths, record: RunscRecord) -> RunscRecord:
    """Return the record with its true state, after a pause or resume that a crash may have cut short."""
    if paths.settling.exists():
        # It is frozen only between the end of a pause's first half and the begin of a resume's second.
        paused = paths.cgroup.frozen() or not _answers(paths)
        record = _settled(records, paths, record, EngineState.PAUSED if paused else EngineState.RUNNING)
    if record.state is EngineState.PAUSED:
        paths.cgroup.freeze()
    return record


def drain(paths: SandboxPaths) -> None:
    """Wait until the sandbox's kernel has taken in what it was asked before; it holds only a few questions."""
    with contextlib.suppress(ControlError, ControlLostError):  # whoever asked before learns of it as well
        paths.control.count()


def _answers(paths: SandboxPaths) -> bool:
    """Return whether processes run: one that ends at once does end."""
    with contextlib.closing(Pipes(stdin=False)) as pipes:
        launch = Launch((BUSYBOX_INSIDE, "true"), (), "/", 0, 0, (), 0, 0)
        try:
            handle = SocketHandle(paths.sandbox_id, paths.control, launch, pipes)
        except (ControlError, ControlLostError):
            return True  # it cannot be asked; a resume will fail and explain
        finally:
            pipes.close_guest()
        with contextlib.closing(handle):
            return readable(handle, _ANSWERS_WITHIN)


def refuse_live_execs(runsc: Runsc, paths: SandboxPaths) -> None:
    """Raise while processes run that an exec started: they cannot be restored.

    Raises:
        RuntimeFailure: ``CONFLICT`` while there are any; ``UNSUPPORTED`` where that cannot be known.
    """
    if not runsc.socket:
        raise RuntimeFailure(ErrorCode.UNSUPPORTED, "a checkpoint needs gVisor's control socket, which failed its test")
    try:
        execs = [process for process in paths.control.processes() if process.parent == 0 != process.pid - _FIRST_PID]
    except (ControlError, ControlLostError) as error:
        raise RuntimeFailure(ErrorCode.SANDBOX_NOT_RUNNING, f"sandbox {paths.sandbox_id}: {error}") from error
    if execs:
        raise RuntimeFailure(
            ErrorCode.CONFLICT,
            f"sandbox {paths.sandbox_id} has {len(execs)} running execs, which a checkpoint loses; end them first",
        )


def checkpoint(runsc: Runsc, records: RunscRecords, paths: SandboxPaths, record: RunscRecord) -> None:
    """Write the processes to disk and end them.

    Raises:
        RuntimeFailure: ``INTERNAL`` when runsc could not; the sandbox may still run.
    """
    partial = paths.checkpoint.with_suffix(".partial")
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(partial)
    partial.mkdir(mode=0o700)
    # No disk is so slow that it writes less than 20 MB of memory in a second.
    timeout = 60 + record.spec.memory_mb / 20
    try:
        runsc.checkpoint(paths.sandbox_id, partial, record.part.net is not None, timeout)
    except CommandError as error:
        shutil.rmtree(partial)
        raise RuntimeFailure(ErrorCode.INTERNAL, f"checkpoint of sandbox {paths.sandbox_id}: {error}") from error
    partial.rename(paths.checkpoint)
    settle_checkpoint(records, paths, record)


def settle_checkpoint(records: RunscRecords, paths: SandboxPaths, record: RunscRecord) -> RunscRecord:
    """End the processes of a sandbox whose checkpoint is whole, and write that it is.

    Raises:
        RuntimeFailure: ``BUSY`` when they do not end.
    """
    paths.kill()
    return records.save(record.but(state=EngineState.CHECKPOINTED).with_part(sentry_pid=None))
