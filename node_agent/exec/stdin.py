"""Input on its way to a process: a bounded buffer, and the thread that empties it."""

import threading
from collections import deque
from typing import Final

from gateway.wire import limits
from node_agent.errors import RuntimeFailure
from node_agent.exec.session import Session
from node_agent.runtime.base import ExecProcess

NODE_BOUND: Final = 16 * limits.MAX_STDIN_BUFFER


class StdinRoom:
    """Memory that the input of all sessions of the node may take together."""

    def __init__(self, bound: int = NODE_BOUND) -> None:
        self._free = bound
        self._lock = threading.Lock()

    def take(self, size: int) -> bool:
        """Whether there was room for ``size`` more bytes; counts them if so."""
        with self._lock:
            if size > self._free:
                return False
            self._free -= size
            return True

    def give(self, size: int) -> None:
        """``size`` bytes are gone again."""
        with self._lock:
            self._free += size


class StdinBuffer:
    """Takes input from requests and hands it to the writing thread, in order.

    One piece larger than the bound is taken when the buffer is empty, so that every legal request can pass.
    """

    def __init__(self, room: StdinRoom, bound: int = limits.MAX_STDIN_BUFFER) -> None:
        self._room = room
        self._bound = bound
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._closed = False
        self._condition = threading.Condition()

    @property
    def closed(self) -> bool:
        """Whether the end of input was told."""
        return self._closed

    def offer(self, data: bytes) -> bool:
        """Whether the input was taken whole; ``False`` takes nothing: wait for the session's next news."""
        with self._condition:
            if self._size and self._size + len(data) > self._bound:
                return False
            if data and not self._room.take(len(data)):
                return False
            if data:
                self._pieces.append(data)
                self._size += len(data)
                self._condition.notify()
            return True

    def close(self) -> None:
        """Ends input after what was taken.  Idempotent."""
        with self._condition:
            self._closed = True
            self._condition.notify()

    def discard(self) -> None:
        """The process is gone: drops everything, and lets the writing thread end."""
        with self._condition:
            self._pieces.clear()
            self._room.give(self._size)
            self._size = 0
            self._closed = True
            self._condition.notify()

    def take(self) -> bytes | None:
        """The next piece; blocks while there is none; ``None`` at the end."""
        with self._condition:
            while not self._pieces and not self._closed:
                self._condition.wait()
            return self._pieces[0] if self._pieces else None

    def taken(self) -> None:
        """The piece that `take` gave was written: makes its room free."""
        with self._condition:
            if self._pieces:
                size = len(self._pieces.popleft())
                self._size -= size
                self._room.give(size)


def feed(session: Session, process: ExecProcess, buffer: StdinBuffer) -> None:
    """Body of the writing thread: until the end of input or of the process."""
    try:
        while (piece := buffer.take()) is not None:
            process.write(piece)
            buffer.taken()
            session.ring()
        process.close_stdin()
    except RuntimeFailure as failure:
        session.note("error", f"input could not be delivered: {failure.message}")
        buffer.discard()
    session.stdin_closed()
