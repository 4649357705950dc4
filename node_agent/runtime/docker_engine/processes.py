"""Signals to processes of a container: from the host where its processes are the host's, else from inside."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from node_agent.runtime.docker_engine import scripts

RunInside = Callable[[str, tuple[str, ...]], None]
"""Runs a script of `scripts` with arguments inside the sandbox, as root with all capabilities, to its end."""


class FromInside:
    """For gVisor, whose processes the host cannot see."""

    def __init__(self, run: RunInside) -> None:
        self._run = run

    def signal(self, group: int, number: int) -> None:
        """Sends a signal to a process group."""
        self._run(scripts.SIGNAL, (str(group), str(number)))

    def kill_tree(self, leader: int) -> None:
        """SIGKILL to the leader's group, its session and every descendant."""
        self._run(scripts.KILL, (str(leader),))


@dataclass(frozen=True)
class _Process:
    pid: int
    parent: int
    group: int
    session: int
    inner_pid: int


class FromHost:
    """For runc.  It works even when the sandbox may start no further process."""

    def __init__(self, init_pid: int) -> None:
        """``init_pid``: the container's first process, as the host numbers it."""
        self._init = init_pid

    def signal(self, group: int, number: int) -> None:
        """Sends a signal to a process group."""
        leader = self._leader(list(self._all()), group)
        if leader is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(leader.group, number)

    def kill_tree(self, leader: int) -> None:
        """SIGKILL to the leader's group, its session and every descendant."""
        found = self._leader(list(self._all()), leader)
        if found is None:
            return
        seen: set[int] = set()
        new = {found.pid}
        while new:
            # Stopped at once, so that nothing is forked behind the search.
            for pid in new:
                _send(pid, signal.SIGSTOP)
            seen |= new
            new = {
                process.pid
                for process in self._all()
                if seen & {process.parent, process.group, process.session} and process.pid not in seen
            }
        for pid in seen:
            _send(pid, signal.SIGKILL)

    def _leader(self, processes: list[_Process], inner_pid: int) -> _Process | None:
        return next((process for process in processes if process.inner_pid == inner_pid), None)

    def _all(self) -> Iterator[_Process]:
        """The container's processes: those in the PID namespace of its first."""
        try:
            namespace = (Path("/proc") / str(self._init) / "ns/pid").readlink()
        except OSError:  # the container has ended
            return
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):  # it may end while we look
                    if (entry / "ns/pid").readlink() == namespace:
                        yield _read(entry)


def _read(entry: Path) -> _Process:
    fields = (entry / "stat").read_text().rpartition(")")[2].split()
    status = (entry / "status").read_text().partition("NSpid:")[2].split("\n", 1)[0]
    return _Process(
        pid=int(entry.name),
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        inner_pid=int(status.split()[-1]),
    )


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
