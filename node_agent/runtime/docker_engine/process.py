"""A process inside a container: its output, its end, and how signals reach it.

Under runc its processes are the host's, and signals are sent from the host.  gVisor's are not: there a script inside
sends them.
"""

import contextlib
import errno
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol

from gateway.wire import limits
from gateway.wire.errors import ErrorCode
from gateway.wire.states import DeathReason
from node_agent.errors import AT_PROCESS_BOUND, RuntimeFailure, StartFault
from node_agent.host.engine_errors import refusal
from node_agent.host.process import pinned, send
from node_agent.runtime.base import Chunk, ExecProcess, Exit, Stream
from node_agent.runtime.docker_engine import scripts
from node_agent.runtime.docker_engine.client import UpgradedStream
from node_agent.runtime.docker_engine.scripts import Mark, MarkScanner
from node_agent.runtime.untrusted import ForgedAnswerError, whole_number

START_WAIT: Final = 30.0  # seconds; processes of the same user can stop the shell that starts an exec
_MAX_EARLY: Final = 4 * limits.MIB  # bytes of output ahead of the start, of an exec whose two streams are far apart
_LAST_SIGNAL: Final = 64
_LAST_CODE: Final = 255
_NO_MORE_PROCESSES: Final = (os.strerror(errno.EAGAIN), os.strerror(errno.EAGAIN).lower(), "in sandbox: try again")


class Signaller(Protocol):
    """Reaches processes of one container."""

    def signal(self, group: int, number: int) -> None:
        """Send a signal to a process group; do nothing when it is gone."""

    def kill_tree(self, leader: int) -> None:
        """Send SIGKILL to the leader's group, its session and every descendant."""


class Remains(StrEnum):
    """What is left where an exec's stream ended without an end mark."""

    SANDBOX_RUNS = "sandbox_runs"
    SANDBOX_GONE = "sandbox_gone"
    UNKNOWN = "unknown"  # the engine went away


@dataclass(frozen=True)
class LostExec:
    """What is known of an exec whose stream ended without an end mark.

    Attributes:
        remains: what is left.
        exit: how the shell around the process ended, which may be how the process did; ``None`` when nobody knows.
    """

    remains: Remains
    exit: Exit | None = None


class ExecWatch(Protocol):
    """Looks after one exec from outside."""

    def lost(self) -> LostExec:
        """Return what became of the exec whose stream broke off."""

    def stop(self) -> None:
        """Watch nothing any more.  Idempotent."""


class DockerExec(ExecProcess):
    """One exec.  It has started, and its process's id inside the sandbox is known, when the constructor returns."""

    def __init__(
        self,
        stream: UpgradedStream,
        prefix: str,
        program: str,
        directory: str,
        signaller: Signaller,
        watch: ExecWatch,
    ) -> None:
        """Wait for the start.

        Args:
            stream: both directions of the exec.
            prefix: of the marks in it.
            program: what is started, for sentences.
            directory: where it starts, for sentences.
            signaller: reaches its processes.
            watch: ends the stream when the sandbox dies, and knows what became of an exec without an end mark.

        Raises:
            RuntimeFailure: ``START_ERROR``; ``SANDBOX_NOT_RUNNING`` when the sandbox ended before the start;
                ``EXEC_LOST`` when its own processes kept it from starting, or the engine went away.
        """
        self._stream = stream
        self._scanners = {Stream.STDOUT: MarkScanner(prefix), Stream.STDERR: MarkScanner(prefix)}
        self._program = program
        self._directory = directory
        self._signaller = signaller
        self._watch = watch
        self._ready: deque[Chunk] = deque()
        self._open = set(self._scanners)
        self._exit: Exit | None = None
        self._over = threading.Event()
        self._closed = False
        self._forged = False
        try:
            with hung_up_after(START_WAIT, stream) as overdue:
                self._leader = self._await_start(overdue)
        except ForgedAnswerError as error:
            self.close()
            raise _disturbed(program, f"forged its start: {error}") from error
        except BaseException:
            self.close()
            raise

    def read(self) -> Chunk | None:
        while not self._ready and not self._over.is_set():
            self._receive()
        return self._ready.popleft() if self._ready else None

    def write(self, data: bytes) -> None:
        if not self._over.is_set():
            self._stream.write(data)

    def close_stdin(self) -> None:
        self._stream.close_write()

    def signal(self, number: int) -> None:
        if not self._over.is_set():
            self._signaller.signal(self._leader, number)

    def kill(self) -> None:
        if not self._over.is_set():
            self._signaller.kill_tree(self._leader)

    def wait(self) -> Exit:
        """Wait for the process's end.  Somebody has to read meanwhile: the end comes behind the output."""
        self._over.wait()
        if self._forged:
            raise _disturbed(self._program, "forged its end")
        if self._exit is None:
            raise RuntimeFailure(ErrorCode.EXEC_LOST, f"{self._program}: its sandbox or the Docker engine went away")
        return self._exit

    def close(self) -> None:
        self._closed = True
        self._watch.stop()
        self._stream.close()
        self._over.set()

    def _await_start(self, overdue: threading.Event) -> int:
        leader: int | None = None
        early = 0
        while leader is None:
            received = self._stream.read()
            if received is None:
                raise self._not_started(overdue)
            stream, data = received
            early += len(data)
            if early > _MAX_EARLY:
                raise _disturbed(self._program, "wrote into its pipes before it had started")
            for item in self._scanners[stream].feed(data):
                if isinstance(item, Mark) and item.kind == scripts.STARTED:
                    leader = whole_number(item.value, limits.MAX_PIDS)
                elif isinstance(item, Mark) and item.kind != scripts.ENDED:
                    raise start_failure(item, self._program, self._directory)
                else:  # the two streams keep no order between them: what is on stderr may be ahead
                    self._take(stream, item)
        return leader

    def _not_started(self, overdue: threading.Event) -> RuntimeFailure:
        if overdue.is_set():
            return _disturbed(self._program, f"kept it from starting within {START_WAIT:g} s")
        words = b"".join(chunk.data for chunk in self._ready).decode(errors="replace").strip()
        remains = self._watch.lost().remains
        if remains is Remains.SANDBOX_GONE:
            return RuntimeFailure(ErrorCode.SANDBOX_NOT_RUNNING, f"{self._program}: the sandbox ended before it began")
        if remains is Remains.UNKNOWN:
            message = f"{self._program}: the Docker engine went away before it was known whether it began"
            return RuntimeFailure(ErrorCode.EXEC_LOST, message)
        return not_begun(self._program, words or "no reason given")

    def _receive(self) -> None:
        received = self._stream.read()
        if received is None:
            self._stream_ended()
            return
        stream, data = received
        if stream in self._open:  # after its end mark, a stream holds only what background children write
            for item in self._scanners[stream].feed(data):
                self._take(stream, item)

    def _take(self, stream: Stream, item: bytes | Mark) -> None:
        if stream not in self._open:
            return
        if isinstance(item, bytes):
            self._ready.append(Chunk(stream, item))
            return
        if item.kind != scripts.ENDED:
            return
        self._open.discard(stream)
        if not self._open:
            try:
                self._end(exit_of(whole_number(item.value, _LAST_CODE)))
            except ForgedAnswerError:
                self._forged = True
                self._end(None)

    def _stream_ended(self) -> None:
        for stream in self._open:
            if rest := self._scanners[stream].rest():
                self._ready.append(Chunk(stream, rest))
        # Closed on this side, nobody asks any more, and the engine may be gone.
        self._end(None if self._closed else self._watch.lost().exit)

    def _end(self, result: Exit | None) -> None:
        self._exit = result
        self._over.set()
        self._watch.stop()
        # A writer that is blocked, because the process did not read, goes on; a background child keeps its pipes.
        self._stream.close()


def _disturbed(program: str, what: str) -> RuntimeFailure:
    return RuntimeFailure(ErrorCode.EXEC_LOST, f"{program}: another process of its sandbox {what}")


@contextlib.contextmanager
def hung_up_after(seconds: float, stream: UpgradedStream) -> Iterator[threading.Event]:
    """Hang the stream up if the block takes longer; yields an event that is set then."""
    overdue = threading.Event()

    def hang_up() -> None:
        overdue.set()
        stream.hang_up()

    timer = threading.Timer(seconds, hang_up)
    timer.daemon = True
    timer.start()
    try:
        yield overdue
    finally:
        timer.cancel()


def not_begun(program: str, words: str) -> RuntimeFailure:
    """Return why the engine did not start a program."""
    failure = refusal(f"{program} could not be started", explained(words), ErrorCode.START_ERROR)
    failure.start_fault = StartFault.NOT_EXECUTABLE if failure.code is ErrorCode.START_ERROR else None
    return failure


def explained(words: str) -> str:
    """Return what kept a process from starting; shells and engines report fork(2)'s EAGAIN in words only."""
    return AT_PROCESS_BOUND if any(text in words for text in _NO_MORE_PROCESSES) else words


def exit_of(code: int) -> Exit:
    """Convert a shell's exit code."""
    number = code - 128
    return Exit(code, number if 0 < number <= _LAST_SIGNAL else None)


def start_failure(mark: Mark, program: str, directory: str) -> RuntimeFailure:
    """Return the failure that a mark reports of a program that could not be started."""
    problem = {
        scripts.NOT_FOUND: f"{program}: there is no such program in the sandbox",
        scripts.NOT_EXECUTABLE: f"{program}: it is not an executable file, or its user may not run it",
        scripts.NO_DIRECTORY: f"{program}: its working directory {directory} is not there, or is closed to its user",
    }.get(mark.kind, f"{program} could not be started ({mark.kind}{mark.value})")
    fault = StartFault.NOT_FOUND if mark.kind == scripts.NOT_FOUND else StartFault.NOT_EXECUTABLE
    return RuntimeFailure(ErrorCode.START_ERROR, problem, reason=DeathReason.START_ERROR, start_fault=fault)


RunInside = Callable[[str, tuple[str, ...]], None]
"""Runs a script of `scripts` with arguments inside the sandbox, as root with all capabilities, to its end."""


class InsideSignaller:
    """For gVisor, whose processes the host cannot see."""

    def __init__(self, run: RunInside) -> None:
        self._run = run

    def signal(self, group: int, number: int) -> None:
        """Send a signal to a process group."""
        self._run(scripts.SIGNAL, (str(group), str(number)))

    def kill_tree(self, leader: int) -> None:
        """Send SIGKILL to the leader's group, its session and every descendant."""
        self._run(scripts.KILL, (str(leader),))


@dataclass(frozen=True)
class _HostProcess:
    """A process as the host has it; ``started`` is when, in ticks of the host, which tells those of one pid apart."""

    pid: int
    parent: int
    group: int
    session: int
    inner_pid: int
    started: int

    def pinned(self) -> AbstractContextManager[int | None]:
        """Yield a pidfd of this very process; ``None`` where it has ended."""
        return pinned(self.pid, self._is_there)

    def send(self, number: int) -> None:
        """Send it a signal; nothing happens once it has ended, whoever has its pid by then."""
        with self.pinned() as handle:
            if handle is not None:
                send(handle, number)

    def _is_there(self) -> bool:
        try:
            return _read(Path("/proc") / str(self.pid)).started == self.started
        except OSError:  # it has just ended
            return False


class HostSignaller:
    """For runc.  It works even when the sandbox may start no further process."""

    def __init__(self, init_pid: int) -> None:
        """
        Args:
            init_pid: the container's first process, as the host numbers it.
        """
        self._init = init_pid

    def signal(self, group: int, number: int) -> None:
        """Send a signal to a process group."""
        leader = self._leader(list(self._all()), group)
        if leader is not None:
            with leader.pinned() as handle, contextlib.suppress(ProcessLookupError):
                if handle is not None:
                    os.killpg(leader.group, number)

    def kill_tree(self, leader: int) -> None:
        """Send SIGKILL to the leader's group, its session and every descendant."""
        found = self._leader(list(self._all()), leader)
        if found is None:
            return
        seen: dict[int, _HostProcess] = {}
        new = {found.pid: found}
        while new:
            # Stopped at once, so that nothing is forked behind the search.
            for process in new.values():
                process.send(signal.SIGSTOP)
            seen |= new
            new = {
                process.pid: process
                for process in self._all()
                if seen.keys() & {process.parent, process.group, process.session} and process.pid not in seen
            }
        for process in seen.values():
            process.send(signal.SIGKILL)

    def _leader(self, processes: list[_HostProcess], inner_pid: int) -> _HostProcess | None:
        return next((process for process in processes if process.inner_pid == inner_pid), None)

    def _all(self) -> Iterator[_HostProcess]:
        """Yield the container's processes: those in the PID namespace of its first."""
        try:
            namespace = (Path("/proc") / str(self._init) / "ns/pid").readlink()
        except OSError:  # the container has ended
            return
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):  # it may end while we look
                    if (entry / "ns/pid").readlink() == namespace:
                        yield _read(entry)


def _read(entry: Path) -> _HostProcess:
    fields = (entry / "stat").read_text().rpartition(")")[2].split()
    status = (entry / "status").read_text().partition("NSpid:")[2].split("\n", 1)[0]
    return _HostProcess(
        pid=int(entry.name),
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        inner_pid=int(status.split()[-1]),
        started=int(fields[19]),
    )
