"""What one session keeps: its events on disk and its totals.  Blocking; safe from any thread."""

import logging
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gateway.wire.exec import Stream
from node_agent.exec.spool import HEADER_SIZE, Record, Spool
from node_agent.exec.utf8 import CharacterGate, cut
from node_agent.runtime.base import Chunk
from node_agent.runtime.base import Stream as Output

log = logging.getLogger(__name__)


class Budget(Protocol):
    """Room that all histories of the node share."""

    def take(self, size: int) -> bool:
        """Whether ``size`` more bytes may be stored; counts them if so."""


@dataclass(frozen=True)
class Totals:
    """Bytes that a process wrote, and whether all of them are stored."""

    stdout: int = 0
    stderr: int = 0
    truncated: bool = False


class History:
    """Feeds output into a spool: whole characters only, up to a bound, with one event where it bites."""

    def __init__(self, path: Path, max_output: int, budget: Budget) -> None:
        self._spool = Spool(path)
        self._max_output = max_output
        self._budget = budget
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
    def totals(self) -> Totals:
        """What the process wrote so far."""
        return Totals(self._seen[Output.STDOUT], self._seen[Output.STDERR], self._truncated)

    def restore_totals(self, totals: Totals) -> None:
        """Takes over the totals of an earlier life."""
        self._seen = {Output.STDOUT: totals.stdout, Output.STDERR: totals.stderr}
        self._truncated = totals.truncated

    def output(self, chunk: Chunk, time: float) -> None:
        """Stores output, or counts it where the bound is reached."""
        with self._lock:
            self._seen[chunk.stream] += len(chunk.data)
            self._store(chunk.stream, self._gates[chunk.stream].feed(chunk.data), time)

    def flush(self, time: float) -> None:
        """Stores what was held back for the rest of a character that never came."""
        with self._lock:
            for stream, gate in self._gates.items():
                self._store(stream, gate.flush(), time)

    def note(self, stream: Stream, text: str, time: float, exit_code: int = 0) -> None:
        """Stores an event that is not output; without room for it the history counts as truncated."""
        with self._lock:
            self._event(stream, text, time, exit_code)

    def read(self, after: int, limit: int, max_bytes: int) -> list[Record]:
        """See `Spool.read`."""
        return self._spool.read(after, limit, max_bytes)

    def close(self) -> None:
        """Ends writing; reading goes on."""
        self._spool.close()

    def _store(self, stream: Output, data: bytes, time: float) -> None:
        if not data or self._truncated:
            return
        room = self._max_output - sum(self._kept.values())
        fitting = cut(data, room)
        why = f"the session stores {self._max_output} bytes at most" if len(fitting) < len(data) else ""
        if fitting and not self._budget.take(len(fitting) + HEADER_SIZE):
            fitting, why = b"", "the node's spool is full"
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
        """A full disk costs events and never the process: the session's own state tells how it ended."""
        try:
            self._spool.append(stream, text.encode(), time, exit_code)
        except OSError as error:
            self._truncated = True
            log.error("an event %s of a session could not be stored: %s", stream, error)
