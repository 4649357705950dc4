"""Processes inside a sandbox: their pipes on this side, and how they end."""

import array
import contextlib
import fcntl
import os
import select
import termios
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Final

from gateway.wire import limits
from gateway.wire.errors import ErrorCode
from node_agent.errors import RuntimeFailure
from node_agent.runtime.base import Chunk, ExecProcess, Exit, Stream


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
