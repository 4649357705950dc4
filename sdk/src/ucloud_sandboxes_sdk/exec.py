"""Starting processes in a sandbox, feeding them and following them."""

import base64
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypedDict

from .errors import SandboxApiError, StdinClosedError
from .events import TERMINAL, Event, EventReader
from .results import SandboxExecResult
from .retry import Deadline
from .specs import argv
from .transport import Call, Transport, segment

if TYPE_CHECKING:
    from .client import SandboxClient

STDIN_BLOCK: Final = 1024 * 1024
FIRST_WAIT: Final = 10.0  # seconds in which a command that ends costs one round trip
KILL_GRACE: Final = 60.0  # what the service may take to kill and to answer, after the command's own timeout
SIGKILL: Final = 9

Input = str | bytes | BinaryIO


class ExecOptions(TypedDict, total=False):
    """How a process is started.  What is left out is as the sandbox has it."""

    env: Mapping[str, str] | None
    """Added to the sandbox's own."""
    working_dir: str | None
    """Absolute, or relative to the sandbox's."""
    timeout_seconds: float | None
    """The service kills the whole process group after this long; the output so far stays readable."""
    user: str | None
    """``uid[:gid]`` or a name known in the image."""
    max_output_bytes: int | None
    """Output beyond this is counted but not kept (default and most: 1 GiB)."""
    tty: bool
    """Kept for older programs; only ``False`` is served."""


def start(
    transport: Transport,
    sandbox_id: str,
    command: Sequence[str] | str,
    *,
    stdin: bool,
    wait_seconds: float | None,
    timeout_seconds: float,
    options: ExecOptions,
) -> dict[str, Any]:
    """One start, sent once: the answer has ``session``, and ``events`` where ``wait_seconds`` was given."""
    chosen = {key: value for key, value in options.items() if value is not None}
    payload = {"command": argv(command), "stdin": stdin, "tty": False, **chosen}
    call = Call.with_json("POST", f"/v1/sandboxes/{segment(sandbox_id)}/exec", payload)
    if wait_seconds is not None:
        call = Call(call.method, call.path, {"wait_seconds": wait_seconds}, call.body, call.headers)
    answer = transport.json(call, timeout_seconds=timeout_seconds + (wait_seconds or 0.0))
    session = answer.get("session")
    if not isinstance(session, dict) or not isinstance(session.get("id"), str):
        raise SandboxApiError("the service answered an exec without a session id", body=answer)
    return answer


def run(
    client: "SandboxClient", sandbox_id: str, command: Sequence[str] | str, options: ExecOptions
) -> SandboxExecResult:
    """A command without input, to its end: one round trip if it is quick."""
    limit = options.get("timeout_seconds")
    deadline = None if limit is None else Deadline.after(limit + KILL_GRACE)
    answer = start(
        client.transport,
        sandbox_id,
        command,
        stdin=False,
        wait_seconds=FIRST_WAIT,
        timeout_seconds=client.timeout_seconds,
        options=options,
    )
    return _collect(client.transport, answer["session"], answer.get("events", ()), deadline)


def run_with_input(
    client: "SandboxClient", sandbox_id: str, command: Sequence[str] | str, data: Input, options: ExecOptions
) -> SandboxExecResult:
    """A command with all of its input, to its end."""
    limit = options.get("timeout_seconds")
    deadline = None if limit is None else Deadline.after(limit + KILL_GRACE)
    handle = client.start_exec(sandbox_id, command, stdin=True, **options)
    try:
        # The service keeps the output meanwhile, so that writing everything first cannot block for ever.
        for block, last in _blocks(data):
            handle.write_stdin(block, eof=last)
            if handle.session.get("status") in TERMINAL:
                break  # the process did not want all of it, as `yes | head` shows; its result tells how it went
    except StdinClosedError:
        pass  # the same, seen a moment later
    return _collect(client.transport, handle.session, (), deadline)


class ExecHandle:
    """A started process.  It goes on when this object, or the program that holds it, goes away.

    Attributes:
        session_id: its id; `SandboxClient.get_exec` makes a handle from it again.
        sandbox_id: the sandbox that it runs in.
        session: the session as last told by the service.
        last_sequence: sequence number of the last event that `events` gave out.
    """

    def __init__(
        self,
        client: "SandboxClient",
        session_id: str,
        sandbox_id: str,
        session: dict[str, Any] | None = None,
        last_sequence: int = 0,
        *,
        first_events: Sequence[Event] = (),
    ) -> None:
        self.client = client
        self.session_id = session_id
        self.sandbox_id = sandbox_id
        self.session = session or {"id": session_id}
        self.last_sequence = last_sequence
        self._first = first_events

    def __repr__(self) -> str:
        return f"ExecHandle({self.session_id!r}, status={self.session.get('status')!r})"

    def get(self) -> dict[str, Any]:
        """Asks the service how the session stands; see also `session`."""
        return self._told(self.client.get_exec_session(self.session_id))

    def events(self, *, wait_seconds: float | None = None, limit: int | None = None) -> Generator[Event, None, None]:
        """The events from `last_sequence` on, each as it happens, until the process has ended.

        An event is a dict with ``sequence``, ``stream`` (``stdout``, ``stderr``, ``status``, ``exit`` …), ``data`` as
        text and ``created_at``; `event_bytes` gives the exact bytes.  Broken connections are made again without a
        gap.  The two parameters are kept for older programs: events are streamed, not polled for.

        Raises:
            ExecEventHistoryLostError: the service left out events.
            ExecLostError: the outcome of the process cannot be known any more.
            TransportError: the service could not be reached for 60 s.
        """
        reader = EventReader(self.client.transport, self.session, after=self.last_sequence, first=self._first)
        for event in reader:
            self.last_sequence = reader.position
            self.session = reader.session
            yield event
        self.session = reader.session

    def wait(
        self,
        *,
        timeout_seconds: float | None = None,
        poll_wait_seconds: float | None = None,
        settle_seconds: float | None = None,
    ) -> SandboxExecResult:
        """Waits for the end and returns everything from the first event on, also what `events` gave out before.

        ``timeout_seconds`` bounds this wait alone and leaves the process running; to have it killed, start it with
        ``timeout_seconds``.  The other two parameters are kept for older programs.

        Raises:
            TimeoutError: it has not ended in time.
            SandboxApiError: as for `events`.
        """
        deadline = None if timeout_seconds is None else Deadline.after(timeout_seconds)
        result = _collect(self.client.transport, self.session, self._first, deadline)
        self.session = result.session
        return result

    def write_stdin(self, data: str | bytes, *, eof: bool = False) -> dict[str, Any]:
        """Sends input, in pieces of at most 1 MiB; ``eof`` closes the input after it.  Never sent twice.

        Raises:
            StdinClosedError: the process ended, or its input was closed.
            TransportError: it is unknown how much of the input arrived.
        """
        for block, last in _blocks(data):
            self._told(self.client.write_exec_stdin(self.session_id, block, eof=eof and last))
        return self.session

    def close_stdin(self) -> dict[str, Any]:
        """Closes the input: the process reads its end."""
        return self._told(self.client.close_exec_stdin(self.session_id))

    def signal(self, signal: int = 15) -> dict[str, Any]:
        """Sends a signal (by number, 15 is TERM) to the whole process group."""
        return self._told(self.client.signal_exec(self.session_id, signal))

    def kill(self) -> dict[str, Any]:
        """Kills the whole process group."""
        return self.signal(SIGKILL)

    def _told(self, answer: dict[str, Any]) -> dict[str, Any]:
        if isinstance(session := answer.get("session"), dict):
            self.session = session
        return self.session


def _collect(
    transport: Transport, session: dict[str, Any], first: Sequence[Event], deadline: Deadline | None
) -> SandboxExecResult:
    reader = EventReader(transport, session, first=first, deadline=deadline)
    events = tuple(reader)
    return SandboxExecResult.of(reader.session, events)


def _blocks(data: Input) -> Iterator[tuple[bytes, bool]]:
    """The input in blocks, each with whether it is the last; at least one block, which may be empty."""
    if isinstance(data, str):
        data = data.encode()
    if isinstance(data, bytes):
        starts = range(0, max(1, len(data)), STDIN_BLOCK)
        for offset in starts:
            yield data[offset : offset + STDIN_BLOCK], offset == starts[-1]
        return
    while block := data.read(STDIN_BLOCK):
        yield block, False
    yield b"", True


def stdin_payload(data: str | bytes, *, eof: bool) -> dict[str, Any]:
    """One piece of input as JSON: text where it is text, base64 otherwise."""
    if isinstance(data, str):
        return {"data": data, "eof": eof}
    return {"data_base64": base64.b64encode(data).decode(), "eof": eof}
