"""All exec sessions of the node: started, found, ended, forgotten.

Lives on the event loop and hands blocking work to threads.
"""

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from gateway.wire import limits
from gateway.wire.errors import ErrorCode
from gateway.wire.exec import ExecSession
from gateway.wire.nodes import ExecOrder
from gateway.wire.shares import FairPace, FairPool, Holder
from gateway.wire.states import ExecStatus
from gateway.wire.tenants import own_id
from node_agent.errors import NodeError, bad_field
from node_agent.exec.history import SESSION_ID, HistoryStore
from node_agent.exec.runner import FindDeath, Runner, StdinBuffer, StdinRoom
from node_agent.exec.session import Bell, ExecOutcome, Session
from node_agent.runtime.base import Death, ExecCommand, ExecProcess

log = logging.getLogger(__name__)

Begin = Callable[[ExecCommand], AbstractContextManager[ExecProcess]]

KILL_GRACE = 10.0  # a process that is still there this long after its SIGKILL is given up
DELETED_RETENTION = 10.0  # readers that wait while the sandbox is deleted still see how it ended


@dataclass(frozen=True)
class SessionBounds:
    """How many sessions run at once, and how long ended ones can be read (seconds)."""

    running: int = limits.MAX_EXECS_PER_NODE
    retention: float = limits.EXEC_RETENTION


class Sessions:
    """Starts, finds and forgets sessions."""

    def __init__(
        self, store: HistoryStore, executor: Executor, find_death: FindDeath, bounds: SessionBounds = SessionBounds()
    ) -> None:
        self._store = store
        self._executor = executor
        self._find_death = find_death
        self._bounds = bounds
        self._sessions: dict[str, Session] = {}
        self._runners: dict[str, Runner] = {}
        self._running = FairPool(bounds.running)
        self._pace = FairPace(limits.EXEC_OUTPUT_RATE, limits.EXEC_OUTPUT_RATE)
        self._stdin_room = StdinRoom()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.closing = False

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take over the sessions of earlier lives; those that had not ended end here."""
        self._loop = loop
        self._store.on_evicted = self._evicted
        for former, history in self._store.former():
            session = Session(former, history, self._store.meta(former.id), Bell(loop))
            self._sessions[session.id] = session
            if session.finish(ExecOutcome.forgotten()):
                session.save()
            else:
                history.close()
            self._store.ended(session.id)
            age = (datetime.now(UTC) - session.ended_at).total_seconds()
            self._forget_later(session, max(0.0, self._bounds.retention - max(0.0, age)))

    def close(self) -> None:
        """Wake everybody who waits: the agent goes down.  Processes stay as they are."""
        self.closing = True
        for session in self._sessions.values():
            session.ring()

    def live(self) -> Counter[str]:
        """Return how many sessions run, by sandbox.  May be called from any thread."""
        return Counter(runner.session.sandbox_id for runner in list(self._runners.values()))

    def get(self, session_id: str) -> Session:
        """Return the session.

        Raises:
            NodeError: ``EXEC_NOT_FOUND``.
        """
        session = self._sessions.get(session_id)
        if session is None:
            raise NodeError(
                ErrorCode.EXEC_NOT_FOUND,
                f"there is no exec session {session_id} on this node: it never existed, its sandbox is deleted, "
                f"or it ended more than {self._bounds.retention:g} s ago",
            )
        return session

    def find(self, sandbox_id: str, order: ExecOrder) -> Session | None:
        """Return the session that an order asks for, if it is there.

        Raises:
            NodeError: ``INVALID_REQUEST`` for an id of another sandbox.
        """
        _check_id(sandbox_id, order)
        return self._sessions.get(order.session_id)

    def start(self, begin: Begin, sandbox_id: str, order: ExecOrder) -> Session:
        """Start a session that is not there yet.

        Args:
            begin: starts its process, and keeps its sandbox awake inside the block; called once, on a thread of the
                session.
            sandbox_id: where.
            order: what to start.

        Raises:
            NodeError: ``EXEC_LIMIT``, ``DISK_FULL``.
        """
        holder = Holder.of(sandbox_id)
        if (full := self._running.take(holder)) is not None:
            raise NodeError(
                ErrorCode.EXEC_LIMIT,
                f"{self._running.held(holder)} processes run in sandbox {sandbox_id} and {self._running.total} on its"
                f" node, which takes {self._bounds.running}: {full.value}; try again when one has ended",
            )
        try:
            session = self._new(sandbox_id, order)
        except BaseException:
            self._running.give(holder)
            raise
        request = order.exec
        command = ExecCommand(tuple(request.command), request.env, request.working_dir, request.user, request.stdin)
        stdin = StdinBuffer(self._stdin_room) if request.stdin else None
        runner = Runner(
            session,
            partial(begin, command),
            stdin,
            request.timeout_seconds,
            partial(self._pause, holder),
        )
        self._sessions[session.id] = session
        self._runners[session.id] = runner
        threading.Thread(
            target=runner.run, args=(self._find_death, self._done), name=f"exec-{session.id}", daemon=True
        ).start()
        if request.timeout_seconds is not None:
            self._running_loop.call_later(request.timeout_seconds, self._expire, runner, request.timeout_seconds)
        return session

    async def write(self, session_id: str, data: bytes, *, eof: bool) -> Session:
        """Take input whole, waiting for room; input for a process that has ended is dropped.

        Raises:
            NodeError: ``STDIN_CLOSED``; ``BUSY`` when the process did not read for `limits.MAX_LONG_POLL` seconds, with
                nothing taken.
        """
        session = self.get(session_id)
        runner = self._runners.get(session_id)
        if runner is None or not session.running:
            return session
        stdin = runner.stdin
        if stdin is None or (stdin.closed and data):
            raise NodeError(
                ErrorCode.STDIN_CLOSED, f"stdin of session {session_id} is closed; start it with stdin: true"
            )
        if not await session.wait_until(lambda: stdin.offer(data) or not session.running, limits.MAX_LONG_POLL):
            raise NodeError(
                ErrorCode.BUSY,
                f"the process of session {session_id} does not read its stdin, or the node holds"
                " too much input; nothing was taken, try again",
            )
        if eof:
            stdin.close()
        return session

    async def close_stdin(self, session_id: str) -> Session:
        """End input.  Idempotent, also after the process's end and where stdin never was open."""
        session = self.get(session_id)
        runner = self._runners.get(session_id)
        if runner is not None and runner.stdin is not None:
            runner.stdin.close()
        return session

    async def signal(self, session_id: str, number: int) -> Session:
        """Send a signal to the process group, once it has begun; does nothing after the end.

        Raises:
            RuntimeFailure: the engine could not deliver it.
        """
        session = self.get(session_id)
        process = session.to_signal(number)
        if process is not None:
            await self._running_loop.run_in_executor(self._executor, process.signal, number)
        return session

    def sandbox_gone(self, sandbox_id: str, generation: int, *, death: Death, deleted: bool) -> None:
        """End the sessions of a sandbox that ended, after a moment in which they can see it for themselves."""
        for session in [
            s for s in self._sessions.values() if s.sandbox_id == sandbox_id and s.generation <= generation
        ]:
            runner = self._runners.get(session.id)
            if runner is not None:
                self._running_loop.call_later(
                    0.0 if deleted else KILL_GRACE, self._give_up, runner, ExecOutcome.lost("the sandbox ended", death)
                )
            if deleted:
                self._forget_later(session, DELETED_RETENTION)

    # -- inside -------------------------------------------------------------------------------------------------------

    @property
    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise RuntimeError("sessions are used before open()")
        return self._loop

    def _pause(self, holder: Holder, size: int) -> float:
        return self._pace.pause(holder, size, time.monotonic())

    def _new(self, sandbox_id: str, order: ExecOrder) -> Session:
        now = datetime.now(UTC)
        request = order.exec
        first = ExecSession(
            id=order.session_id,
            sandbox_id=own_id(sandbox_id),
            generation=order.generation,
            command=request.command,
            working_dir=request.working_dir,
            status=ExecStatus.RUNNING,
            stdin_open=request.stdin,
            created_at=now,
            updated_at=now,
        )
        history = None
        try:
            history = self._store.open(order.session_id, request.max_output_bytes)
            session = Session(first, history, self._store.meta(order.session_id), Bell(self._running_loop))
            session.save()
        except OSError as error:
            if history is not None:
                history.close()
            self._store.remove(order.session_id)
            raise NodeError(
                ErrorCode.DISK_FULL,
                f"the node has no room for the session's output: {error.strerror}",
            ) from error
        return session

    def _done(self, runner: Runner) -> None:
        """Hand the session's end to the loop; called by the session's thread."""
        try:
            self._running_loop.call_soon_threadsafe(self._ended, runner)
        except RuntimeError:
            log.debug("the loop is closed; session %s ends with the agent", runner.session.id)

    def _ended(self, runner: Runner) -> None:
        if self._runners.pop(runner.session.id, None) is not None:
            self._running.give(Holder.of(runner.session.sandbox_id))
            self._store.ended(runner.session.id)
            self._forget_later(runner.session, self._bounds.retention)

    def _forget_later(self, session: Session, seconds: float) -> None:
        self._running_loop.call_later(seconds, self._forget, session)

    def _forget(self, session: Session) -> None:
        if self._sessions.pop(session.id, None) is not None:
            self._background(self._store.remove, session.id)

    def _evicted(self, session_id: str) -> None:
        """Forget a session whose history is gone already; called from any thread."""
        try:
            self._running_loop.call_soon_threadsafe(self._sessions.pop, session_id, None)
        except RuntimeError:
            log.debug("the loop is closed; session %s is forgotten with the agent", session_id)

    def _expire(self, runner: Runner, seconds: float) -> None:
        if not runner.session.expire():
            return
        if (process := runner.session.process) is not None:
            self._background(process.kill)
        note = f"; it was still there {KILL_GRACE:g} s after its SIGKILL and was given up"
        self._running_loop.call_later(KILL_GRACE, self._give_up, runner, ExecOutcome.expired(seconds, note=note))

    def _background(self, call: Callable[..., None], *arguments: object) -> None:
        try:
            future = self._executor.submit(call, *arguments)
        except RuntimeError:
            log.debug("the agent is shutting down; work on a session is left to its next start")
            return
        future.add_done_callback(_log_failure)

    def _give_up(self, runner: Runner, result: ExecOutcome) -> None:
        if runner.session.running:
            self._background(runner.end, result)
        self._ended(runner)


def _log_failure(future: "Future[None]") -> None:
    if (error := future.exception()) is not None:
        log.error("work on an exec session failed: %s", error)


def _check_id(sandbox_id: str, order: ExecOrder) -> None:
    match = SESSION_ID.fullmatch(order.session_id)
    if match is None or match["sandbox"] != sandbox_id or int(match["generation"]) != order.generation:
        raise bad_field("session_id", f"must be exec-<32 hex>.{order.generation}.{sandbox_id}")
