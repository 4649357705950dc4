"""Exec sessions on the wire.

A session is a list of events with sequence numbers from 1 without gaps, and it ends with an ``exit`` event.  An event
of ``stdout`` or ``stderr`` carries its bytes as text in ``data``.  Where they are not valid UTF-8, ``data`` holds them
with replacement characters and ``data_base64`` the exact bytes.  Characters are never split between two events.
"""

import base64
from typing import Literal, Self

from pydantic import Field, model_validator

from gateway.wire import limits
from gateway.wire.base import Answer, Request, Timestamp
from gateway.wire.sandboxes import Argument, UserName, check_size
from gateway.wire.states import ExecStatus

Stream = Literal["status", "stdout", "stderr", "stdin_closed", "truncated", "error", "exit"]


class ExecRequest(Request):
    """Starts a process in a running sandbox.  No shell is put around ``command``."""

    command: list[Argument] = Field(min_length=1, max_length=65536)
    """Program and arguments; for a shell, name one: ``["sh", "-c", "..."]``."""
    env: dict[str, Argument] = Field(default={}, max_length=limits.MAX_ENV_ENTRIES)
    """Added to the sandbox's own."""
    working_dir: str | None = Field(default=None, max_length=limits.MAX_PATH_BYTES)
    """Absolute, or relative to the sandbox's; ``null`` takes the sandbox's."""
    stdin: bool = False
    """Whether input will follow.  Without it the process reads an empty stdin."""
    tty: Literal[False] = False
    """Only ``false`` is served."""
    timeout_seconds: float | None = Field(default=None, gt=0, le=limits.MAX_EXEC_TIMEOUT)
    """Kills the whole process group when it runs out; the output so far stays readable."""
    user: UserName | None = None
    """``null`` takes the sandbox's."""
    max_output_bytes: int = Field(default=limits.MAX_EXEC_OUTPUT, ge=0, le=limits.MAX_EXEC_OUTPUT)
    """Output beyond this is read and counted, not stored; a ``truncated`` event says so."""

    @model_validator(mode="after")
    def _command_fits(self) -> Self:
        if not self.command[0]:
            raise ValueError("command[0]: must name a program")
        check_size(self.command, self.env)
        return self


class ExecEvent(Answer):
    """One thing that happened in a session."""

    sequence: int
    """From 1, without gaps."""
    stream: Stream
    """What kind of event."""
    data: str = ""
    """Output as text, or a sentence; empty for some kinds."""
    data_base64: str | None = None
    """The exact bytes of output that is not UTF-8; null otherwise."""
    exit_code: int | None = None
    """The session's, on ``exit`` only; null on every other event."""
    created_at: Timestamp
    """By the node's clock."""

    @classmethod
    def of_bytes(cls, sequence: int, stream: Stream, data: bytes, created_at: Timestamp) -> "ExecEvent":
        """An output event for exactly these bytes."""
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
        """The exact bytes of an output event."""
        return self.data.encode() if self.data_base64 is None else base64.b64decode(self.data_base64)


class ExecSession(Answer):
    """Where a session stands."""

    id: str
    """``exec-<32 hex>.<generation>.<sandbox id>``."""
    sandbox_id: str
    """Where it runs."""
    generation: int
    """Of the sandbox."""
    command: list[str]
    """As asked for."""
    working_dir: str | None = None
    """As asked for; null for the sandbox's own."""
    status: ExecStatus
    """``running``, ``exited`` or ``failed``."""
    exit_code: int | None = None
    """As a shell reports it: 128 + n after signal n; 124 after a timeout; null while it runs."""
    signal: int | None = None
    """The signal that ended the process."""
    timed_out: bool = False
    """Whether ``timeout_seconds`` ran out."""
    stdin_open: bool = False
    """Whether it still takes input."""
    stdout_bytes: int = 0
    """True totals, also when storage was cut at ``max_output_bytes``."""
    stderr_bytes: int = 0
    """As ``stdout_bytes``."""
    truncated: bool = False
    """Whether some output was counted and not stored."""
    last_sequence: int = 0
    """Number of the newest event; 0 before the first."""
    error: str | None = None
    """Why a session failed, when it did not end by itself."""
    created_at: Timestamp
    """When it was asked for."""
    updated_at: Timestamp
    """When the session last changed."""


class ExecEnvelope(Answer):
    """Answer to start, get, stdin, close-stdin and signal."""

    session: ExecSession
    """As it stands now."""


class ExecEvents(Answer):
    """Events after the asked sequence number, in order, and the session as it stood then.

    It is also the answer to a start with ``?wait_seconds=``: a quick command costs one round trip.
    """

    session: ExecSession
    """As it stood when the events were read."""
    events: list[ExecEvent]
    """At most ``limit``; empty where nothing came in time."""


class StreamLine(Answer):
    """One line of the NDJSON stream: an event, or the session (last, and as a sign of life while nothing happens)."""

    event: ExecEvent | None = None
    """The next event."""
    session: ExecSession | None = None
    """On the last line in its final status; before that a sign of life."""


class StdinRequest(Request):
    """Input for the process: text, or exact bytes as base64."""

    data: str = ""
    """Text."""
    data_base64: str | None = None
    """Exact bytes, instead of ``data``."""
    eof: bool = False
    """Whether to end the input after this."""

    @model_validator(mode="after")
    def _decodes(self) -> Self:
        if self.data and self.data_base64 is not None:
            raise ValueError("data_base64: send data or data_base64, not both")
        self.to_bytes()
        return self

    def to_bytes(self) -> bytes:
        """The input as bytes."""
        if self.data_base64 is None:
            return self.data.encode()
        return base64.b64decode(self.data_base64, validate=True)


class SignalRequest(Request):
    """A signal for the process group of a session."""

    signal: int = Field(default=15, ge=1, le=64)
    """Its number on Linux, such as 2 (INT), 9 (KILL) or 15 (TERM)."""


PATH_PARAMETER = "path"


class PutFileAnswer(Answer):
    """A file was written whole, and replaced what was there in one step."""

    ok: bool = True
    """Always true."""
    sandbox_id: str
    """Where it was written."""
    path: str
    """As asked for."""
    size: int
    """Bytes."""
