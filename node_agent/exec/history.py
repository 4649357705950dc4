"""What is kept of exec sessions: the events and totals of each, and the directory that bounds all of them.

Blocking; safe from any thread.
"""

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from gateway.wire import limits
from gateway.wire.exec import ExecSession, Stream
from gateway.wire.shares import FairPool, Holder, ShareOf
from gateway.wire.tenants import QUALIFIED_PATTERN
from node_agent.exec.spool import HEADER_SIZE, CharacterGate, Spool, SpoolRecord, cut
from node_agent.runtime.base import Chunk
from node_agent.runtime.base import Stream as Output

log = logging.getLogger(__name__)

KEPT_AT_LEAST: Final = 30.0
"""Seconds for which an ended session is kept even where its sandbox's share is used up: it is being read."""

SESSION_ID: Final = re.compile(
    r"exec-[0-9a-f]{32}\.(?P<generation>[1-9][0-9]{0,17})\.(?P<sandbox>" + QUALIFIED_PATTERN[1:-1] + ")"
)
"""The route is in the id: generation and sandbox.  It is also the name of the session's files."""


@dataclass(frozen=True)
class OutputTotals:
    """Bytes that a process wrote, and whether some of them are not stored."""

    stdout: int = 0
    stderr: int = 0
    truncated: bool = False


class History:
    """Feeds output into a spool: whole characters only, up to a bound, with one event where it bites.

    Args:
        path: the file of events.
        max_output: bytes of output that are stored; the rest is counted only.
        reserve: takes that many bytes from the room that all histories share; else returns whose share is used up.
    """

    def __init__(self, path: Path, max_output: int, reserve: Callable[[int], ShareOf | None]) -> None:
        self._spool = Spool(path)
        self._max_output = max_output
        self._reserve = reserve
        self._gates = {Output.STDOUT: CharacterGate(), Output.STDERR: CharacterGate()}
        self._seen = {Output.STDOUT: 0, Output.STDERR: 0}
        self._kept = {Output.STDOUT: 0, Output.STDERR: 0}
        self._truncated = False
        self._lock = threading.Lock()

    @property
    def last_sequence(self) -> int:
        """Sequence number of the newest event."""
        return self._spool.last_sequence

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return self._spool.size

    @property
    def totals(self) -> OutputTotals:
        """How much the process wrote so far."""
        return OutputTotals(self._seen[Output.STDOUT], self._seen[Output.STDERR], self._truncated)

    def restore_totals(self, totals: OutputTotals) -> None:
        """Take over the totals of an earlier life of the agent."""
        self._seen = {Output.STDOUT: totals.stdout, Output.STDERR: totals.stderr}
        self._truncated = totals.truncated

    def output(self, chunk: Chunk, time: float) -> None:
        """Store output, or only count it where the bound is reached."""
        with self._lock:
            self._seen[chunk.stream] += len(chunk.data)
            self._store(chunk.stream, self._gates[chunk.stream].feed(chunk.data), time)

    def flush(self, time: float) -> None:
        """Store what was held back for the rest of a character that never came."""
        with self._lock:
            for stream, gate in self._gates.items():
                self._store(stream, gate.flush(), time)

    def note(self, stream: Stream, text: str, time: float, exit_code: int = 0) -> None:
        """Store an event that is not output; without room for it the history counts as truncated."""
        with self._lock:
            self._event(stream, text, time, exit_code)

    def read(self, after: int, limit: int, max_bytes: int) -> list[SpoolRecord]:
        """Read events; see `Spool.read`."""
        return self._spool.read(after, limit, max_bytes)

    def close(self) -> None:
        """End writing; reading goes on."""
        self._spool.close()

    def _store(self, stream: Output, data: bytes, time: float) -> None:
        if not data or self._truncated:
            return
        room = self._max_output - sum(self._kept.values())
        fitting = cut(data, room)
        why = f"the session stores {self._max_output} bytes at most" if len(fitting) < len(data) else ""
        if fitting and (full := self._reserve(len(fitting) + HEADER_SIZE)) is not None:
            fitting, why = b"", f"the node has no more room for it: {full.value}"
        try:
            if fitting:
                self._spool.append(stream.value, fitting, time)
        except OSError as error:
            fitting, why = b"", f"the node could not store it: {error.strerror}"
        self._kept[stream] += len(fitting)
        if why:
            self._truncate(why, time)

    def _truncate(self, why: str, time: float) -> None:
        self._truncated = True
        kept = self._kept
        text = (
            f"output from here on is counted and not stored, because {why}; "
            f"stored: stdout {kept[Output.STDOUT]} bytes, stderr {kept[Output.STDERR]} bytes"
        )
        self._event("truncated", text, time)

    def _event(self, stream: Stream, text: str, time: float, exit_code: int = 0) -> None:
        """Store an event.  A full disk costs events and never the process: the session's state says how it ended."""
        try:
            self._spool.append(stream, text.encode(), time, exit_code)
        except OSError as error:
            self._truncated = True
            log.error("an event %s of a session could not be stored: %s", stream, error)


class HistoryStore:
    """The directory of all histories.  Safe from any thread.

    Its room is shared fairly.  Who has used up a share loses the oldest of its own ended sessions, and output only
    where there is none.

    Args:
        directory: where the files are.
        max_bytes: room for all of them.
    """

    def __init__(self, directory: Path, max_bytes: int) -> None:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._directory = directory
        self._pool = FairPool(max_bytes, least=max_bytes // 256)
        self._taken: dict[str, int] = {}
        self._ended: dict[str, float] = {}  # in the order of their ends
        self._lock = threading.Lock()
        self.on_evicted: Callable[[str], None] = lambda _session_id: None
        """Called from any thread with a session whose history was removed to make room."""

    def meta(self, session_id: str) -> Path:
        """Return the path of the session's state."""
        return self._directory / f"{session_id}.json"

    def open(self, session_id: str, max_output: int) -> History:
        """Open the history of a session, new or of an earlier life.

        Raises:
            OSError: the disk is full or broken.
        """
        return History(self._events(session_id), max_output, partial(self._reserve, session_id))

    def ended(self, session_id: str) -> None:
        """Note that nothing will be added to a history: from now on it may have to make room for others."""
        with self._lock:
            self._ended[session_id] = time.monotonic()

    def remove(self, session_id: str) -> None:
        """Delete a history; its room is free again."""
        self._events(session_id).unlink(missing_ok=True)
        self.meta(session_id).unlink(missing_ok=True)
        with self._lock:
            self._ended.pop(session_id, None)
            taken = self._taken.pop(session_id, 0)
        if taken:
            self._pool.give(_holder(session_id), taken)

    def _reserve(self, session_id: str, size: int) -> ShareOf | None:
        """Take room, if need be by removing what is old; return whose share is used up where that does not help."""
        holder = _holder(session_id)
        while (full := self._pool.take(holder, size)) is not None:
            old = self._oldest(holder, full)
            if old is None:
                return full
            log.info("the history of session %s is removed early: %s", old, full.value)
            self.remove(old)
            self.on_evicted(old)
        with self._lock:
            self._taken[session_id] = self._taken.get(session_id, 0) + size
        return None

    def _oldest(self, holder: Holder, full: ShareOf) -> str | None:
        """Return the session that ended first, and not just now, of those whose share is used up."""
        if full is ShareOf.POOL:
            holder = self._pool.largest() or holder
        until = time.monotonic() - KEPT_AT_LEAST
        with self._lock:
            for session_id, ended in self._ended.items():
                other = _holder(session_id)
                if ended <= until and (other == holder or (full is ShareOf.TENANT and other.tenant == holder.tenant)):
                    return session_id
        return None

    def former(self) -> Iterator[tuple[ExecSession, History]]:
        """Yield the sessions of earlier lives of the agent; remove files that belong to none."""
        known: set[Path] = set()
        for meta in sorted(self._directory.glob("exec-*.json")):
            try:
                session = ExecSession.model_validate_json(meta.read_bytes())
            except ValidationError:
                log.warning("removing %s: it is not a session", meta)
                continue
            events = self._events(session.id)
            if SESSION_ID.fullmatch(session.id) is None or self.meta(session.id) != meta or not events.exists():
                continue
            known |= {meta, events}
            history = self.open(session.id, limits.MAX_EXEC_OUTPUT)
            history.restore_totals(OutputTotals(session.stdout_bytes, session.stderr_bytes, session.truncated))
            if history.size:
                self._pool.take_over(_holder(session.id), history.size)
                self._taken[session.id] = history.size
            yield session, history
        for path in self._directory.iterdir():
            if path not in known:
                path.unlink()

    def _events(self, session_id: str) -> Path:
        return self._directory / f"{session_id}.events"


def _holder(session_id: str) -> Holder:
    match = SESSION_ID.fullmatch(session_id)
    return Holder.of(match["sandbox"] if match else session_id)
