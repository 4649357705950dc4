"""Reading the events of an exec session: in order, without a gap, over as many connections as it takes."""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Final, cast

from .errors import DeadlineExceededError, ExecEventHistoryLostError, SandboxApiError, TransportError
from .results import SandboxExecEvent, SandboxExecSession
from .transport import (
    BLOCK,
    ApiCall,
    Backoff,
    Deadline,
    Transport,
    closing_response,
    may_retry,
    segment,
    transport_errors,
)

ENDED: Final = frozenset({"exited", "failed"})
"""Statuses of a session whose process has ended."""
MAX_LINE: Final = 8 * 1024 * 1024
STREAM_STALL: Final = 60.0  # the service shows a sign of life at least every 20 s
REATTACH_SECONDS: Final = 60.0  # as long as a restart of the gateway may take
NO_DEADLINE: Final = 366 * 24 * 3600.0


class EventReader:
    """Iterates over the events of one session after a sequence number, until the session has ended.

    After a broken connection it attaches again behind the last event that arrived, and the service replays what came
    since.  It gives up when the service could not be reached for 60 s.

    Attributes:
        session: the last known state of the session.
        position: sequence number of the last event that was yielded.
    """

    def __init__(
        self,
        transport: Transport,
        session: SandboxExecSession,
        *,
        after: int = 0,
        first: Iterable[SandboxExecEvent] = (),
        deadline: Deadline | None = None,
    ) -> None:
        self._transport = transport
        self._first = first
        self._deadline = deadline or Deadline.after(NO_DEADLINE)
        self._id = session["id"]
        self.session = session
        self.position = after

    def __iter__(self) -> Iterator[SandboxExecEvent]:
        for event in self._first:
            if event["sequence"] > self.position:
                yield self._accept(event)
        contact = Deadline.after(REATTACH_SECONDS)
        failures = 0
        while not self._complete():
            before = self.position
            try:
                yield from self._attach()
                error: SandboxApiError = TransportError(f"exec session {self._id}: the stream ended early")
            except SandboxApiError as caught:
                error = caught
            if self._complete():
                return
            if self.position > before:
                contact, failures = Deadline.after(REATTACH_SECONDS), 0
            self._pause(error, failures, contact)
            failures += 1

    def _complete(self) -> bool:
        """Tell whether the session has ended and all of its events were yielded."""
        if self.session.get("status") not in ENDED:
            return False
        last = self.session.get("last_sequence")
        return not isinstance(last, int) or self.position >= last

    def _pause(self, error: SandboxApiError, failures: int, contact: Deadline) -> None:
        """Wait before the next connection, or raise ``error`` where another one is of no use."""
        if isinstance(error, ExecEventHistoryLostError) or not may_retry(error, safe=True):
            raise error
        if self._deadline.remaining() <= 0:
            raise DeadlineExceededError(f"exec session {self._id}: has not ended in time; its process goes on")
        delay = Backoff().delay(failures, error.retry_after_seconds, self._transport.chance())
        if delay >= contact.remaining():
            raise error
        self._transport.sleep(min(delay, self._deadline.remaining()))

    def _attach(self) -> Iterator[SandboxExecEvent]:
        """Yield the events of one connection."""
        call = ApiCall("GET", f"/v1/exec/{segment(self._id)}/stream", {"after": self.position}, safe=True)
        stall = min(STREAM_STALL, self._deadline.remaining())
        response = self._transport.send(call, deadline=self._deadline, stall=stall)
        splitter = LineSplitter(MAX_LINE)
        with closing_response(response):
            while data := self._read(call, response.read1):
                try:
                    for line in splitter.feed(data):
                        if (event := self._line(line)) is not None:
                            yield event
                except LineTooLongError as error:
                    raise SandboxApiError(f"exec session {self._id}: {error}") from error

    def _read(self, call: ApiCall, read: Callable[[int], bytes]) -> bytes:
        # Only the read is guarded: what the caller raises between two events is the caller's.
        with transport_errors(self._transport.name(call), self._deadline):
            return read(BLOCK)

    def _line(self, line: bytes) -> SandboxExecEvent | None:
        try:
            message = json.loads(line)
        except ValueError as error:
            raise TransportError(f"exec session {self._id}: the stream has a line that is not JSON") from error
        if isinstance(session := message.get("session"), dict):
            self.session = cast("SandboxExecSession", session)
        event = message.get("event")
        return self._accept(cast("SandboxExecEvent", event)) if isinstance(event, dict) else None

    def _accept(self, event: SandboxExecEvent) -> SandboxExecEvent:
        sequence = event.get("sequence")
        if not isinstance(sequence, int) or sequence != self.position + 1:
            received = sequence if isinstance(sequence, int) else -1
            raise ExecEventHistoryLostError(self._id, expected_sequence=self.position + 1, received_sequence=received)
        self.position = sequence
        return event


class LineTooLongError(ValueError):
    """A line is longer than the bound."""


class LineSplitter:
    """Cuts a stream of bytes into lines, and holds the beginning of a line until its end arrives.

    Args:
        max_line: most bytes of one line.
    """

    def __init__(self, max_line: int) -> None:
        self._max_line = max_line
        self._parts: list[bytes] = []
        self._held = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take the next bytes and yield the lines that they complete, without newline and without empty lines.

        Raises:
            LineTooLongError: a line is longer than the bound.
        """
        *ends, rest = data.split(b"\n")
        for end in ends:
            line = b"".join((*self._parts, end))
            self._parts, self._held = [], 0
            if line:
                yield line
        if rest:
            self._parts.append(rest)
            self._held += len(rest)
        if self._held > self._max_line:
            raise LineTooLongError(f"a line of the stream is longer than {self._max_line} bytes")
