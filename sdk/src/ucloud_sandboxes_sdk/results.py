"""What a finished command left, and other values that calls answer."""

import base64
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Self

from .events import Event, event_bytes


@dataclass(frozen=True)
class SandboxExecResult:
    """A command that has ended, or was killed by its timeout.

    Attributes:
        session_id: id of the exec session.
        status: ``exited`` when the process ended by itself, whatever its exit code; ``failed`` when it could not be
            started, was killed by its timeout, or its end could not be seen.
        exit_code: as a shell reports it: 128 + n after signal n, 124 after a timeout; ``None`` when unknown.
        events: everything that happened, in order.
        session: the session as the service last told it.
    """

    session_id: str
    status: str
    exit_code: int | None
    events: tuple[Event, ...]
    session: dict[str, Any]

    @classmethod
    def of(cls, session: dict[str, Any], events: tuple[Event, ...]) -> Self:
        """The result that a session and its events make."""
        code = session.get("exit_code")
        return cls(
            session_id=str(session["id"]),
            status=str(session.get("status")),
            exit_code=code if isinstance(code, int) else None,
            events=events,
            session=session,
        )

    @cached_property
    def stdout_bytes(self) -> bytes:
        """Standard output, byte for byte."""
        return self._bytes("stdout")

    @cached_property
    def stderr_bytes(self) -> bytes:
        """Standard error, byte for byte."""
        return self._bytes("stderr")

    @cached_property
    def stdout(self) -> str:
        """Standard output as UTF-8 text, with replacement characters where it is not."""
        return self.stdout_bytes.decode(errors="replace")

    @cached_property
    def stderr(self) -> str:
        """Standard error as UTF-8 text, with replacement characters where it is not."""
        return self.stderr_bytes.decode(errors="replace")

    @property
    def success(self) -> bool:
        """The process ended by itself with exit code 0."""
        return self.status == "exited" and self.exit_code == 0

    @property
    def timed_out(self) -> bool:
        """The process group was killed because ``timeout_seconds`` ran out; the output so far is here."""
        return self.session.get("timed_out") is True

    @property
    def truncated(self) -> bool:
        """Output went over ``max_output_bytes`` and was not kept; ``session`` has the true totals."""
        return self.session.get("truncated") is True

    @property
    def error(self) -> str | None:
        """Why the session failed, when it did not end by itself."""
        value = self.session.get("error")
        return value if isinstance(value, str) else None

    def _bytes(self, stream: Literal["stdout", "stderr"]) -> bytes:
        return b"".join(event_bytes(event) for event in self.events if event.get("stream") == stream)


@dataclass(frozen=True)
class SandboxLogChunk:
    """A piece of the output of a sandbox's first process.

    Attributes:
        stream: ``stdout`` or ``stderr``.
        offset: where in that stream ``data`` begins, in bytes.
        next_offset: where to read on.
        data: the exact bytes.
        eof: caught up with what there is; more may come while the process lives.
    """

    stream: str
    offset: int
    next_offset: int
    data: bytes
    eof: bool

    @classmethod
    def from_payload(cls, payload: dict[str, Any]) -> Self:
        """The chunk that the service answered."""
        return cls(
            stream=payload["stream"],
            offset=payload["offset"],
            next_offset=payload["next_offset"],
            data=base64.b64decode(payload["data"]),
            eof=payload["eof"],
        )


@dataclass(frozen=True)
class SandboxUsage:
    """What a running sandbox uses now: MiB of memory and disk, seconds of processor time, processes."""

    memory_mb: float
    cpu_seconds: float
    disk_mb: float
    pids: int

    @classmethod
    def from_payload(cls, payload: dict[str, Any]) -> Self:
        """The figures that the service answered."""
        return cls(**{name: payload[name] for name in cls.__dataclass_fields__})
