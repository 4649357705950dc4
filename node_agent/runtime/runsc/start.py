"""Starting one sandbox's kernel and getting rid of it again, whatever state it is in."""

import contextlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gateway.wire.errors import ErrorCode
from gateway.wire.states import DeathReason
from node_agent.errors import RuntimeFailure
from node_agent.host import mounts
from node_agent.host.disk import out_of_space
from node_agent.host.process import CommandError
from node_agent.runtime.base import Stream
from node_agent.runtime.runsc.control import Pending
from node_agent.runtime.runsc.early import EarlyWait
from node_agent.runtime.runsc.paths import Places
from node_agent.runtime.runsc.runsc_cli import Guard, Runsc, Stdio

_GOFER: Final = b"runsc-gofer"


def write_bundle(places: Places, config: dict[str, Any]) -> None:
    """Writes ``config.json``.

    Raises:
        OSError: the host's disk is full.
    """
    places.bundle.mkdir(mode=0o700, exist_ok=True)
    (places.bundle / "config.json").write_text(json.dumps(config))


@dataclass(frozen=True)
class Started:
    """A sandbox whose first process has begun.

    Attributes:
        pid: host pid of its kernel.
        pending: the wait status of its first process, to come; ``None`` when it could not be asked for in time.
    """

    pid: int
    pending: Pending | None


def start(runsc: Runsc, places: Places, *, network: bool, guard: Guard, image: Path | None = None) -> Started:
    """Starts the bundle, or restores it from the checkpoint in ``image``.

    Raises:
        RuntimeFailure: ``START_ERROR``, with what the engine said.
    """
    stdio = stdio_of(places)
    runsc.state.mkdir(mode=0o700, exist_ok=True)
    try:
        with EarlyWait(places) as early:
            if image is None:
                runsc.start(places.sandbox_id, places.bundle, stdio, network, guard)
            else:
                runsc.restore(places.sandbox_id, places.bundle, image, stdio, network, guard)
            pid = int((places.bundle / "pid").read_text())
        return Started(pid, early.pending)
    except (CommandError, OSError, ValueError) as error:
        raise _failed(places, error) from error


def _failed(places: Places, error: Exception) -> RuntimeFailure:
    said = (error.output if isinstance(error, CommandError) else "").strip() or str(error)
    if places.cgroup.oom_kills():
        message = f"sandbox {places.sandbox_id} needs more memory than memory_mb allows only to start: {said}"
        return RuntimeFailure(ErrorCode.START_ERROR, message, reason=DeathReason.OOM)
    message = f"sandbox {places.sandbox_id} did not start: {said}"
    if out_of_space(error):
        return RuntimeFailure(ErrorCode.DISK_FULL, f"{message}; the node's disk is full", reason=DeathReason.DISK_FULL)
    return RuntimeFailure(ErrorCode.START_ERROR, message, reason=DeathReason.START_ERROR)


def stdio_of(places: Places) -> Stdio:
    """Where output of the first process and of the start go."""
    return Stdio(places.log(Stream.STDOUT), places.log(Stream.STDERR), places.engine_log)


def kill(places: Places) -> None:
    """Ends every process of the sandbox and forgets the engine's state of it.  Idempotent, bounded in time.

    It asks nothing of the engine, which may hang: the processes are found by their control group.

    Raises:
        RuntimeFailure: ``BUSY`` when a process does not die (it hangs in the host's kernel).
    """
    if not places.kill():
        pids = ", ".join(map(str, sorted(places.cgroup.pids())))
        raise RuntimeFailure(ErrorCode.BUSY, f"processes {pids} of sandbox {places.sandbox_id} do not end; try again")
    places.cgroup.remove()
    for path in places.engine_state:
        path.unlink(missing_ok=True)


def unmount(places: Places) -> None:
    """Takes the root file system away.  Idempotent."""
    mounts.unmount_below(places.rootfs)


def forget_files(places: Places) -> None:
    """Removes what belongs to one incarnation: bundle, checkpoint, engine log.  Idempotent."""
    for directory in (places.bundle, places.checkpoint):
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(directory)
    for file in (places.engine_log, places.settling):
        file.unlink(missing_ok=True)


def sentry_handle(places: Places, pid: int | None) -> int | None:
    """A pidfd of the sandbox's kernel; ``None`` when it does not run.

    The number alone proves nothing, as the host uses pids again: it counts only inside the sandbox's own group.
    """
    if pid is None:
        return None
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    if pid in places.cgroup.pids():
        return handle
    os.close(handle)
    return None


def gofer_handle(places: Places) -> int | None:
    """A pidfd of the process that serves the sandbox's files; ``None`` when it does not run."""
    for pid in sorted(places.cgroup.pids()):
        with contextlib.suppress(OSError):  # it ended meanwhile
            handle = os.pidfd_open(pid)
            # Read behind the handle, so that it is this process that has the name.
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(_GOFER):
                return handle
            os.close(handle)
    return None


def alive(places: Places, pid: int | None) -> bool:
    """Whether the sandbox's kernel runs."""
    handle = sentry_handle(places, pid)
    if handle is None:
        return False
    os.close(handle)
    return True
