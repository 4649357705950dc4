"""Host commands: each with a deadline, and awaited on a pidfd.

`subprocess` polls for the end of a process once a timeout is given, asleep for up to 50 ms at a time.  A pidfd is
readable at the moment of the end.
"""

import contextlib
import errno
import fcntl
import os
import select
import signal
import struct
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final, Protocol

DEFAULT_TIMEOUT: Final = 15.0
_KILL_TIMEOUT: Final = 5.0  # SIGKILL acts at once, except on a process that hangs inside the host's kernel
_MAX_OUTPUT: Final = 16 * 1024 * 1024
_PIDFD_INFO: Final = struct.Struct("=Q52xi")  # struct pidfd_info: what is asked for or known, and the wait status
_PIDFD_INFO_EXIT: Final = 1 << 3
_PIDFD_GET_INFO: Final = 0xC040FF0B
_EXIT_CODE: Final = 49  # in /proc/<pid>/stat, behind the name
_NO_PROCESS: Final = (errno.ESRCH, errno.EINVAL)  # nobody has the pid; a thread has it


class CommandError(Exception):
    """A host command failed, did not end in time, or is not installed.

    Attributes:
        output: what it wrote to stdout and stderr, as text.
        code: its exit code; ``None`` when it never ended by itself or never started.
    """

    def __init__(self, argv: Sequence[str], problem: str, *, output: str = "", code: int | None = None) -> None:
        detail = f": {output.strip()[-2000:]}" if output.strip() else ""
        super().__init__(f"{argv[0]} {problem}{detail}")
        self.output = output
        self.code = code


def run(
    argv: Sequence[str], *, timeout: float = DEFAULT_TIMEOUT, stdin: bytes = b"", pass_fds: Sequence[int] = ()
) -> bytes:
    """Run a short command to its end and return its stdout.

    A child that it leaves in the background is not waited for.

    Args:
        argv: the program, looked up in ``PATH``, and its arguments.
        timeout: in seconds; after that the command's whole process group is killed.
        stdin: all of its input.
        pass_fds: descriptors that it inherits.

    Raises:
        CommandError: it is missing, took longer than ``timeout``, or ended with another code than 0.
    """
    # Files in memory instead of pipes: nothing has to be pumped while the command runs, and nothing can block.
    with _memory_file() as given, _memory_file() as out, _memory_file() as err:
        given.write(stdin)
        given.seek(0)
        process = start(argv, stdin=given.fileno(), stdout=out.fileno(), stderr=err.fileno(), pass_fds=pass_fds)
        if not ended_within(process, timeout):
            kill_group(process)
            raise CommandError(argv, f"did not end within {timeout:g} s and was killed")
        stdout = os.pread(out.fileno(), _MAX_OUTPUT, 0)
        if process.returncode != 0:
            text = (os.pread(err.fileno(), _MAX_OUTPUT, 0) + stdout).decode(errors="replace")
            raise CommandError(
                argv, f"failed with exit code {process.returncode}", output=text, code=process.returncode
            )
        return stdout


def start(
    argv: Sequence[str], *, stdin: int, stdout: int, stderr: int, pass_fds: Sequence[int] = ()
) -> "subprocess.Popen[bytes]":
    """Start a command in a session of its own, so that `kill_group` reaches all that it starts.

    Raises:
        CommandError: it is not installed, or the host cannot start it.
    """
    try:
        return subprocess.Popen(
            argv, stdin=stdin, stdout=stdout, stderr=stderr, pass_fds=pass_fds, start_new_session=True
        )
    except FileNotFoundError as error:
        raise CommandError(argv, "is not installed on this host") from error
    except OSError as error:
        raise CommandError(argv, f"could not be started: {error.strerror}") from error


def ended_within(process: "subprocess.Popen[bytes]", timeout: float) -> bool:
    """Wait for a command's end and reap it.

    Args:
        process: a child of this process.
        timeout: in seconds.

    Returns:
        Whether it ended in time; its ``returncode`` is set then.
    """
    if process.poll() is not None:
        return True
    with contextlib.suppress(ProcessLookupError):  # another thread has just reaped it
        handle = os.pidfd_open(process.pid)
        try:
            if not readable(handle, timeout):
                return False
        finally:
            os.close(handle)
    process.wait()
    return True


def kill_group(process: "subprocess.Popen[bytes]") -> None:
    """End a command made by `start` with everything that it started, and reap it.

    Idempotent.  What hangs in the host's kernel is left behind after some seconds.
    """
    if process.returncode is None:  # otherwise the number may be another process's by now
        os.killpg(process.pid, signal.SIGKILL)
        ended_within(process, _KILL_TIMEOUT)


def open_process(pid: int) -> int | None:
    """Return a pidfd of whoever has this pid now; ``None`` where nobody has it."""
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno not in _NO_PROCESS:
            raise
        return None


@contextlib.contextmanager
def pinned(pid: int, is_meant: Callable[[], bool]) -> Iterator[int | None]:
    """Yield a pidfd of the process that has this pid; ``None`` where it has ended.

    Hosts deal pids out again, a busy one within seconds: what was known of a pid before is of another process by now.

    Args:
        pid: its number on the host.
        is_meant: asked once the handle is open: whether whoever has the pid is the process that is meant.
    """
    handle = open_process(pid)
    if handle is None:
        yield None
        return
    try:
        yield handle if is_meant() else None
    finally:
        os.close(handle)


def how_ended(handle: int, seconds: float) -> int | None:
    """Return the wait status of a process that is nobody's child here.

    Args:
        handle: a pidfd.
        seconds: how long to wait for its end.

    Returns:
        ``None`` while it runs, and where the kernel does not tell: before Linux 6.15 only until its parent has asked.
    """
    if not readable(handle, seconds):
        return None
    status = _status_after(handle)
    if status is None:
        status = _status_of_zombie(handle)
    return _status_after(handle) if status is None else status  # its parent came in between


def _status_after(handle: int) -> int | None:
    """Return the wait status of a process that its parent has asked for."""
    answer = bytearray(_PIDFD_INFO.size)
    _PIDFD_INFO.pack_into(answer, 0, _PIDFD_INFO_EXIT, 0)
    try:
        fcntl.ioctl(handle, _PIDFD_GET_INFO, answer)
    except OSError:  # an older kernel, or it was gone when the handle was opened
        return None
    known, status = _PIDFD_INFO.unpack(answer)
    return status if known & _PIDFD_INFO_EXIT else None


def _status_of_zombie(handle: int) -> int | None:
    """Return the wait status of a process that its parent has not asked for yet."""
    try:
        words = Path(f"/proc/self/fdinfo/{handle}").read_text().split()
        fields = Path(f"/proc/{words[words.index('Pid:') + 1]}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return int(fields[_EXIT_CODE]) if fields[0] == "Z" else None


def send(handle: int, number: int) -> None:
    """Send a signal to the process behind a pidfd; nothing happens once it has ended."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(handle, number)


def _memory_file() -> BinaryIO:
    return open(os.memfd_create("command"), "w+b", buffering=0)  # noqa: PTH123 - the caller closes it


class HasFileno(Protocol):
    """Something with a descriptor."""

    def fileno(self) -> int:
        """Return the descriptor."""


def readable(source: int | HasFileno, seconds: float) -> bool:
    """Wait for ``source`` to become readable (a pidfd: for its process to end); return ``False`` after ``seconds``.

    ``poll``, because ``select`` refuses descriptors from 1024 up, and a busy node has more.
    """
    poller = select.poll()
    poller.register(source, select.POLLIN)
    return bool(poller.poll(seconds * 1000))
