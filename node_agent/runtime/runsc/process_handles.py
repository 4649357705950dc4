"""How a process inside a sandbox is started, signalled and awaited: by the control socket, or by the command line."""

import contextlib
import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Final

from gateway.wire.errors import ErrorCode
from node_agent.errors import RuntimeFailure
from node_agent.host.process import CommandError, run, start
from node_agent.host.programs import BUSYBOX_INSIDE
from node_agent.runtime.base import Exit
from node_agent.runtime.runsc.control import Control, ControlError, ControlLostError, GuestProcess, Launch
from node_agent.runtime.runsc.process import Handle, Pipes
from node_agent.runtime.runsc.runsc_cli import CALL_TIMEOUT, Runsc

Awake = Callable[[], AbstractContextManager[None]]
"""Surrounds questions to a sandbox that may be paused; see `pause.awake`."""

_SIGKILL: Final = 9
_KILL_ROUNDS: Final = 50  # a tree that forks faster than it can be killed ends at the sandbox's bound on processes


def lost(sandbox_id: str, cause: object) -> RuntimeFailure:
    """Return the failure of an exec whose end cannot be known any more."""
    return RuntimeFailure(ErrorCode.EXEC_LOST, f"the end of an exec in sandbox {sandbox_id} cannot be known: {cause}")


def exit_of(status: int) -> Exit:
    """Convert a wait status as wait(2) gives it."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return Exit(128 + number, number)
    return Exit(os.WEXITSTATUS(status))


def family(pid: int, processes: Iterable[GuestProcess]) -> set[int]:
    """Return ``pid``, its process group, and every descendant of those."""
    members = {process.pid for process in processes if pid in (process.pid, process.group)}
    while True:
        more = {process.pid for process in processes if process.parent in members} - members
        if not more:
            return members
        members |= more


class SocketHandle(Handle):
    """A process started through the control socket."""

    def __init__(
        self, sandbox_id: str, control: Control, launch: Launch, pipes: Pipes, awake: Awake = contextlib.nullcontext
    ) -> None:
        """Start the process.

        Args:
            sandbox_id: where it starts.
            control: socket of that sandbox.
            launch: what to start.
            pipes: its descriptors.
            awake: surrounds every later question to the sandbox, which may be paused by then.

        Raises:
            ControlError: it could not be started.
            ControlLostError: the sandbox is gone.
        """
        self._sandbox_id = sandbox_id
        self._control = control
        self._awake = awake
        self._pid, self._pending = control.execute(launch, pipes.guest)

    def fileno(self) -> int:
        return self._pending.fileno()

    def poll(self) -> Exit | None:
        try:
            done, status = self._pending.take()
        except (ControlError, ControlLostError) as error:
            raise lost(self._sandbox_id, error) from error
        return exit_of(status) if done else None

    def signal(self, number: int) -> None:
        # Lost: the sandbox ended, and with it the process.
        with contextlib.suppress(ControlLostError), self._awake():
            group = [process.pid for process in self._control.processes() if process.group == self._pid]
            self._send(group, number)

    def kill(self) -> None:
        known = {self._pid}
        with contextlib.suppress(ControlLostError), self._awake():
            for _ in range(_KILL_ROUNDS):
                processes = self._control.processes()
                # Orphans of this round lose their parent: whoever was seen once stays known.
                known = set().union(*(family(pid, processes) for pid in known))
                alive = known & {process.pid for process in processes}
                if not alive:
                    return
                self._send(alive, _SIGKILL)

    def _send(self, pids: Iterable[int], number: int) -> None:
        for pid in pids:
            with contextlib.suppress(ControlError):  # it ended meanwhile
                self._control.signal(pid, number)

    def close(self) -> None:
        self._pending.close()


class CommandHandle(Handle):
    """A process started by ``runsc exec``, where the control socket cannot be used."""

    def __init__(
        self, sandbox_id: str, runsc: Runsc, launch: Launch, pipes: Pipes, pid_file: str, awake: Awake
    ) -> None:
        self._sandbox_id = sandbox_id
        self._runsc = runsc
        self._pid_file = pid_file
        self._awake = awake
        stdin, stdout, stderr = pipes.guest
        command = runsc.exec_command(sandbox_id, _options(launch, pid_file), launch.argv)
        self._process = start(command, stdin=stdin, stdout=stdout, stderr=stderr)
        self._ended = os.pidfd_open(self._process.pid)

    def fileno(self) -> int:
        return self._ended

    def poll(self) -> Exit | None:
        code = self._process.poll()
        if code is None:
            return None
        # runsc ends with the code that a shell would give; its own death says nothing about the process.
        if code < 0:
            raise lost(self._sandbox_id, f"runsc exec was killed by signal {-code}")
        return Exit(code, code - 128 if code > 128 else None)

    def signal(self, number: int) -> None:
        self._busybox_kill(number)

    def kill(self) -> None:
        self._busybox_kill(_SIGKILL)

    def _busybox_kill(self, number: int) -> None:
        try:
            with open(self._pid_file, encoding="ascii") as file:  # noqa: PTH123 - one short read
                pid = int(file.read())
        except (OSError, ValueError):
            return  # not started yet, or ended
        options = ["--user=0:0", "--cap=CAP_KILL"]
        command = self._runsc.exec_command(
            self._sandbox_id, options, [BUSYBOX_INSIDE, "kill", f"-{number}", "--", f"-{pid}"]
        )
        with contextlib.suppress(CommandError), self._awake():  # nobody is left in the group
            run(command, timeout=CALL_TIMEOUT)

    def close(self) -> None:
        self._process.poll()
        os.close(self._ended)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._pid_file)  # noqa: PTH108 - as it was given to runsc


def _options(launch: Launch, pid_file: str) -> list[str]:
    options = [f"--user={launch.uid}:{launch.gid}", f"--cwd={launch.working_dir}", f"--internal-pid-file={pid_file}"]
    options += [f"--additional-gids={group}" for group in launch.groups]
    return options + [f"--env={entry}" for entry in launch.env]
