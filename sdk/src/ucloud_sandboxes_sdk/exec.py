"""Processes in a sandbox: starting them, feeding them and following them."""

import base64
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import BinaryIO, Final, TypedDict, Unpack
from uuid import uuid4

from .cleanup import end_after, repeat_until_found
from .errors import ExecLostError, NotFoundError, SandboxApiError, SandboxNotRunningError, StdinClosedError
from .events import ENDED, EventReader
from .results import (
    SandboxExecEvent,
    SandboxExecResponse,
    SandboxExecResult,
    SandboxExecSession,
    SandboxResponse,
)
from .specs import argv
from .transport import ApiCall, Deadline, ServiceCalls, segment

STDIN_BLOCK: Final = 1024 * 1024
FIRST_WAIT: Final = 10.0  # seconds in which a command that ends costs one round trip
KILL_GRACE: Final = 60.0  # what the service may take to kill and to respond, after the command's own timeout
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


class ExecCalls(ServiceCalls):
    """The calls about processes in sandboxes."""

    def exec(
        self,
        sandbox_id: str,
        command: Sequence[str] | str,
        *,
        input: Input | None = None,
        **options: Unpack[ExecOptions],
    ) -> SandboxExecResult:
        """Run a command to its end and return all of its output.

        ``timeout_seconds`` is kept by the service: it kills the whole process group, and the result carries the output
        so far with ``timed_out`` set and exit code 124.  Nothing is raised for it.  Without it a command may take as
        long as its sandbox lives.

        Ctrl-C, and any exception that is not the service's own, kills the process group: nobody else knows of it.

        Args:
            sandbox_id: where.
            command: program and arguments; no shell is put around them.
            input: what the process reads on stdin (text, bytes, or an open binary file); without it stdin is empty.
            **options: see `ExecOptions`.

        Raises:
            SandboxNotRunningError: the sandbox is paused or has ended.
            ExecLostError: the outcome cannot be known, e.g. because the node restarted.
            TransportError: the start was sent and no response came.  The command may run; it is never sent twice.
        """
        name = uuid4().hex
        try:
            return self._to_end(sandbox_id, command, name, input, options)
        except SandboxApiError:
            raise
        except BaseException as error:
            self._kill_after(error, sandbox_id, name)
            raise

    def _to_end(
        self, sandbox_id: str, command: Sequence[str] | str, name: str, input: Input | None, options: ExecOptions
    ) -> SandboxExecResult:
        limit = options.get("timeout_seconds")
        deadline = None if limit is None else Deadline.after(limit + KILL_GRACE)
        if input is None:
            answer = self._start(sandbox_id, command, name, options, stdin=False, wait_seconds=FIRST_WAIT)
            return self._collect(answer["session"], answer.get("events", ()), deadline)
        session = self._start(sandbox_id, command, name, options, stdin=True, wait_seconds=None)["session"]
        handle = ExecHandle(self, session["id"], sandbox_id, session)
        try:
            # The service keeps the output meanwhile, so that writing everything first cannot block for ever.
            for block, last in _blocks(input):
                handle.write_stdin(block, eof=last)
                if handle.session.get("status") in ENDED:
                    break  # the process did not want all of it, as `yes | head` shows; its result says how it went
        except StdinClosedError:
            pass  # the same, seen a moment later
        return self._collect(handle.session, (), deadline)

    def start_exec(
        self,
        sandbox_id: str,
        command: Sequence[str] | str,
        *,
        stdin: bool = False,
        wait_seconds: float | None = None,
        **options: Unpack[ExecOptions],
    ) -> "ExecHandle":
        """Start a command and return a handle to follow it.

        Args:
            sandbox_id: where.
            command: program and arguments; no shell is put around them.
            stdin: input will follow; without it the process reads an empty stdin.
            wait_seconds: wait this long for the end, so that a quick command's events come with the response.
            **options: see `ExecOptions`.
        """
        name = uuid4().hex
        try:
            answer = self._start(sandbox_id, command, name, options, stdin=stdin, wait_seconds=wait_seconds)
            session = answer["session"]
            return ExecHandle(self, session["id"], sandbox_id, session, first_events=answer.get("events", ()))
        except SandboxApiError:
            raise
        except BaseException as error:
            self._kill_after(error, sandbox_id, name)  # without the handle nobody can
            raise

    def get_exec(self, session_id: str) -> "ExecHandle":
        """Return a handle to a session that was started before, perhaps by another program."""
        session = self.get_exec_session(session_id)["session"]
        return ExecHandle(self, session_id, session["sandbox_id"], session)

    def get_exec_session(self, session_id: str) -> SandboxExecResponse:
        """Return the state of a session: ``{"session": {…}}``."""
        return self._call(ApiCall("GET", _exec(session_id), safe=True), SandboxExecResponse)

    def read_exec_events(
        self, session_id: str, *, after: int = 0, limit: int = 100, wait_seconds: float = 0.0
    ) -> SandboxExecResponse:
        """Return one page of events after a sequence number: ``{"session": {…}, "events": […]}``.

        Args:
            session_id: of the session.
            after: sequence number of the last event that is known already.
            limit: most events of the page.
            wait_seconds: how long to wait while there are none and the process runs; the service waits 20 s at most.
        """
        query = {"after": after, "limit": limit, "wait_seconds": wait_seconds}
        call = ApiCall("GET", _exec(session_id, "/events"), query, safe=True)
        return self._call(call, SandboxExecResponse, timeout_seconds=self.timeout_seconds + wait_seconds)

    def write_exec_stdin(self, session_id: str, data: str | bytes, *, eof: bool = False) -> SandboxExecResponse:
        """Send one piece of input (16 MiB of JSON at most), once; ``eof`` closes the input after it."""
        text = {"data": data} if isinstance(data, str) else {"data_base64": base64.b64encode(data).decode()}
        call = ApiCall.with_json("POST", _exec(session_id, "/stdin"), {**text, "eof": eof})
        return self._call(call, SandboxExecResponse)

    def close_exec_stdin(self, session_id: str) -> SandboxExecResponse:
        """Close the input of a session."""
        return self._call(ApiCall("POST", _exec(session_id, "/close-stdin")), SandboxExecResponse)

    def signal_exec(self, session_id: str, signal: int = 15) -> SandboxExecResponse:
        """Send a signal, by number, to the whole process group."""
        call = ApiCall.with_json("POST", _exec(session_id, "/signal"), {"signal": signal})
        return self._call(call, SandboxExecResponse)

    def _start(
        self,
        sandbox_id: str,
        command: Sequence[str] | str,
        name: str,
        options: ExecOptions,
        *,
        stdin: bool,
        wait_seconds: float | None,
    ) -> SandboxExecResponse:
        """Start a command, sent once; the response has ``events`` where ``wait_seconds`` was given.

        ``name``, 32 hex digits, becomes a part of the session's id, so that it is known before any response.
        """
        chosen = {key: value for key, value in options.items() if value is not None}
        payload = {"command": argv(command), "stdin": stdin, "tty": False, **chosen}
        call = ApiCall.with_json("POST", f"/v1/sandboxes/{segment(sandbox_id)}/exec", payload)
        call = replace(call, query={"session": name, "wait_seconds": wait_seconds})
        limit = self.timeout_seconds + (wait_seconds or 0.0)
        answer = self._call(call, SandboxExecResponse, timeout_seconds=limit)
        session = answer.get("session")
        if not isinstance(session, dict) or not isinstance(session.get("id"), str):
            raise SandboxApiError("the service answered an exec without a session id", body=answer)
        return answer

    def _kill_after(self, error: BaseException, sandbox_id: str, name: str) -> None:
        """Kill a session that ``error`` ended the call about; its start may still be on its way."""

        def kill() -> bool:
            try:
                record = self._call(ApiCall("GET", f"/v1/sandboxes/{segment(sandbox_id)}", safe=True), SandboxResponse)
                self.signal_exec(f"exec-{name}.{record['sandbox'].get('generation')}.{sandbox_id}", SIGKILL)
            except NotFoundError:
                return False
            except (SandboxNotRunningError, ExecLostError):
                pass  # whatever ran there has ended
            return True

        end_after(error, f"the process of {name}", lambda: repeat_until_found(kill, self.transport.sleep))

    def _collect(
        self, session: SandboxExecSession, first: Sequence[SandboxExecEvent], deadline: Deadline | None
    ) -> SandboxExecResult:
        """Follow a session to its end."""
        reader = EventReader(self.transport, session, first=first, deadline=deadline)
        events = tuple(reader)
        result = SandboxExecResult.of(reader.session, events)
        if (lost := _lost(reader.session)) is not None:
            lost.result = result
            raise lost
        return result


class ExecHandle:
    """A started process.  It goes on when this object, or the program that holds it, goes away.

    Attributes:
        session_id: its id; `SandboxClient.get_exec` makes a handle from it again.
        sandbox_id: the sandbox that it runs in.
        session: the last known state of the session.
        last_sequence: sequence number of the last event that `events` yielded.
    """

    def __init__(
        self,
        client: ExecCalls,
        session_id: str,
        sandbox_id: str,
        session: SandboxExecSession | None = None,
        last_sequence: int = 0,
        *,
        first_events: Sequence[SandboxExecEvent] = (),
    ) -> None:
        self.client = client
        self.session_id = session_id
        self.sandbox_id = sandbox_id
        self.session: SandboxExecSession = session or {"id": session_id}
        self.last_sequence = last_sequence
        self._first = first_events

    def __repr__(self) -> str:
        return f"ExecHandle({self.session_id!r}, status={self.session.get('status')!r})"

    def get(self) -> SandboxExecSession:
        """Ask the service for the state of the session and return it; see also `session`."""
        return self._update(self.client.get_exec_session(self.session_id))

    def events(
        self, *, wait_seconds: float | None = None, limit: int | None = None
    ) -> Generator[SandboxExecEvent, None, None]:
        """Yield the events after `last_sequence`, each as it happens, until the process has ended.

        An event is a dict with ``sequence``, ``stream`` (``stdout``, ``stderr``, ``status``, ``exit`` …), ``data`` as
        text and ``created_at``; `event_bytes` returns the exact bytes.  Broken connections are made again without a
        gap.

        Args:
            wait_seconds: without effect, kept for older programs; events are streamed, not polled for.
            limit: without effect, kept for older programs.

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
        if (lost := _lost(self.session)) is not None:
            raise lost

    def wait(
        self,
        *,
        timeout_seconds: float | None = None,
        poll_wait_seconds: float | None = None,
        settle_seconds: float | None = None,
    ) -> SandboxExecResult:
        """Wait for the end and return everything from the first event on, also what `events` yielded before.

        Args:
            timeout_seconds: bounds this wait alone and leaves the process running; to have it killed, start it with
                ``timeout_seconds``.
            poll_wait_seconds: without effect, kept for older programs.
            settle_seconds: without effect, kept for older programs.

        Raises:
            TimeoutError: it has not ended in time.
            SandboxApiError: as for `events`.
        """
        deadline = None if timeout_seconds is None else Deadline.after(timeout_seconds)
        result = self.client._collect(self.session, self._first, deadline)
        self.session = result.session
        return result

    def write_stdin(self, data: str | bytes, *, eof: bool = False) -> SandboxExecSession:
        """Send input, in pieces of at most 1 MiB, each once; ``eof`` closes the input after it.

        Raises:
            StdinClosedError: the process ended, or its input was closed.
            TransportError: it is unknown how much of the input arrived.
        """
        for block, last in _blocks(data):
            self._update(self.client.write_exec_stdin(self.session_id, block, eof=eof and last))
        return self.session

    def close_stdin(self) -> SandboxExecSession:
        """Close the input: the process reads its end."""
        return self._update(self.client.close_exec_stdin(self.session_id))

    def signal(self, signal: int = 15) -> SandboxExecSession:
        """Send a signal (by number, 15 is TERM) to the whole process group."""
        return self._update(self.client.signal_exec(self.session_id, signal))

    def kill(self) -> SandboxExecSession:
        """Kill the whole process group."""
        return self.signal(SIGKILL)

    def _update(self, answer: SandboxExecResponse) -> SandboxExecSession:
        if isinstance(session := answer.get("session"), dict):
            self.session = session
        return self.session


def _lost(session: SandboxExecSession) -> ExecLostError | None:
    """Return the error for a session that ended without anybody knowing how."""
    if not session.get("lost"):
        return None
    body = {"code": "exec_lost", "retryable": False, "session": session}
    return ExecLostError(f"exec session {session['id']}: its outcome is unknown: {session.get('error')}", body=body)


def _exec(session_id: str, rest: str = "") -> str:
    return f"/v1/exec/{segment(session_id)}{rest}"


def _blocks(data: Input) -> Iterator[tuple[bytes, bool]]:
    """Yield the input in blocks, each with whether it is the last; at least one block, which may be empty."""
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
