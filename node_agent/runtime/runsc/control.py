"""gVisor's control socket: one JSON request and one JSON answer per connection.

It is gVisor's internal interface.  What is used here was tried with release 20240729; `probe` tests it at start
against a throwaway sandbox, and the command line takes its place where the test fails.

The sentry stands between us and a stranger: its answers repeat names, arguments and environments of the sandbox's
processes, and a sentry that was broken into says what it likes.  They are read by `node_agent.runtime.untrusted`.
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
from node_agent.runtime.untrusted import ForgedAnswerError, JsonAnswer

DEFAULT_TIMEOUT: Final = 10.0
_MAX_PID: Final = 2**31
_MAX_STATUS: Final = 0xFFFF  # of wait(2)
_MAX_WORDS: Final = 4096  # characters of an error


class ControlError(Exception):
    """The sentry answered with an error; its text is the message."""


class ControlLostError(Exception):
    """There is no sentry behind the socket, it went away, or it did not answer in time."""


class ControlForgedError(ControlLostError):
    """What the sentry answered is too large, or not what it answers."""


class PendingAnswer:
    """A request whose answer, a wait status, is still to come; selectable.

    Args:
        connection: on which it was sent.
        stays: whether the answer is only looked at, so that another holder of the connection can still read it.
    """

    def __init__(self, connection: socket.socket, *, stays: bool = False) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._flags = socket.MSG_PEEK if stays else 0
        self._answer = JsonAnswer()
        self._early: int | None = None  # an answer that came before anybody asked for it

    def fileno(self) -> int:
        return self._connection.fileno()

    def take(self) -> int | None:
        """Read what has come, without blocking; return the wait status, or ``None`` while the answer is not whole.

        Raises:
            ControlError: the answer is an error.
            ControlLostError: the sentry closed the connection before it answered.
        """
        if self._early is not None:
            return self._early
        while True:
            try:
                data = self._connection.recv(65536, self._flags)
            except BlockingIOError:
                return None
            except OSError as error:
                raise ControlLostError(str(error)) from error
            if not data:
                raise ControlLostError("the sandbox ended before it answered")
            if self._flags:  # what was looked at before comes again
                self._answer = JsonAnswer()
            answer = _fed(self._answer, data)
            if answer is not None:
                return _number(answer, _MAX_STATUS)
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
            self._early = self.take()
        except ControlError:
            return True
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
            pid = _number(_receive(connection, "containerManager.ExecuteAsync", DEFAULT_TIMEOUT), _MAX_PID)
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
        """Return all processes but zombies.

        With their groups, unless the arguments and environments of all of them together are too much to read: then a
        process counts as the leader of a group of its own.
        """
        try:
            dump = [
                (_part(entry, "status"), _part(entry, "stat")) for entry in self._list("containerManager.ProcfsDump")
            ]
            return [_guest(status, stat.get("pgid", 0)) for status, stat in dump if status and stat]
        except ControlForgedError:
            plain = self._list("containerManager.Processes", self._container)
            return [_guest(entry, entry.get("pid")) for entry in plain]

    def count(self) -> int:
        """Count the processes."""
        return len(self._list("containerManager.Processes", self._container))

    def _list(self, method: str, argument: Any = None) -> list[dict[str, Any]]:
        found = self.call(method, argument) or []
        if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
            raise ControlForgedError(f"{method}: the answer is not a list of objects")
        return found

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
    reader = JsonAnswer()
    try:
        while True:
            connection.settimeout(max(0.001, deadline - time.monotonic()))
            data = connection.recv(65536)
            if not data:
                raise ControlLostError(f"the sandbox ended during {method}")
            answer = _fed(reader, data)
            if answer is not None:
                return answer
    except OSError as error:
        raise ControlLostError(f"{method}: {error}") from error


# -- answers ----------------------------------------------------------------------------------------------------------


def _fed(reader: JsonAnswer, data: bytes) -> Any:
    """Return the result of a whole answer, which is never ``None``; ``None`` while the answer is not whole.

    Raises:
        ControlError: the answer is an error.
        ControlForgedError: it is none.
    """
    try:
        answer = reader.feed(data)
    except ForgedAnswerError as error:
        raise ControlForgedError(str(error)) from error
    if answer is None:
        return None
    if answer.get("success") is not True:
        raise ControlError(str(answer.get("err"))[:_MAX_WORDS])
    result = answer.get("result")
    return {} if result is None else result


def _number(value: Any, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ControlForgedError(f"the answer is {str(value)[:50]!r}, not a number up to {most}")
    return value


def _part(entry: dict[str, Any], name: str) -> dict[str, Any]:
    part = entry.get(name) or {}
    if not isinstance(part, dict):
        raise ControlForgedError(f"{name} of a process is not an object")
    return part


def _guest(facts: dict[str, Any], group: Any) -> GuestProcess:
    return GuestProcess(
        _number(facts.get("pid"), _MAX_PID), _number(facts.get("ppid", 0), _MAX_PID), _number(group, _MAX_PID)
    )
