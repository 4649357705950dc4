"""How the end of a sandbox is noticed, judged and settled, also when the agent was away at the time.

`SandboxExits` knows what is watched and writes the deaths.  `ExitWatcher` is the one thread that waits for all ends at
once.  `node_agent.runtime.runsc.death` decides why a sandbox ended.
"""

import logging
import os
import selectors
import signal
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Final

from node_agent.errors import RuntimeFailure
from node_agent.host.network import Networks
from node_agent.host.process import how_ended, readable
from node_agent.runtime.base import Death, EngineState
from node_agent.runtime.locks import SandboxLocks
from node_agent.runtime.record import RunscRecord, RunscRecords
from node_agent.runtime.runsc import pause
from node_agent.runtime.runsc.control import ControlError, ControlLostError, PendingAnswer
from node_agent.runtime.runsc.death import EngineLogs, MemoryEvents, ObservedEnd, death_of
from node_agent.runtime.runsc.fd_store import FdStore
from node_agent.runtime.runsc.paths import SandboxPaths

log = logging.getLogger(__name__)

_ALIVE: Final = (EngineState.RUNNING, EngineState.PAUSED)
_GOFER_ENDS_WITHIN: Final = 2.0  # seconds after the sandbox; it has nothing left to do


class SandboxExits:
    """The sandboxes whose end this agent waits for.  Calls for one sandbox are made under its lock.

    Args:
        records: where deaths are written.
        locks: of the sandboxes.
        networks: what a dead sandbox gives back.
        fd_store: keeps the connections on which exit codes will come, for the next agent.
        logs: keeps what engines write when they crash.
        ended: called once all processes of an incarnation have ended, before its control group and network go.
    """

    def __init__(
        self,
        records: RunscRecords,
        locks: SandboxLocks,
        networks: Networks,
        fd_store: FdStore,
        logs: EngineLogs,
        ended: Callable[[RunscRecord], None],
    ) -> None:
        self._records = records
        self._locks = locks
        self._networks = networks
        self._fd_store = fd_store
        self._logs = logs
        self.ended = ended
        self._watcher = ExitWatcher()
        self._watched: dict[str, WatchedExit] = {}

    def watch(self, paths: SandboxPaths, record: RunscRecord, pending: PendingAnswer | None = None) -> None:
        """Settle the sandbox when its first process or its kernel ends.

        Args:
            paths: where it lies.
            record: of the running sandbox.
            pending: the wait status to come, where somebody asked for it already.
        """
        handle = paths.sentry_handle(record.part.sentry_pid)
        if handle is None:
            handle = _ended_handle()
        if pending is None:
            pending = self._ask(paths)
        else:
            self._fd_store.keep(paths.sandbox_id, pending.fileno())
        watched = WatchedExit(
            ask=partial(self._ask, paths),
            pending=pending,
            sentry=handle,
            gofer=paths.gofer_handle(),
            on_end=partial(self._settle, paths, record.generation),
        )
        self._watched[paths.sandbox_id] = watched
        self._watcher.add(watched)

    def adopt(self, paths: SandboxPaths, record: RunscRecord) -> RunscRecord:
        """Ask the engine for the truth about a recorded sandbox, watch what runs, and return the true record.

        Raises:
            RuntimeFailure: ``BUSY`` when its processes do not end.
        """
        if record.state is EngineState.CHECKPOINTED:
            paths.kill()  # a checkpoint or restore that a crash cut short
            return record
        if record.state not in _ALIVE or paths.sandbox_id in self._watched:
            return record
        if paths.alive(record.part.sentry_pid):
            record = pause.settle(self._records, paths, record)
            with pause.awake(paths):
                self.watch(paths, record, self._kept(paths))
                if record.state is EngineState.PAUSED:
                    pause.drain(paths)
            return record
        if paths.checkpoint.is_dir():
            return pause.settle_checkpoint(self._records, paths, record)
        return self._bury(paths, record, self._end_meanwhile(paths))

    def forget(self, paths: SandboxPaths) -> None:
        """Wait for the sandbox's end no longer.  Idempotent."""
        self._fd_store.drop(paths.sandbox_id)
        watched = self._watched.pop(paths.sandbox_id, None)
        if watched is not None:
            self._watcher.drop(watched)

    def close(self) -> None:
        """Wait for nothing any more; the sandboxes run on."""
        self._watcher.stop()
        self._fd_store.close()

    def _ask(self, paths: SandboxPaths) -> PendingAnswer | None:
        """Ask for the first process's wait status, so that it also comes when this agent goes.

        Returns:
            The answer to come; ``None`` where nobody is left to answer.
        """
        try:
            pending = paths.control.wait_first()
        except ControlLostError:
            return None
        self._fd_store.keep(paths.sandbox_id, pending.fileno())
        return pending

    def _kept(self, paths: SandboxPaths) -> PendingAnswer | None:
        """Return the answer to come that an earlier life of this agent asked for."""
        descriptor = self._fd_store.take(paths.sandbox_id)
        return None if descriptor is None else PendingAnswer(socket.socket(fileno=descriptor), stays=True)

    def _end_meanwhile(self, paths: SandboxPaths) -> ObservedEnd:
        """Return what is known of a sandbox that ended while no agent ran."""
        pending = self._kept(paths)
        if pending is None:
            return ObservedEnd()
        try:
            status = pending.take()
        except ControlError:
            return ObservedEnd()
        except ControlLostError:
            status = None
        finally:
            pending.close()
        return ObservedEnd(status, killed=status is None)  # a kernel that ends by itself answers first

    def _settle(self, paths: SandboxPaths, generation: int, end: ObservedEnd) -> None:
        """Bury the sandbox if it still is the incarnation that was watched."""
        with self._locks.of(paths.sandbox_id).changing():
            record = self._records.load(paths.sandbox_id)
            if record is None or record.generation != generation or record.state not in _ALIVE:
                return
            self._watched.pop(paths.sandbox_id, None)
            try:
                self._bury(paths, record, end)
            except (OSError, RuntimeFailure):
                # The next look at the sandbox, or the agent's next start, tries again.
                log.exception("sandbox %s ended and could not be settled", paths.sandbox_id)

    def _bury(self, paths: SandboxPaths, record: RunscRecord, end: ObservedEnd) -> RunscRecord:
        """Judge why it ended, and settle it."""
        group = paths.cgroup
        memory = MemoryEvents(group.oom_kills(), group.met_memory_limit())
        crash = None
        if end.killed:
            crash = self._logs.keep(f"{record.sandbox_id}.{record.generation}.log", paths.crash_log)
        full = _disk_full(paths)
        death = death_of(end, memory=memory, disk_full=full, ended_at=datetime.now(UTC), crash=crash)
        return self._settle_as(paths, record, death)

    def end(self, paths: SandboxPaths, record: RunscRecord, death: Death) -> None:
        """End a sandbox that runs, for the reason that ``death`` gives.

        Raises:
            RuntimeFailure, OSError: engine or host do not do it.
        """
        self.forget(paths)
        self._settle_as(paths, record, death)

    def _settle_as(self, paths: SandboxPaths, record: RunscRecord, death: Death) -> RunscRecord:
        """Write the death, and free all but the volume."""
        dead = record.but(state=EngineState.DEAD, death=death)
        try:
            self._records.save(dead)
        except OSError as error:
            # On a full disk, what follows makes room for the second writing.
            log.error("sandbox %s: its death could not be recorded yet: %s", paths.sandbox_id, error)
        paths.end_processes()
        self.ended(record)
        paths.kill()
        if record.part.net is not None:
            self._networks.remove(record.part.net)
        paths.clear()
        dead = self._records.save(dead.with_part(net=None, sentry_pid=None))
        self._fd_store.drop(paths.sandbox_id)
        return dead


def _disk_full(paths: SandboxPaths) -> bool:
    try:
        return paths.volume.mounted and paths.volume.full()
    except OSError as error:
        log.error("sandbox %s: its disk cannot be read any more: %s", paths.sandbox_id, error)
        return True


def _ended_handle() -> int:
    """Return a descriptor that is readable at once, for a kernel that ended before it could be watched."""
    return os.eventfd(1, os.EFD_CLOEXEC)


# -- the thread that waits ---------------------------------------------------------------------------------------------


@dataclass(eq=False)
class WatchedExit:
    """One sandbox whose end is waited for.

    Attributes:
        ask: asks the sandbox for the wait status of its first process.
        pending: the wait status to come; ``None`` where it could not be asked for.
        sentry: pidfd of its kernel; it belongs to the watcher.
        gofer: pidfd of its file server, likewise; ``None`` where it is gone already.
        gofer_first: whether the file server was seen to have ended when nothing else had.
        on_end: called once, from a thread of its own, when the first process or the whole sandbox ends.
    """

    ask: Callable[[], PendingAnswer | None]
    pending: PendingAnswer | None
    sentry: int
    gofer: int | None
    on_end: Callable[[ObservedEnd], None]
    closed: bool = False
    asked_again: bool = False
    lost: bool = False
    gofer_first: bool = False

    def observed(self, status: int | None) -> ObservedEnd:
        """Return what is to be known of the end, by what the host says of the engine's processes.

        Args:
            status: wait status of the first process; ``None`` where the kernel ended without it.
        """
        if status is None:  # a kernel that ends by itself answers first
            unanswered = self.lost or self.pending is not None
            return ObservedEnd(None, unanswered, how_ended(self.sentry, 0) if unanswered else None)
        if status != signal.SIGKILL:
            return ObservedEnd(status)
        # A kernel whose file server is killed kills its processes, and reports.  But a first process may also be killed
        # from inside, and then the file server ends by itself at the same time.
        how = None if self.gofer is None else how_ended(self.gofer, _GOFER_ENDS_WITHIN)
        return ObservedEnd(status, self.gofer_first if how is None else os.WIFSIGNALED(how), how)

    def free(self) -> None:
        """Close all descriptors."""
        os.close(self.sentry)
        if self.gofer is not None:
            os.close(self.gofer)
        if self.pending is not None:
            self.pending.close()


class ExitWatcher:
    """Waits for the ends of sandboxes on one thread, which starts with the first of them."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._added: list[WatchedExit] = []
        self._dropped: list[WatchedExit] = []
        self._thread: threading.Thread | None = None
        self._stopping = False

    def add(self, watched: WatchedExit) -> None:
        """Wait for one more sandbox."""
        with self._lock:
            self._added.append(watched)
            if self._thread is None:
                self._selector.register(self._wake, selectors.EVENT_READ)
                self._thread = threading.Thread(target=self._run, name="sandbox-ends", daemon=True)
                self._thread.start()
        os.eventfd_write(self._wake, 1)

    def drop(self, watched: WatchedExit) -> None:
        """Wait for a sandbox no longer; its ``on_end`` is not called any more unless the call has begun."""
        with self._lock:
            self._dropped.append(watched)
        os.eventfd_write(self._wake, 1)

    def stop(self) -> None:
        """End the thread and close what it watches.  Idempotent; nothing may be called afterwards."""
        with self._lock:
            if self._stopping:
                return
            self._stopping = True
            thread = self._thread
        os.eventfd_write(self._wake, 1)
        if thread is not None:
            thread.join()
        self._take_in()
        for watched in {key.data for key in self._selector.get_map().values() if isinstance(key.data, WatchedExit)}:
            self._close(watched)
        self._selector.close()
        os.close(self._wake)

    def _run(self) -> None:
        while not self._stopping:
            for key, _ in self._selector.select():
                if key.fd == self._wake:
                    os.eventfd_read(self._wake)
                    self._take_in()
                elif not key.data.closed:
                    self._look_at(key.data)

    def _take_in(self) -> None:
        with self._lock:
            added, self._added = self._added, []
            dropped, self._dropped = self._dropped, []
        for watched in added:
            for source in _sources(watched):
                self._selector.register(source, selectors.EVENT_READ, watched)
        for watched in dropped:
            self._close(watched)

    def _look_at(self, watched: WatchedExit) -> None:
        self._look_at_gofer(watched)
        ended = readable(watched.sentry, 0)  # before the answer: after its end all that it sent is there
        status = self._answer(watched)
        if status is None and not ended:
            return
        self._unregister(watched)
        threading.Thread(target=_report, args=(watched, status), name="sandbox-end", daemon=True).start()

    def _look_at_gofer(self, watched: WatchedExit) -> None:
        if watched.gofer is not None and not watched.gofer_first and readable(watched.gofer, 0):
            self._selector.unregister(watched.gofer)
            watched.gofer_first = True

    def _answer(self, watched: WatchedExit) -> int | None:
        """Return the wait status, if it has come."""
        if watched.pending is None:
            return None
        try:
            return watched.pending.take()
        except (ControlError, ControlLostError) as error:
            self._selector.unregister(watched.pending)
            watched.pending.close()
            watched.pending = None
            if isinstance(error, ControlLostError):
                watched.lost = True
            elif not watched.asked_again:
                # Asked before the first process began, and refused late: it has begun by now.
                self._ask_again(watched)
            return None  # the sentry's own end comes next

    def _ask_again(self, watched: WatchedExit) -> None:
        watched.asked_again = True
        watched.pending = watched.ask()
        if watched.pending is not None:
            self._selector.register(watched.pending, selectors.EVENT_READ, watched)

    def _close(self, watched: WatchedExit) -> None:
        if not watched.closed:
            self._unregister(watched)
            watched.free()

    def _unregister(self, watched: WatchedExit) -> None:
        watched.closed = True
        for source in _sources(watched):
            self._selector.unregister(source)


def _sources(watched: WatchedExit) -> list[int | PendingAnswer]:
    gofer = None if watched.gofer_first else watched.gofer
    return [source for source in (watched.sentry, gofer, watched.pending) if source is not None]


def _report(watched: WatchedExit, status: int | None) -> None:
    """Call whoever waits for the end: the body of a thread."""
    try:
        end = watched.observed(status)
    finally:
        watched.free()
    watched.on_end(end)
