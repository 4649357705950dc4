"""Pause, resume, checkpoint and restore of a sandbox that its record describes.  Callers hold its lock."""

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gateway.wire.errors import ErrorCode
from node_agent.errors import RuntimeFailure
from node_agent.host.disk import out_of_space
from node_agent.host.process import CommandError, readable
from node_agent.host.programs import BUSYBOX_INSIDE
from node_agent.runtime.base import EngineState
from node_agent.runtime.runsc import start
from node_agent.runtime.runsc.control import ControlError, ControlLostError, Launch
from node_agent.runtime.runsc.paths import Places
from node_agent.runtime.runsc.process import Pipes
from node_agent.runtime.runsc.process_handles import SocketHandle
from node_agent.runtime.runsc.record import Record
from node_agent.runtime.runsc.runsc_cli import Runsc

_STATE_AFTER: Final = {"pause": EngineState.PAUSED, "resume": EngineState.RUNNING}
_ANSWERS_WITHIN: Final = 2.0  # seconds for a process that ends at once, in a sandbox that is not frozen
_FIRST_PID: Final = 1


@dataclass(frozen=True)
class Engine:
    """runsc, and whether its control socket may be used."""

    runsc: Runsc
    socket: bool


def freeze(engine: Engine, places: Places, record: Record, action: str) -> Record:
    """Does ``pause`` or ``resume``.  Nothing happens when it is so already.

    A pause stops the sandbox's processes first, and then its kernel on the host: gVisor's goes on looking for work
    otherwise, and costs 2 to 4 % of a core.  Only what `awake` surrounds may ask a paused sandbox anything.

    Raises:
        RuntimeFailure: ``SANDBOX_NOT_RUNNING``; ``DISK_FULL`` or ``INTERNAL`` when the host refuses.
    """
    wanted = _STATE_AFTER[action]
    try:
        record = settle(places, record)
        if record.state is wanted:
            return record
        # The engine counts pauses, and a resume too many would end the sandbox: a crash in between must leave a trace.
        places.settling.touch()
        if action == "pause":
            _tell(engine, places, action)
            places.cgroup.freeze()
        else:
            places.cgroup.thaw()
            _tell(engine, places, action)
        record = record.but(state=wanted)
        record.save(places.directory)
        places.settling.unlink()
    except (ControlError, ControlLostError, CommandError) as error:
        raise _refused(ErrorCode.SANDBOX_NOT_RUNNING, action, places, error) from error
    except OSError as error:
        code = ErrorCode.DISK_FULL if out_of_space(error) else ErrorCode.INTERNAL
        raise _refused(code, action, places, error) from error
    return record


def _tell(engine: Engine, places: Places, action: str) -> None:
    if engine.socket:
        places.control.pause() if action == "pause" else places.control.resume()
    else:
        engine.runsc.call(action, places.sandbox_id)


def _refused(code: ErrorCode, action: str, places: Places, error: Exception) -> RuntimeFailure:
    return RuntimeFailure(code, f"{action} of sandbox {places.sandbox_id} failed: {error}")


@contextlib.contextmanager
def awake(places: Places) -> Iterator[None]:
    """Lets the kernel of a paused sandbox answer meanwhile; the sandbox's own processes stay where they are.

    Raises:
        OSError: the host does not let it go.
    """
    frozen = places.cgroup.frozen()
    if frozen:
        places.cgroup.thaw()
    try:
        yield
    finally:
        if frozen:
            places.cgroup.freeze()


def settle(places: Places, record: Record) -> Record:
    """The record with its true state, after a pause or resume that a crash may have cut short."""
    if places.settling.exists():
        # It is frozen only between the end of a pause's first half and the begin of a resume's second.
        paused = places.cgroup.frozen() or not _answers(places)
        record = record.but(state=EngineState.PAUSED if paused else EngineState.RUNNING)
        record.save(places.directory)
        places.settling.unlink()
    if record.state is EngineState.PAUSED:
        places.cgroup.freeze()
    return record


def drain(places: Places) -> None:
    """Returns once the sandbox's kernel has taken in what it was asked before; it holds only a few questions."""
    with contextlib.suppress(ControlError, ControlLostError):  # whoever asked before learns of it as well
        places.control.count()


def _answers(places: Places) -> bool:
    """Whether processes run: one that ends at once does end."""
    with contextlib.closing(Pipes(stdin=False)) as pipes:
        launch = Launch((BUSYBOX_INSIDE, "true"), (), "/", 0, 0, (), 0, 0)
        try:
            handle = SocketHandle(places.sandbox_id, places.control, launch, pipes)
        except (ControlError, ControlLostError):
            return True  # it cannot be asked; a resume will say so
        finally:
            pipes.close_guest()
        with contextlib.closing(handle):
            return readable(handle, _ANSWERS_WITHIN)


def refuse_live_execs(engine: Engine, places: Places) -> None:
    """Processes that an exec started cannot be restored.

    Raises:
        RuntimeFailure: ``CONFLICT`` while there are any; ``UNSUPPORTED`` where nobody can tell.
    """
    if not engine.socket:
        raise RuntimeFailure(ErrorCode.UNSUPPORTED, "a checkpoint needs gVisor's control socket, which failed its test")
    try:
        execs = [process for process in places.control.processes() if process.parent == 0 != process.pid - _FIRST_PID]
    except (ControlError, ControlLostError) as error:
        raise RuntimeFailure(ErrorCode.SANDBOX_NOT_RUNNING, f"sandbox {places.sandbox_id}: {error}") from error
    if execs:
        raise RuntimeFailure(
            ErrorCode.CONFLICT,
            f"sandbox {places.sandbox_id} has {len(execs)} running execs, which a checkpoint loses; end them first",
        )


def checkpoint(engine: Engine, places: Places, record: Record) -> Record:
    """Writes the processes to disk and ends them.

    Raises:
        RuntimeFailure: ``INTERNAL`` when runsc could not; the sandbox may still run.
    """
    partial = places.checkpoint.with_suffix(".partial")
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(partial)
    partial.mkdir(mode=0o700)
    # No disk is so slow that it writes less than 20 MB of memory in a second.
    timeout = 60 + record.spec.memory_mb / 20
    try:
        engine.runsc.checkpoint(places.sandbox_id, partial, record.net is not None, timeout)
    except CommandError as error:
        shutil.rmtree(partial)
        raise RuntimeFailure(ErrorCode.INTERNAL, f"checkpoint of sandbox {places.sandbox_id}: {error}") from error
    partial.rename(places.checkpoint)
    return settle_checkpoint(places, record)


def settle_checkpoint(places: Places, record: Record) -> Record:
    """Writes that the checkpoint is whole, and frees the processes.

    Raises:
        RuntimeFailure: ``BUSY`` when they do not end.
    """
    start.kill(places)
    record = record.but(state=EngineState.CHECKPOINTED, sentry_pid=None)
    record.save(places.directory)
    return record
