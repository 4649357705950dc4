"""gVisor's control socket: one JSON request and one JSON answer per connection.

It is gVisor's internal interface.  What is used here was tried with release 20240729; `probe` tests it at start
against a throwaway sandbox, and the command line takes its place where the test fails.
"""

import array
import json
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from node_agent.host.process import readable

DEFAULT_TIMEOUT: Final = 10.0
_MAX_ANSWER: Final = 64 * 1024 * 1024


class ControlError(Exception):
    """The sentry answered with an error; its text is the message."""


class ControlLostError(Exception):
    """There is no sentry behind the socket, it went away, or it did not answer in time."""


class PendingAnswer:
    """A request whose answer is still to come; selectable.

    Args:
        connection: on which it was sent.
        stays: whether the answer is only looked at, so that another holder of the connection can still read it.
    """

    def __init__(self, connection: socket.socket, *, stays: bool = False) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._flags = socket.MSG_PEEK if stays else 0
        self._received = bytearray()
        self._early: Any = None  # an answer that came before anybody asked for it

    def fileno(self) -> int:
        return self._connection.fileno()

    def take(self) -> tuple[bool, Any]:
        """Read what has come, without blocking.

        Returns:
            ``(False, None)``, or ``(True, result)`` once the answer is whole.

        Raises:
            ControlError: the answer is an error.
            ControlLostError: the sentry closed the connection before it answered.
        """
        if self._early is not None:
            return True, self._early
        while True:
            try:
                data = self._connection.recv(65536, self._flags)
            except BlockingIOError:
                return False, None
            except OSError as error:
                raise ControlLostError(str(error)) from error
            if not data:
                raise ControlLostError("the sandbox ended before it answered")
            self._received = bytearray(data) if self._flags else self._received + data
            answer = _parsed(self._received)
            if answer is not None:
                return True, answer
            if self._flags:  # gVisor writes an answer at once, and so short a one comes whole
                raise ControlLostError("the sandbox ended in the middle of its answer")

    def refused(self, within: float) -> bool:
        """Return whether an error comes within that many seconds; a good answer stays for `take`.

        Raises:
            ControlLostError: the sentry closed the connection.
        """
        if not readable(self, within):
            return False
        try:
            whole, result = self.take()
        except ControlError:
            return True
        if whole:
            self._early = result
        return False

    def close(self) -> None:
        """Give the answer up."""
        self._connection.close()


@dataclass(frozen=True)
class GuestProcess:
    """A process inside a sandbox, by the numbers seen inside."""

    pid: int
    parent: int
    group: int


@dataclass(frozen=True)
class Launch:
    """What an exec starts, in the sentry's terms.

    Attributes:
        capabilities: a bit per capability.
    """

    argv: tuple[str, ...]
    env: tuple[str, ...]
    working_dir: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    capabilities: int
    bounding: int


class Control:
    """The control socket of one sandbox.

    Args:
        path: of the socket, as runsc makes it below its root directory.
        container: runsc's name of the sandbox.
    """

    def __init__(self, path: Path, container: str) -> None:
        self._path = str(path)
        self._container = container

    def execute(self, launch: Launch, descriptors: Sequence[int]) -> tuple[int, PendingAnswer]:
        """Start a process with these stdin, stdout and stderr.

        Returns:
            Its pid inside, and its wait status to come.

        Raises:
            ControlError: it could not be started; the text gives the cause.
            ControlLostError: the sandbox is gone, or did not answer in time.
        """
        capabilities = dict.fromkeys(("EffectiveCaps", "PermittedCaps"), launch.capabilities)
        argument = {
            "filename": "",  # the sentry looks argv[0] up in PATH itself
            "argv": launch.argv,
            "envv": launch.env,
            "wd": launch.working_dir,
            "KUID": launch.uid,
            "KGID": launch.gid,
            "ExtraKGIDs": launch.groups,
            "Capabilities": {
                **capabilities,
                "BoundingCaps": launch.bounding,
                "InheritableCaps": 0,
                "AmbientCaps": 0,
            },
            "StdioIsPty": False,
            "ContainerID": self._container,
            "GuestFDs": list(range(len(descriptors))),
        }
        connection = self._send("containerManager.ExecuteAsync", argument, descriptors, DEFAULT_TIMEOUT)
        try:
            pid = _receive(connection, "containerManager.ExecuteAsync", DEFAULT_TIMEOUT)
            # On the same connection: a sandbox that ends from here on has still started the process.
            connection.sendall(_request("containerManager.WaitPID", {"PID": pid, "CID": self._container}))
        except OSError as error:
            connection.close()
            raise ControlLostError(str(error)) from error
        except (ControlError, ControlLostError):
            connection.close()
            raise
        return pid, PendingAnswer(connection)

    def wait_first(self) -> PendingAnswer:
        """Ask for the wait status of the first process, which is to come."""
        request = self._send("containerManager.Wait", self._container, (), DEFAULT_TIMEOUT)
        return PendingAnswer(request, stays=True)

    def pause(self) -> None:
        """Freeze all tasks.  Calls nest: one more than `resume` leaves them frozen."""
        self.call("containerManager.Pause")

    def resume(self) -> None:
        """Take one `pause` back; the sentry panics where there was none."""
        self.call("containerManager.Resume")

    def signal(self, pid: int, number: int) -> None:
        """Signal one process.

        Raises:
            ControlError: there is no such process.
        """
        self.call("containerManager.Signal", {"CID": self._container, "Signo": number, "PID": pid, "Mode": 0})

    def processes(self) -> list[GuestProcess]:
        """Return all processes but zombies."""
        dump = self.call("containerManager.ProcfsDump") or []
        return [
            GuestProcess(entry["status"]["pid"], entry["status"].get("ppid", 0), entry["stat"].get("pgid", 0))
            for entry in dump
            if entry.get("status") and entry.get("stat")
        ]

    def count(self) -> int:
        """Count the processes."""
        return len(self.call("containerManager.Processes", self._container) or [])

    def call(
        self, method: str, argument: Any = None, *, descriptors: Sequence[int] = (), timeout: float = DEFAULT_TIMEOUT
    ) -> Any:
        """Make one call and return its result.

        Raises:
            ControlError: the sentry refused.
            ControlLostError: it is not there, or did not answer within ``timeout`` seconds.
        """
        connection = self._send(method, argument, descriptors, timeout)
        try:
            return _receive(connection, method, timeout)
        finally:
            connection.close()

    def _send(self, method: str, argument: Any, descriptors: Sequence[int], timeout: float) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # A connect that must not block fails at once while the sentry's short queue is full; this one waits, bounded.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", int(timeout) + 1, 0))
        request = _request(method, argument)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        try:
            connection.connect(self._path)
            connection.settimeout(timeout)
            sent = connection.sendmsg([request], rights)
            connection.sendall(request[sent:])
        except OSError as error:
            connection.close()
            raise ControlLostError(f"{method}: {error}") from error
        return connection


def _request(method: str, argument: Any) -> bytes:
    return json.dumps({"method": method, "arg": argument}).encode()


def _receive(connection: socket.socket, method: str, timeout: float) -> Any:
    """Return the result of the call in flight."""
    deadline = time.monotonic() + timeout
    received = bytearray()
    try:
        while (answer := _parsed(received)) is None:
            connection.settimeout(max(0.001, deadline - time.monotonic()))
            data = connection.recv(65536)
            if not data:
                raise ControlLostError(f"the sandbox ended during {method}")
            received += data
    except OSError as error:
        raise ControlLostError(f"{method}: {error}") from error
    return answer


def _parsed(received: bytearray) -> Any:
    """Return the result of a whole answer, which is never ``None``; ``None`` while the answer is not whole."""
    # Every answer is one JSON object, and only its end closes the last brace.
    if not received.rstrip().endswith(b"}"):
        return None
    try:
        answer = json.loads(received)
    except ValueError:
        if len(received) > _MAX_ANSWER:
            raise ControlLostError("the sandbox's answer is too long") from None
        return None
    if not answer["success"]:
        raise ControlError(answer["err"])
    result = answer.get("result")
    return {} if result is None else result
