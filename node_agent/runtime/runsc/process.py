"""Processes inside a sandbox: their pipes on this side, how they are signalled, and how they end.

`PipedProcess` is one process and its pipes.  A `Handle` is the engine's side: `SocketHandle` over gVisor's control
socket, `CommandHandle` over the command line.  `exec.py` decides what is started.
"""

import array
import contextlib
import fcntl
import os
import select
import termios
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Final

from gateway.wire import limits
from gateway.wire.errors import ErrorCode
from node_agent.errors import RuntimeFailure
from node_agent.host.process import CommandError, run, start
from node_agent.host.programs import BUSYBOX_INSIDE
from node_agent.runtime.base import Chunk, ExecProcess, Exit, Stream
from node_agent.runtime.runsc.control import Control, ControlError, ControlLostError, GuestProcess, Launch
from node_agent.runtime.runsc.runsc_cli import CALL_TIMEOUT, Runsc

Awake = Callable[[], AbstractContextManager[None]]
"""Surrounds questions to a sandbox that may be paused; see `pause.awake`."""

_SIGKILL: Final = 9
_KILL_ROUNDS: Final = 50  # a tree that forks faster than it can be killed ends at the sandbox's bound on processes


class Handle(ABC):
    """The engine's side of one process."""

    @abstractmethod
    def fileno(self) -> int:
        """Return a descriptor that is readable once `poll` may have news."""

    @abstractmethod
    def poll(self) -> Exit | None:
        """Return how the process ended, or ``None`` while it runs; never block.

        Raises:
            RuntimeFailure: ``EXEC_LOST``.
        """

    @abstractmethod
    def signal(self, number: int) -> None:
        """Send a signal to the process's group."""

    @abstractmethod
    def kill(self) -> None:
        """Send SIGKILL to the group and all descendants."""

    @abstractmethod
    def close(self) -> None:
        """Free what this side holds."""


def _roomy_pipe() -> tuple[int, int]:
    """Make a pipe that holds a megabyte where the kernel grants it: each switch between us and the sandbox costs."""
    ends = os.pipe2(os.O_CLOEXEC)
    with contextlib.suppress(PermissionError):  # over the user's share of pipe memory: the usual 64 KiB will do
        fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, limits.MIB)
    return ends


class Pipes:
    """Three descriptors for a process and the other ends for us, which never block."""

    def __init__(self, stdin: bool) -> None:
        self.stdout, stdout = _roomy_pipe()
        self.stderr, stderr = _roomy_pipe()
        self.stdin: int | None = None
        if stdin:
            guest, self.stdin = _roomy_pipe()
            os.set_blocking(self.stdin, False)
        else:
            guest = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self.guest = (guest, stdout, stderr)
        for descriptor in (self.stdout, self.stderr):
            os.set_blocking(descriptor, False)

    def close_guest(self) -> None:
        """Close the process's ends on this side, once it has them."""
        for descriptor in self.guest:
            os.close(descriptor)

    def close(self) -> None:
        """Close our ends."""
        for descriptor in (self.stdout, self.stderr):
            os.close(descriptor)
        if self.stdin is not None:
            os.close(self.stdin)


_WAKE: Final = (1).to_bytes(8, "little")  # an eventfd counts in 8 bytes


def _waiting_bytes(pipe: int) -> int:
    count = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0]


class PipedProcess(ExecProcess):
    """A process whose output comes through pipes and whose end comes through a `Handle`."""

    def __init__(self, handle: Handle, pipes: Pipes) -> None:
        self._handle = handle
        self._pipes = pipes
        self._open = {pipes.stdout: Stream.STDOUT, pipes.stderr: Stream.STDERR}
        self._left: dict[int, int] | None = None
        self._lock = threading.Lock()
        self._news = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)  # readable for ever: it ended, or was closed
        self._exit: Exit | None = None
        self._lost: RuntimeFailure | None = None
        self._closed = False
        self._users = 0
        self._freed = False

    # -- output --------------------------------------------------------------------------------------------------

    def read(self) -> Chunk | None:
        with self._using() as alive:
            return self._read() if alive else None

    def _read(self) -> Chunk | None:
        while not self._closed:
            if self._over():
                return self._rest()
            chunk = self._next_chunk()
            if chunk is not None:
                return chunk
            self._wait_for([(descriptor, select.POLLIN) for descriptor in self._open])
        return None

    def _next_chunk(self) -> Chunk | None:
        """Return output that is there now; the two streams take turns."""
        for descriptor in list(self._open):
            try:
                data = os.read(descriptor, limits.EXEC_CHUNK)
            except BlockingIOError:
                continue
            stream = self._open.pop(descriptor)
            if data:
                self._open[descriptor] = stream  # now last in the order
                return Chunk(stream, data)
        return None

    def _rest(self) -> Chunk | None:
        """Return what was in the pipes when the process had ended; a background child may write on for ever."""
        if self._left is None:
            self._left = {descriptor: _waiting_bytes(descriptor) for descriptor in self._open}
        for descriptor, count in self._left.items():
            if count:
                data = os.read(descriptor, min(count, limits.EXEC_CHUNK))
                self._left[descriptor] = count - len(data) if data else 0
                if data:
                    return Chunk(self._open[descriptor], data)
        return None

    # -- input ---------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        with self._using() as alive:
            while alive and view and not self._closed and not self._over():
                written = self._write_some(view)
                if written is None:
                    return
                view = view[written:]

    def _write_some(self, view: memoryview) -> int | None:
        """Write what goes, waiting once where nothing does.

        Returns:
            How many bytes went out; ``None`` when nobody will ever read them.
        """
        with self._lock:  # close_stdin must not close it under our hands
            stdin = self._pipes.stdin
            if stdin is None:
                return None
            try:
                return os.write(stdin, view)
            except BrokenPipeError:
                return None
            except BlockingIOError:
                pass
        self._wait_for([(stdin, select.POLLOUT)])
        return 0

    def close_stdin(self) -> None:
        with self._using() as alive, self._lock:
            if alive and self._pipes.stdin is not None:
                os.close(self._pipes.stdin)
                self._pipes.stdin = None

    # -- the end -------------------------------------------------------------------------------------------------

    def signal(self, number: int) -> None:
        with self._using() as alive:
            if alive and not self._over():
                self._handle.signal(number)

    def kill(self) -> None:
        with self._using() as alive:
            if alive and not self._over():
                self._handle.kill()

    def wait(self) -> Exit:
        with self._using() as alive:
            while alive and not self._over() and not self._closed:
                self._wait_for([])
        if self._exit is not None:
            return self._exit
        raise self._lost or RuntimeFailure(ErrorCode.EXEC_LOST, "the exec was closed before its process ended")

    def _over(self) -> bool:
        """Return whether the end is known, asking the handle without blocking."""
        with self._lock:
            if self._exit is None and self._lost is None:
                try:
                    self._exit = self._handle.poll()
                except RuntimeFailure as failure:
                    self._lost = failure
                if self._exit is not None or self._lost is not None:
                    os.write(self._news, _WAKE)
            return self._exit is not None or self._lost is not None

    def _wait_for(self, wanted: list[tuple[int, int]]) -> None:
        poller = select.poll()
        for descriptor, events in wanted:
            poller.register(descriptor, events)
        poller.register(self._news, select.POLLIN)
        poller.register(self._handle.fileno(), select.POLLIN)
        poller.poll()

    # -- this side -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            os.write(self._news, _WAKE)
        self._free_if_unused()

    @contextlib.contextmanager
    def _using(self) -> Iterator[bool]:
        """Keep descriptors open while a call uses them; yields ``False`` when they are gone."""
        with self._lock:
            alive = not self._closed
            self._users += 1
        try:
            yield alive
        finally:
            with self._lock:
                self._users -= 1
            self._free_if_unused()

    def _free_if_unused(self) -> None:
        with self._lock:
            if not self._closed or self._users or self._freed:
                return
            self._freed = True
        self._pipes.close()
        self._handle.close()
        os.close(self._news)


def lost(sandbox_id: str, cause: object) -> RuntimeFailure:
    """Return the failure of an exec whose end cannot be known any more."""
    return RuntimeFailure(ErrorCode.EXEC_LOST, f"the end of an exec in sandbox {sandbox_id} cannot be known: {cause}")


def exit_of(status: int) -> Exit:
    """Convert a wait status as wait(2) gives it."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return Exit(128 + number, number)
    return Exit(os.WEXITSTATUS(status))


def family(pid: int, processes: Iterable[GuestProcess]) -> set[int]:
    """Return ``pid``, its process group, and every descendant of those."""
    members = {process.pid for process in processes if pid in (process.pid, process.group)}
    while True:
        more = {process.pid for process in processes if process.parent in members} - members
        if not more:
            return members
        members |= more


class SocketHandle(Handle):
    """A process started through the control socket."""

    def __init__(
        self, sandbox_id: str, control: Control, launch: Launch, pipes: Pipes, awake: Awake = contextlib.nullcontext
    ) -> None:
        """Start the process.

        Args:
            sandbox_id: where it starts.
            control: socket of that sandbox.
            launch: what to start.
            pipes: its descriptors.
            awake: surrounds every later question to the sandbox, which may be paused by then.

        Raises:
            ControlError: it could not be started.
            ControlLostError: the sandbox is gone.
        """
        self._sandbox_id = sandbox_id
        self._control = control
        self._awake = awake
        self._pid, self._pending = control.execute(launch, pipes.guest)

    def fileno(self) -> int:
        return self._pending.fileno()

    def poll(self) -> Exit | None:
        try:
            status = self._pending.take()
        except (ControlError, ControlLostError) as error:
            raise lost(self._sandbox_id, error) from error
        return None if status is None else exit_of(status)

    def signal(self, number: int) -> None:
        # Lost: the sandbox ended, and with it the process.
        with contextlib.suppress(ControlLostError), self._awake():
            group = [process.pid for process in self._control.processes() if process.group == self._pid]
            self._send(group, number)

    def kill(self) -> None:
        known = {self._pid}
        with contextlib.suppress(ControlLostError), self._awake():
            for _ in range(_KILL_ROUNDS):
                processes = self._control.processes()
                # Orphans of this round lose their parent: whoever was seen once stays known.
                known = set().union(*(family(pid, processes) for pid in known))
                alive = known & {process.pid for process in processes}
                if not alive:
                    return
                self._send(alive, _SIGKILL)

    def _send(self, pids: Iterable[int], number: int) -> None:
        for pid in pids:
            with contextlib.suppress(ControlError):  # it ended meanwhile
                self._control.signal(pid, number)

    def close(self) -> None:
        self._pending.close()


class CommandHandle(Handle):
    """A process started by ``runsc exec``, where the control socket cannot be used."""

    def __init__(
        self, sandbox_id: str, runsc: Runsc, launch: Launch, pipes: Pipes, pid_file: str, awake: Awake
    ) -> None:
        self._sandbox_id = sandbox_id
        self._runsc = runsc
        self._pid_file = pid_file
        self._awake = awake
        stdin, stdout, stderr = pipes.guest
        command = runsc.exec_command(sandbox_id, _options(launch, pid_file), launch.argv)
        self._process = start(command, stdin=stdin, stdout=stdout, stderr=stderr)
        self._ended = os.pidfd_open(self._process.pid)

    def fileno(self) -> int:
        return self._ended

    def poll(self) -> Exit | None:
        code = self._process.poll()
        if code is None:
            return None
        # runsc ends with the code that a shell would give; its own death says nothing about the process.
        if code < 0:
            raise lost(self._sandbox_id, f"runsc exec was killed by signal {-code}")
        return Exit(code, code - 128 if code > 128 else None)

    def signal(self, number: int) -> None:
        self._busybox_kill(number)

    def kill(self) -> None:
        self._busybox_kill(_SIGKILL)

    def _busybox_kill(self, number: int) -> None:
        try:
            with open(self._pid_file, encoding="ascii") as file:  # noqa: PTH123 - one short read
                pid = int(file.read())
        except (OSError, ValueError):
            return  # not started yet, or ended
        options = ["--user=0:0", "--cap=CAP_KILL"]
        command = self._runsc.exec_command(
            self._sandbox_id, options, [BUSYBOX_INSIDE, "kill", f"-{number}", "--", f"-{pid}"]
        )
        with contextlib.suppress(CommandError), self._awake():  # nobody is left in the group
            run(command, timeout=CALL_TIMEOUT)

    def close(self) -> None:
        self._process.poll()
        os.close(self._ended)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._pid_file)  # noqa: PTH108 - as it was given to runsc


def _options(launch: Launch, pid_file: str) -> list[str]:
    options = [f"--user={launch.uid}:{launch.gid}", f"--cwd={launch.working_dir}", f"--internal-pid-file={pid_file}"]
    options += [f"--additional-gids={group}" for group in launch.groups]
    return options + [f"--env={entry}" for entry in launch.env]
