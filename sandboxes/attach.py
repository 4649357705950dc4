"""A command in a sandbox attached to this terminal: input and output as bytes, Ctrl-C, and the exit code."""

import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from types import FrameType
from typing import BinaryIO, Final

from gateway.wire.states import ExecStatus
from sandboxes.errors import ServiceFailedError
from sandboxes.output import complain
from ucloud_sandboxes_sdk import (
    ExecHandle,
    SandboxApiError,
    SandboxExecResult,
    SandboxExecSession,
    StdinClosedError,
    event_bytes,
)

READ: Final = 64 * 1024
BLOCK: Final = 512 * 1024
STDIN: Final = 0
BROKEN_PIPE: Final = 128 + signal.SIGPIPE
ENDED: Final = frozenset({ExecStatus.EXITED, ExecStatus.FAILED})


class _Input:
    """Sends this process's stdin to a session from a thread of its own, until its end or the session's."""

    def __init__(self, handle: ExecHandle) -> None:
        self._client = handle.client
        self._session_id = handle.session_id
        self.failure: SandboxApiError | None = None
        # A daemon: nothing can take a read from a terminal back, and it must not hold up the exit.
        threading.Thread(target=self._send, name="stdin", daemon=True).start()

    def _send(self) -> None:
        try:
            eof = False
            while not eof:
                data, eof = _read_stdin()
                answer = self._client.write_exec_stdin(self._session_id, data, eof=eof)
                if answer.get("session", {}).get("status") in ENDED:
                    return
        except StdinClosedError:
            return
        except SandboxApiError as error:
            self.failure = error
            self._kill()

    def _kill(self) -> None:
        # The command would wait for the rest of its input for ever.
        try:
            self._client.signal_exec(self._session_id, signal.SIGKILL)
        except SandboxApiError as error:
            complain(f"error: {self._session_id} goes on without its input: {error}")


def follow(handle: ExecHandle, *, stdin: bool, pass_interrupt: bool = True) -> int:
    """Write out the output of a command as it comes, and return its exit code.

    Args:
        handle: of the running command.
        stdin: send this process's standard input to it.
        pass_interrupt: send a first Ctrl-C on to the command as SIGINT, and kill its process group at a second one.

    Raises:
        ServiceFailedError: the outcome cannot be known.
        KeyboardInterrupt: on the third Ctrl-C, or the first without ``pass_interrupt``.
    """
    source = _Input(handle) if stdin else None
    passed = iter((signal.SIGINT, signal.SIGKILL) if pass_interrupt else ())
    while True:
        try:
            _write_out(handle)
            break
        except KeyboardInterrupt:
            if (number := next(passed, None)) is None:
                raise
            handle.signal(number)
        except BrokenPipeError:
            handle.kill()
            _discard_stdout()
            return BROKEN_PIPE
    if source and source.failure:
        raise ServiceFailedError(f"the input was not delivered: {source.failure}")
    return exit_code(handle.session)


def exit_code(session: SandboxExecSession) -> int:
    """Return the exit code to pass on; print on stderr what the code alone does not show.

    Raises:
        ServiceFailedError: the session has none.
    """
    if session.get("timed_out"):
        complain("error: the command was killed by its timeout")
    elif session.get("error"):
        complain(f"error: {session['error']}")
    if session.get("truncated"):
        total = f"{session.get('stdout_bytes')} bytes on stdout, {session.get('stderr_bytes')} on stderr"
        complain(f"warning: the output was cut; in full it had {total}")
    code = session.get("exit_code")
    if not isinstance(code, int):
        raise ServiceFailedError(f"the command's outcome is not known (session {session['id']})")
    return code


def as_json(result: SandboxExecResult, sandbox_id: str) -> dict[str, object]:
    """Return a finished command as JSON for programs."""
    return {
        "sandbox_id": sandbox_id,
        "session_id": result.session_id,
        "status": result.status,
        "exit_code": result.exit_code,
        "signal": result.session.get("signal"),
        "timed_out": result.timed_out,
        "truncated": result.truncated,
        "error": result.error,
        "stdout": result.stdout,
        "stderr": result.stderr,
    }


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the block as an exception does, so that what it made is removed again.

    Under `nohup` SIGHUP stays ignored.
    """

    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    hangup = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, *hangup)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _read_stdin() -> tuple[bytes, bool]:
    """Wait for input; return what is there, up to a block, and whether it has ended."""
    data = b""
    # The file descriptor itself: a buffered reader holds back what does not fill its buffer.
    while part := os.read(STDIN, READ):
        data += part
        if len(data) >= BLOCK or not select.select([STDIN], [], [], 0)[0]:
            return data, False
    return data, True


def _write_out(handle: ExecHandle) -> None:
    targets: dict[str, BinaryIO] = {"stdout": sys.stdout.buffer, "stderr": sys.stderr.buffer}
    with closing(handle.events()) as events:
        for event in events:
            if target := targets.get(event["stream"]):
                target.write(event_bytes(event))
                target.flush()


def _discard_stdout() -> None:
    """Keep the interpreter from writing to the broken pipe once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
