"""The thread of one session: start, read, wait, end."""

import logging
import signal
import threading
from collections.abc import Callable

from gateway.wire.errors import ErrorCode
from node_agent.errors import RuntimeFailure
from node_agent.exec import outcome
from node_agent.exec.outcome import Outcome
from node_agent.exec.session import Session
from node_agent.exec.stdin import StdinBuffer, feed
from node_agent.runtime.base import Death, ExecProcess

log = logging.getLogger(__name__)

Start = Callable[[], ExecProcess]
FindDeath = Callable[[str, int, float], Death | None]
"""How the sandbox of this id and generation died; waits so many seconds for it, then ``None``: it seems to live."""

DEATH_WAIT = 2.0  # the death of a sandbox and the loss of its processes are seen by two threads
KILL_WAIT = 0.2  # a SIGKILL from inside is as likely; an exec that ends by one is held up this long


class Runner:
    """Runs one session to its end, on a thread of its own."""

    def __init__(self, session: Session, start: Start, stdin: StdinBuffer | None, timeout: float | None) -> None:
        self.session = session
        self.stdin = stdin
        self.timeout = timeout
        self._start = start

    def run(self, find_death: FindDeath, done: Callable[["Runner"], None]) -> None:
        """The thread's body.  ``done`` is called once, after the session has ended."""
        try:
            result = self._result(find_death)
        except Exception as error:
            log.exception("session %s: the agent failed while serving it", self.session.id)
            result = outcome.lost(f"the node agent failed while serving this session: {error}", None)
        self.end(result)
        done(self)

    def end(self, result: Outcome) -> None:
        """Ends the session, if it has not ended before, and lets its threads go."""
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

    def _result(self, find_death: FindDeath) -> Outcome:
        session = self.session
        try:
            process = self._start()
        except RuntimeFailure as failure:
            wait = 0.0 if failure.code is ErrorCode.START_ERROR else DEATH_WAIT
            death = find_death(session.sandbox_id, session.generation, wait)
            return outcome.lost(failure.message, death) if death else outcome.refused(failure)
        early = session.begun(process)
        if early is None:
            process.kill()
            process.close()
            return outcome.lost("ended before its process began", None)
        self._catch_up(process, early)
        if self.stdin is not None:
            threading.Thread(
                target=feed, args=(session, process, self.stdin), name=f"stdin-{session.id}", daemon=True
            ).start()
        return self._follow(process, find_death)

    def _catch_up(self, process: ExecProcess, early: list[int]) -> None:
        """Does what was asked for while the engine still started the process: no signal and no timeout is lost."""
        try:
            for number in early:
                process.signal(number)
            if self.session.expired:
                process.kill()
        except RuntimeFailure as failure:
            log.error("session %s: a signal to its new process failed: %s", self.session.id, failure.message)

    def _follow(self, process: ExecProcess, find_death: FindDeath) -> Outcome:
        session = self.session
        while (chunk := process.read()) is not None:
            session.output(chunk)
        try:
            exit_ = process.wait()
        except RuntimeFailure as failure:
            if session.expired and self.timeout is not None:
                return outcome.timed_out(self.timeout)
            return outcome.lost(failure.message, find_death(session.sandbox_id, session.generation, DEATH_WAIT))
        if session.expired and self.timeout is not None:
            return outcome.timed_out(self.timeout)
        if exit_.signal == signal.SIGKILL:
            death = find_death(session.sandbox_id, session.generation, KILL_WAIT)
            if death is not None:
                return outcome.lost("", death)
        return outcome.ended(exit_)
