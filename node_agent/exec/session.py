"""One exec session: its state, its history, how it ended, and the bell that wakes whoever waits for a change.

Threads change a session; the event loop waits for changes.  The two meet in `Bell` only.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from gateway.wire.errors import ErrorCode
from gateway.wire.exec import ExecEvents, ExecSession, Stream
from gateway.wire.states import EXEC_TRANSITIONS, DeathReason, ExecStatus, next_state
from gateway.wire.tenants import own_words, tenant_of
from node_agent.errors import RuntimeFailure, StartFault
from node_agent.exec.history import History
from node_agent.host.disk import write_atomically
from node_agent.runtime.base import Chunk, Death, ExecProcess, Exit

log = logging.getLogger(__name__)

EXIT_TIMEOUT = 124  # as timeout(1)
EXIT_NOT_EXECUTABLE = 126  # as a POSIX shell
EXIT_NOT_FOUND = 127  # as a POSIX shell
EXIT_KILLED = 137  # 128 + SIGKILL
EXIT_UNKNOWN = -1  # clients in the field take a missing exit code for success

_KILLERS = frozenset(DeathReason) - {DeathReason.NODE_LOST, DeathReason.START_ERROR, DeathReason.IMAGE_ERROR}

MAX_EARLY_SIGNALS = 64  # kept for a process that has yet to begin


@dataclass(frozen=True)
class ExecOutcome:
    """The end of a session: its status, its exit code, and the sentence that explains it.

    ``error`` is empty when the process ended by itself.
    """

    status: ExecStatus
    exit_code: int
    signal: int | None = None
    timed_out: bool = False
    error: str = ""

    @property
    def unknown(self) -> bool:
        """Whether nobody knows how the process ended."""
        return self.exit_code == EXIT_UNKNOWN

    @classmethod
    def ended(cls, exit_: Exit) -> Self:
        """Return the outcome of a process that ended by itself or by somebody's signal."""
        return cls(ExecStatus.EXITED, exit_.code, exit_.signal)

    @classmethod
    def expired(cls, seconds: float, *, note: str = "") -> Self:
        """Return the outcome of a process that was killed after ``seconds``, its timeout."""
        sentence = f"killed: it ran longer than its timeout of {seconds:.12g} s{note}"
        return cls(ExecStatus.FAILED, EXIT_TIMEOUT, timed_out=True, error=sentence)

    @classmethod
    def refused(cls, failure: RuntimeFailure) -> Self:
        """Return the outcome of a process that could not be started."""
        code = EXIT_UNKNOWN
        if failure.code is ErrorCode.START_ERROR:
            code = EXIT_NOT_FOUND if failure.start_fault is StartFault.NOT_FOUND else EXIT_NOT_EXECUTABLE
        return cls(ExecStatus.FAILED, code, error=failure.message)

    @classmethod
    def lost(cls, message: str, death: Death | None) -> Self:
        """Return the outcome of a process whose end was not seen; the sandbox's death explains it where there is one.

        A sandbox that ends takes its processes along by SIGKILL, so their exit code is 137; without a death nothing is
        known and the code is -1.
        """
        if death is None:
            return cls(ExecStatus.FAILED, EXIT_UNKNOWN, error=message)
        sentence = f"the sandbox ended ({death.reason})" + (f": {death.detail}" if death.detail else "")
        if death.reason in _KILLERS:
            return cls(ExecStatus.FAILED, EXIT_KILLED, signal=9, error=sentence)
        return cls(ExecStatus.FAILED, EXIT_UNKNOWN, error=sentence)

    @classmethod
    def forgotten(cls) -> Self:
        """Return the outcome of a session of an earlier life of the agent, whose process nobody follows any more.

        Nothing was ended: processes belong to the sandbox, which outlives the agent.
        """
        sentence = (
            "the node agent restarted and no longer follows this process: it may still be running, and what it writes"
            " now is not kept; end it from another exec (kill), or restart or delete the sandbox"
        )
        return cls(ExecStatus.FAILED, EXIT_UNKNOWN, error=sentence)


class Bell:
    """Wakes coroutines from any thread.  Many rings before the loop gets to run are one."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._event = asyncio.Event()
        self._pending = False

    def ring(self) -> None:
        """Wake everybody who waits.  Called from any thread, after the change is in place."""
        if self._pending:
            return
        self._pending = True
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            # The loop is closed: the agent is shutting down and nobody waits any more.
            log.debug("nobody is left to wake")

    def next(self) -> asyncio.Event:
        """Return the event that the next ring sets.  Take it before looking at the state, so that no ring is missed."""
        return self._event

    def _wake(self) -> None:
        self._pending = False
        event, self._event = self._event, asyncio.Event()
        event.set()


class Session:
    """A process in a sandbox, from its order to the end of its retention."""

    def __init__(self, first: ExecSession, history: History, meta: Path, bell: Bell) -> None:
        self._session = first
        self._history = history
        self._meta = meta
        self._bell = bell
        self._lock = threading.Lock()
        self._process: ExecProcess | None = None
        self._early: list[int] = []
        self._expired = False

    @property
    def id(self) -> str:
        """The session's id."""
        return self._session.id

    @property
    def sandbox_id(self) -> str:
        """The sandbox in which it runs, by its qualified id; the session itself shows the client's own."""
        return self.id.split(".", 2)[2]

    @property
    def generation(self) -> int:
        """The incarnation of the sandbox."""
        return self._session.generation

    @property
    def running(self) -> bool:
        """Whether the end is still to come."""
        return self._session.status is ExecStatus.RUNNING

    @property
    def last_sequence(self) -> int:
        """Sequence number of the newest event; never waits for the disk, as `snapshot` may."""
        return self._history.last_sequence

    @property
    def process(self) -> ExecProcess | None:
        """The engine's process; ``None`` before it started and after it ended."""
        return self._process

    @property
    def expired(self) -> bool:
        """Whether its timeout ran out while it ran."""
        return self._expired

    @property
    def stored_bytes(self) -> int:
        """What its history takes on disk."""
        return self._history.size

    @property
    def ended_at(self) -> datetime:
        """When it last changed."""
        return self._session.updated_at

    def ring(self) -> None:
        """Wake everybody in `wait_until`.  Called from any thread."""
        self._bell.ring()

    async def wait_until(self, ready: Callable[[], bool], seconds: float) -> bool:
        """Wait until ``ready()`` holds, checked again at every change; return ``False`` when the time ran out first."""
        try:
            async with asyncio.timeout(seconds):
                while True:
                    change = self._bell.next()
                    if ready():
                        return True
                    await change.wait()
        except TimeoutError:
            return ready()

    def snapshot(self) -> ExecSession:
        """Return where the session stands now."""
        with self._lock:
            totals = self._history.totals
            return self._session.model_copy(
                update={
                    "stdout_bytes": totals.stdout,
                    "stderr_bytes": totals.stderr,
                    "truncated": totals.truncated,
                    "last_sequence": self._history.last_sequence,
                }
            )

    def events(self, after: int, limit: int, max_bytes: int) -> ExecEvents:
        """Return events after sequence number ``after`` and the session as it stood before they were read.

        Blocks on the disk.  The session is read first: a final session therefore has all its events on disk.
        """
        session = self.snapshot()
        records = self._history.read(after, limit, max_bytes)
        return ExecEvents(session=session, events=[record.event() for record in records])

    def to_signal(self, number: int) -> ExecProcess | None:
        """Return the process that is to get signal ``number`` now.

        ``None`` after the end, and before the process began: then the signal is kept until `begun`.
        """
        with self._lock:
            if self._process is None and self.running and len(self._early) < MAX_EARLY_SIGNALS:
                self._early.append(number)
            return self._process

    # -- called by the session's own thread ---------------------------------------------------------------------------

    def save(self) -> None:
        """Write the session beside its history, so that a later life of the agent still knows it."""
        write_atomically(self._meta, self.snapshot().model_dump_json().encode())

    def begun(self, process: ExecProcess) -> list[int] | None:
        """Take the process, which runs from now on.

        Returns:
            Signals that were asked for before it did, to be sent now; ``None`` when the session was ended meanwhile
            and nobody wants the process any more.
        """
        with self._lock:
            if not self.running:
                return None
            self._process = process
            early, self._early = self._early, []
            self._history.note("status", "started", _now())
        self.ring()
        return early

    def output(self, chunk: Chunk) -> None:
        """Store what the process wrote; ignored after the end."""
        with self._lock:
            if self.running:
                self._history.output(chunk, _now())
        self.ring()

    def note(self, stream: Stream, text: str = "") -> None:
        """Store an event that is not output; ignored after the end."""
        with self._lock:
            if self.running:
                self._history.note(stream, text, _now())
        self.ring()

    def stdin_closed(self) -> None:
        """Note that no more input will come."""
        with self._lock:
            if not self._session.stdin_open:
                return
            self._session = self._session.model_copy(update={"stdin_open": False})
            if self.running:
                self._history.note("stdin_closed", "", _now())
        self.ring()

    def expire(self) -> bool:
        """Note that the timeout ran out; return ``False`` when the session had ended before."""
        with self._lock:
            self._expired = self.running
            return self._expired

    def finish(self, outcome: ExecOutcome) -> bool:
        """End the session; the first outcome counts, later ones change nothing and return ``False``."""
        # Nobody rewrites it further on: streams pass the gateway as they are.
        outcome = replace(outcome, error=own_words(tenant_of(self.sandbox_id), outcome.error))
        with self._lock:
            if not self.running:
                return False
            try:
                self._write_end(outcome)
            except OSError as error:
                # Without room for its last events the session still ends; its status says how.
                log.error("session %s: its end could not be stored: %s", self.id, error)
            self._session = self._session.model_copy(
                update={
                    "status": next_state(EXEC_TRANSITIONS, self._session.status, outcome.status),
                    "exit_code": outcome.exit_code,
                    "signal": outcome.signal,
                    "timed_out": outcome.timed_out,
                    "lost": outcome.unknown,
                    "stdin_open": False,
                    "error": outcome.error or None,
                    "updated_at": datetime.now(UTC),
                }
            )
            self._process = None
            self._history.close()
        self.ring()
        return True

    def _write_end(self, outcome: ExecOutcome) -> None:
        self._history.flush(_now())
        if outcome.error:
            self._history.note("error", outcome.error, _now())
        self._history.note("exit", "", _now(), outcome.exit_code)


def _now() -> float:
    return datetime.now(UTC).timestamp()
