"""Exec sessions and files of a sandbox.

A session is a list of events with sequence numbers from 1 without gaps, and it ends with an ``exit`` event.  An event
of ``stdout`` or ``stderr`` carries its bytes as text in ``data``.  Where they are not valid UTF-8, ``data`` holds them
with replacement characters and ``data_base64`` the exact bytes.  Characters are never split between two events.

Files are raw bytes; the path is the query parameter `PATH_PARAMETER`.
"""

import base64
from typing import Literal, Self

from pydantic import Field, model_validator

from gateway.wire import limits
from gateway.wire.base import Timestamp, WireAnswer, WireRequest
from gateway.wire.sandboxes import Argument, UserName, check_size
from gateway.wire.states import ExecStatus

Stream = Literal["status", "stdout", "stderr", "stdin_closed", "truncated", "error", "exit"]


class ExecRequest(WireRequest):
    """Starts a process in a running sandbox.  ``command`` is not passed through a shell."""

    command: list[Argument] = Field(min_length=1, max_length=65536)
    """Program and arguments; a shell must be named: ``["sh", "-c", "..."]``."""
    env: dict[str, Argument] = Field(default={}, max_length=limits.MAX_ENV_ENTRIES)
    """Added to the sandbox's own variables."""
    working_dir: str | None = Field(default=None, max_length=limits.MAX_PATH_BYTES)
    """Absolute, or relative to the sandbox's; ``null`` takes the sandbox's."""
    stdin: bool = False
    """Whether input will follow; otherwise the process reads an empty stdin."""
    tty: Literal[False] = False
    """Only ``false`` is supported."""
    timeout_seconds: float | None = Field(default=None, ge=limits.MIN_EXEC_TIMEOUT, le=limits.MAX_EXEC_TIMEOUT)
    """Seconds after which the whole process group is killed; the output so far stays readable."""
    user: UserName | None = None
    """``null`` takes the sandbox's user."""
    max_output_bytes: int = Field(default=limits.MAX_EXEC_OUTPUT, ge=0, le=limits.MAX_EXEC_OUTPUT)
    """Bytes; further output is read and counted but not stored, and a ``truncated`` event says so."""

    @model_validator(mode="after")
    def _command_fits(self) -> Self:
        if not self.command[0]:
            raise ValueError("command[0]: must name a program")
        check_size(self.command, self.env)
        return self


class ExecEvent(WireAnswer):
    """One thing that happened in a session."""

    sequence: int
    """From 1, without gaps."""
    stream: Stream
    """Kind of event."""
    data: str = ""
    """Output as text, or a sentence; empty for some kinds."""
    data_base64: str | None = None
    """The exact bytes of output that is not UTF-8; null otherwise."""
    exit_code: int | None = None
    """The session's exit code, on ``exit`` only; null on every other event."""
    created_at: Timestamp
    """By the node's clock."""

    @classmethod
    def of_bytes(cls, sequence: int, stream: Stream, data: bytes, created_at: Timestamp) -> "ExecEvent":
        """Return an output event for exactly these bytes."""
        try:
            return cls(sequence=sequence, stream=stream, data=data.decode(), created_at=created_at)
        except UnicodeDecodeError:
            return cls(
                sequence=sequence,
                stream=stream,
                data=data.decode(errors="replace"),
                data_base64=base64.b64encode(data).decode(),
                created_at=created_at,
            )

    def to_bytes(self) -> bytes:
        """Return the exact bytes of an output event."""
        return self.data.encode() if self.data_base64 is None else base64.b64decode(self.data_base64)


class ExecSession(WireAnswer):
    """State of a session."""

    id: str
    """``exec-<32 hex>.<generation>.<sandbox id>``, with the name of the tenant unless that is the default one."""
    sandbox_id: str
    """The sandbox that it runs in, by its client's own id."""
    generation: int
    """Generation of the sandbox."""
    command: list[str]
    """As requested."""
    working_dir: str | None = None
    """As requested; null for the sandbox's own."""
    status: ExecStatus
    """``running``, ``exited`` or ``failed``."""
    exit_code: int | None = None
    """As a shell reports it: 128 + n after signal n, 124 after a timeout; null while it runs."""
    signal: int | None = None
    """Signal that ended the process."""
    timed_out: bool = False
    """Whether ``timeout_seconds`` ran out."""
    stdin_open: bool = False
    """Whether it still accepts input."""
    stdout_bytes: int = 0
    """True total, even when storage was cut at ``max_output_bytes``."""
    stderr_bytes: int = 0
    """As ``stdout_bytes``."""
    truncated: bool = False
    """Whether some output was counted but not stored."""
    last_sequence: int = 0
    """Sequence number of the newest event; 0 before the first."""
    lost: bool = False
    """Whether the outcome is unknown, and the process may still run; ``exit_code`` is -1, which no process returns."""
    error: str | None = None
    """Why the session failed."""
    created_at: Timestamp
    """When it was requested."""
    updated_at: Timestamp
    """When the session last changed."""


class ExecEnvelope(WireAnswer):
    """Answer to start, get, stdin, close-stdin and signal."""

    session: ExecSession
    """Its current state."""


class ExecEvents(WireAnswer):
    """Events after the requested sequence number, in order, and the session at that moment.

    Also the answer to a start with ``?wait_seconds=``, so that a quick command costs one round trip.
    """

    session: ExecSession
    """Its state when the events were read."""
    events: list[ExecEvent]
    """At most ``limit``; empty if nothing came in time."""


class StreamLine(WireAnswer):
    """One line of the NDJSON stream: an event, or the session (last, and as a keep-alive while nothing happens)."""

    event: ExecEvent | None = None
    """The next event."""
    session: ExecSession | None = None
    """On the last line in its final status; before that a keep-alive."""


class StdinRequest(WireRequest):
    """Input for the process: text, or exact bytes as base64."""

    data: str = ""
    """Text."""
    data_base64: str | None = None
    """Exact bytes, instead of ``data``."""
    eof: bool = False
    """Whether to close the input after this."""

    @model_validator(mode="after")
    def _decodes(self) -> Self:
        if self.data and self.data_base64 is not None:
            raise ValueError("data_base64: send data or data_base64, not both")
        self.to_bytes()
        return self

    def to_bytes(self) -> bytes:
        """Return the input as bytes."""
        if self.data_base64 is None:
            return self.data.encode()
        return base64.b64decode(self.data_base64, validate=True)


class SignalRequest(WireRequest):
    """A signal for the process group of a session."""

    signal: int = Field(default=15, ge=1, le=64)
    """Number on Linux, such as 2 (INT), 9 (KILL) or 15 (TERM)."""


PATH_PARAMETER = "path"


class PutFileAnswer(WireAnswer):
    """A file was written completely, atomically replacing an existing one."""

    ok: bool = True
    """Always true."""
    sandbox_id: str
    """The sandbox that it was written to, by its client's own id."""
    path: str
    """As requested."""
    size: int
    """Bytes."""
