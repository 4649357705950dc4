"""Reading the events of an exec session: in order, without a gap, over as many connections as it takes."""

import base64
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from .errors import DeadlineExceededError, ExecEventHistoryLostError, SandboxApiError, TransportError
from .lines import LineSplitter, LineTooLongError
from .retry import Backoff, Deadline, may_retry
from .transport import BLOCK, Call, Transport, closing_response, segment, translated

TERMINAL: Final = frozenset({"exited", "failed"})
MAX_LINE: Final = 8 * 1024 * 1024
STREAM_STALL: Final = 60.0  # the service shows a sign of life at least every 20 s
REATTACH_SECONDS: Final = 60.0  # as long as a restart of the gateway may take
NO_DEADLINE: Final = 366 * 24 * 3600.0

Event = dict[str, Any]


def event_bytes(event: Event) -> bytes:
    """The exact bytes of a ``stdout`` or ``stderr`` event.

    ``event["data"]`` is the same as text, with replacement characters where the bytes are not valid UTF-8.
    """
    exact = event.get("data_base64")
    if isinstance(exact, str):
        return base64.b64decode(exact)
    data = event.get("data")
    return data.encode() if isinstance(data, str) else b""


class EventReader:
    """Iterates over the events of one session after a sequence number, until the session has ended.

    A broken connection is made again from the last event that arrived; the service replays what came since.  It gives
    up when the service could not be reached for 60 s.

    Attributes:
        session: the session as last told.
        position: sequence number of the last event given out.
    """

    def __init__(
        self,
        transport: Transport,
        session: dict[str, Any],
        *,
        after: int = 0,
        first: Iterable[Event] = (),
        deadline: Deadline | None = None,
    ) -> None:
        self._transport = transport
        self._first = first
        self._deadline = deadline or Deadline.after(NO_DEADLINE)
        self._id = str(session["id"])
        self.session = session
        self.position = after

    def __iter__(self) -> Iterator[Event]:
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
        """Whether the session has ended and everything it said was given out."""
        if self.session.get("status") not in TERMINAL:
            return False
        last = self.session.get("last_sequence")
        return not isinstance(last, int) or self.position >= last

    def _pause(self, error: SandboxApiError, failures: int, contact: Deadline) -> None:
        """Waits before the next connection, or raises ``error`` where another one is of no use."""
        if isinstance(error, ExecEventHistoryLostError) or not may_retry(error, safe=True):
            raise error
        if self._deadline.remaining() <= 0:
            raise DeadlineExceededError(f"exec session {self._id}: has not ended in time; its process goes on")
        delay = Backoff().delay(failures, error.retry_after_seconds, self._transport.chance())
        if delay >= contact.remaining():
            raise error
        self._transport.sleep(min(delay, self._deadline.remaining()))

    def _attach(self) -> Iterator[Event]:
        """One connection's worth of events."""
        call = Call("GET", f"/v1/exec/{segment(self._id)}/stream", {"after": self.position}, safe=True)
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

    def _read(self, call: Call, read: Callable[[int], bytes]) -> bytes:
        # Only the read is guarded: what the caller raises between two events is the caller's.
        with translated(self._transport.name(call), self._deadline):
            return read(BLOCK)

    def _line(self, line: bytes) -> Event | None:
        try:
            message = json.loads(line)
        except ValueError as error:
            raise TransportError(f"exec session {self._id}: the stream has a line that is not JSON") from error
        if isinstance(session := message.get("session"), dict):
            self.session = session
        event = message.get("event")
        return self._accept(event) if isinstance(event, dict) else None

    def _accept(self, event: Event) -> Event:
        sequence = event.get("sequence")
        if not isinstance(sequence, int) or sequence != self.position + 1:
            received = sequence if isinstance(sequence, int) else -1
            raise ExecEventHistoryLostError(self._id, expected_sequence=self.position + 1, received_sequence=received)
        self.position = sequence
        return event
