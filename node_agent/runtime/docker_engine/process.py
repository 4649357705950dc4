"""A process inside a container."""

import threading
from collections import deque
from dataclasses import dataclass
from typing import Final, Protocol

from gateway.wire.errors import ErrorCode
from gateway.wire.states import DeathReason
from node_agent.errors import RuntimeFailure, StartFault
from node_agent.runtime.base import Chunk, ExecProcess, Exit, Stream
from node_agent.runtime.docker_engine import marks
from node_agent.runtime.docker_engine.marks import Mark, Scanner
from node_agent.runtime.docker_engine.stream import Hijacked

_LAST_SIGNAL: Final = 64


class Signaller(Protocol):
    """Reaches processes of one container."""

    def signal(self, group: int, number: int) -> None:
        """Sends a signal to a process group; does nothing when it is gone."""

    def kill_tree(self, leader: int) -> None:
        """SIGKILL to the leader's group, its session and every descendant."""


@dataclass(frozen=True)
class Lost:
    """What is known of an exec whose stream ended without an end mark.

    Attributes:
        sandbox_alive: whether the sandbox runs on.
        exit: how the shell around the process ended, which may be how the process did; ``None`` when nobody knows.
    """

    sandbox_alive: bool
    exit: Exit | None = None


class Watch(Protocol):
    """Looks after one exec from outside."""

    def lost(self) -> Lost:
        """What became of the exec whose stream broke off."""

    def stop(self) -> None:
        """Nothing is to be watched any more.  Idempotent."""


class DockerExec(ExecProcess):
    """One exec.  It has started, and its process's id inside the sandbox is known, when the constructor returns."""

    def __init__(
        self,
        stream: Hijacked,
        prefix: str,
        program: str,
        directory: str,
        signaller: Signaller,
        watch: Watch,
    ) -> None:
        """Waits for the start.

        Args:
            watch: ends the stream when the sandbox dies, and knows what became of an exec without an end mark.

        Raises:
            RuntimeFailure: ``START_ERROR``; ``SANDBOX_NOT_RUNNING`` when the sandbox ended before the start.
        """
        self._stream = stream
        self._scanners = {Stream.STDOUT: Scanner(prefix), Stream.STDERR: Scanner(prefix)}
        self._program = program
        self._directory = directory
        self._signaller = signaller
        self._watch = watch
        self._ready: deque[Chunk] = deque()
        self._open = set(self._scanners)
        self._exit: Exit | None = None
        self._over = threading.Event()
        self._closed = False
        try:
            self._leader = self._await_start()
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
        """How the process ended.  Somebody has to read meanwhile: the end comes behind the output."""
        self._over.wait()
        if self._exit is None:
            raise RuntimeFailure(ErrorCode.EXEC_LOST, f"{self._program}: its sandbox or the Docker engine went away")
        return self._exit

    def close(self) -> None:
        self._closed = True
        self._watch.stop()
        self._stream.close()
        self._over.set()

    def _await_start(self) -> int:
        leader: int | None = None
        while leader is None:
            received = self._stream.read()
            if received is None:
                raise self._not_started()
            stream, data = received
            for item in self._scanners[stream].feed(data):
                if isinstance(item, Mark) and item.kind == marks.STARTED:
                    leader = int(item.value)
                elif isinstance(item, Mark) and item.kind != marks.ENDED:
                    raise start_failure(item, self._program, self._directory)
                else:  # the two streams keep no order between them: what is on stderr may be ahead
                    self._take(stream, item)
        return leader

    def _not_started(self) -> RuntimeFailure:
        said = b"".join(chunk.data for chunk in self._ready).decode(errors="replace").strip()
        if not self._watch.lost().sandbox_alive:
            return RuntimeFailure(ErrorCode.SANDBOX_NOT_RUNNING, f"{self._program}: the sandbox ended before it began")
        return RuntimeFailure(
            ErrorCode.START_ERROR,
            f"{self._program} could not be started: {said or 'no reason given'}",
            start_fault=StartFault.NOT_EXECUTABLE,
        )

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
        if item.kind != marks.ENDED:
            return
        self._open.discard(stream)
        if not self._open:
            self._end(exit_of(int(item.value)))

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


def exit_of(code: int) -> Exit:
    """A shell's exit code as the port tells it."""
    number = code - 128
    return Exit(code, number if 0 < number <= _LAST_SIGNAL else None)


def start_failure(mark: Mark, program: str, directory: str) -> RuntimeFailure:
    """What a mark says of a program that could not be started."""
    problem = {
        marks.NOT_FOUND: f"{program}: there is no such program in the sandbox",
        marks.NOT_EXECUTABLE: f"{program}: it is not an executable file, or its user may not run it",
        marks.NO_DIRECTORY: f"{program}: its working directory {directory} is not there, or its user may not enter it",
    }.get(mark.kind, f"{program} could not be started ({mark.kind}{mark.value})")
    fault = StartFault.NOT_FOUND if mark.kind == marks.NOT_FOUND else StartFault.NOT_EXECUTABLE
    return RuntimeFailure(ErrorCode.START_ERROR, problem, reason=DeathReason.START_ERROR, start_fault=fault)
