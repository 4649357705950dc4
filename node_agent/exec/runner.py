"""The two threads of one session: one starts its process and reads it to its end, one feeds its input."""

import contextlib
import logging
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from gateway.wire import limits
from gateway.wire.errors import ErrorCode
from node_agent.errors import RuntimeFailure
from node_agent.exec.session import ExecOutcome, Session
from node_agent.runtime.base import Death, ExecProcess

log = logging.getLogger(__name__)

Start = Callable[[], AbstractContextManager[ExecProcess]]
"""Starts the process; inside the block its sandbox is not paused."""
Pace = Callable[[int], float]
"""Counts bytes of output; returns the seconds for which their reader has to pause."""
FindDeath = Callable[[str, int, float], Death | None]
"""Returns how this sandbox (id, generation) died; waits so many seconds for it, then ``None``: it seems alive."""

DEATH_WAIT = 2.0  # the death of a sandbox and the loss of its processes are seen by two threads
KILL_WAIT = 0.2  # a SIGKILL from inside is as likely; an exec that ends by one is held up this long


class Runner:
    """Runs one session to its end, on a thread of its own."""

    def __init__(
        self,
        session: Session,
        start: Start,
        stdin: "StdinBuffer | None",
        timeout: float | None,
        pace: Pace = lambda _size: 0.0,
    ) -> None:
        self.session = session
        self.stdin = stdin
        self.timeout = timeout
        self._start = start
        self._pace = pace

    def run(self, find_death: FindDeath, done: Callable[["Runner"], None]) -> None:
        """Run the session to its end: the body of its thread.

        Args:
            find_death: asked where the process ended without saying how.
            done: called once, after the session has ended.
        """
        try:
            result = self._result(find_death)
        except Exception as error:
            log.exception("session %s: the agent failed while serving it", self.session.id)
            result = ExecOutcome.lost(f"the node agent failed while serving this session: {error}", None)
        self.end(result)
        done(self)

    def end(self, result: ExecOutcome) -> None:
        """End the session, if it has not ended before, and let its threads go."""
        process = self.session.process
        first = self.session.finish(result)
        if self.stdin is not None:
            self.stdin.discard()
        if process is not None:
            process.close()
        if first:
            self._keep()
        self.session.ring()

    def _keep(self) -> None:
        try:
            self.session.save()
        except OSError as error:
            log.error("session %s: could not be kept for a restart: %s", self.session.id, error)

    def _result(self, find_death: FindDeath) -> ExecOutcome:
        session = self.session
        with contextlib.ExitStack() as awake:
            try:
                process = awake.enter_context(self._start())
            except RuntimeFailure as failure:
                wait = 0.0 if failure.code is ErrorCode.START_ERROR else DEATH_WAIT
                death = find_death(session.sandbox_id, session.generation, wait)
                return ExecOutcome.lost(failure.message, death) if death else ExecOutcome.refused(failure)
            early = session.begun(process)
            if early is None:
                process.kill()
                process.close()
                return ExecOutcome.lost("ended before its process began", None)
            self._catch_up(process, early)
        if self.stdin is not None:
            threading.Thread(
                target=feed, args=(session, process, self.stdin), name=f"stdin-{session.id}", daemon=True
            ).start()
        return self._follow(process, find_death)

    def _catch_up(self, process: ExecProcess, early: list[int]) -> None:
        """Do what was asked for while the engine still started the process: no signal and no timeout is lost."""
        try:
            for number in early:
                process.signal(number)
            if self.session.expired:
                process.kill()
        except RuntimeFailure as failure:
            log.error("session %s: a signal to its new process failed: %s", self.session.id, failure.message)

    def _follow(self, process: ExecProcess, find_death: FindDeath) -> ExecOutcome:
        session = self.session
        while (chunk := process.read()) is not None:
            session.output(chunk)
            if (pause := self._pace(len(chunk.data))) > 0:
                time.sleep(pause)
        try:
            exit_ = process.wait()
        except RuntimeFailure as failure:
            if session.expired and self.timeout is not None:
                return ExecOutcome.expired(self.timeout)
            return ExecOutcome.lost(failure.message, find_death(session.sandbox_id, session.generation, DEATH_WAIT))
        if session.expired and self.timeout is not None:
            return ExecOutcome.expired(self.timeout)
        if exit_.signal == signal.SIGKILL:
            death = find_death(session.sandbox_id, session.generation, KILL_WAIT)
            if death is not None:
                return ExecOutcome.lost("", death)
        return ExecOutcome.ended(exit_)


# -- input ------------------------------------------------------------------------------------------------------------

NODE_BOUND: Final = 16 * limits.MAX_STDIN_BUFFER


class StdinRoom:
    """Memory that the input of all sessions of the node shares."""

    def __init__(self, bound: int = NODE_BOUND) -> None:
        self._free = bound
        self._lock = threading.Lock()

    def take(self, size: int) -> bool:
        """Take ``size`` bytes of room; return ``False`` where they are not free."""
        with self._lock:
            if size > self._free:
                return False
            self._free -= size
            return True

    def give(self, size: int) -> None:
        """Give ``size`` bytes of room back."""
        with self._lock:
            self._free += size


class StdinBuffer:
    """Takes input from requests and hands it to the feeding thread, in order.

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
        """Whether no more input will come."""
        return self._closed

    def offer(self, data: bytes) -> bool:
        """Take the input whole, or nothing and return ``False``: then wait for the session's next change."""
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
        """End input after what was taken.  Idempotent."""
        with self._condition:
            self._closed = True
            self._condition.notify()

    def discard(self) -> None:
        """Drop everything and let the feeding thread end: the process is gone."""
        with self._condition:
            self._pieces.clear()
            self._room.give(self._size)
            self._size = 0
            self._closed = True
            self._condition.notify()

    def take(self) -> bytes | None:
        """Return the next piece, which stays until `taken`; block while there is none; ``None`` at the end."""
        with self._condition:
            while not self._pieces and not self._closed:
                self._condition.wait()
            return self._pieces[0] if self._pieces else None

    def taken(self) -> None:
        """Free the room of the piece that `take` returned: it was written."""
        with self._condition:
            if self._pieces:
                size = len(self._pieces.popleft())
                self._size -= size
                self._room.give(size)


def feed(session: Session, process: ExecProcess, buffer: StdinBuffer) -> None:
    """Feed the process until the end of input or its own end: the body of the feeding thread."""
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
