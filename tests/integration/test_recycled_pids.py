"""Kills hit the processes they are meant for, although the host deals out pids again meanwhile.

A busy host with 32,768 pids goes round in seconds.  Each test lets a victim end between the look at it and its signal,
and gives its pid to an innocent process.
"""

import contextlib
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from node_agent.host import cgroup
from node_agent.host.cgroup import Cgroup
from node_agent.runtime.docker_engine import process as docker_process
from node_agent.runtime.docker_engine.process import HostSignaller
from tests.engines.recycled_pid import process_with_pid

pytestmark = pytest.mark.engine

_CGROUPS = Path("/sys/fs/cgroup")


@contextlib.contextmanager
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    """Start a process that sleeps, and end it at the end."""
    process = subprocess.Popen(["sleep", "100000"], start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def group_of(*processes: "subprocess.Popen[bytes]") -> Iterator[Cgroup]:
    """Put the processes into a control group like a sandbox's."""
    group = Cgroup(uuid.uuid4().hex[:8], "box")
    hierarchy = _CGROUPS if (_CGROUPS / "cgroup.controllers").exists() else _CGROUPS / "pids"
    directory = hierarchy / group.path[1:]
    directory.mkdir(parents=True)
    try:
        for process in processes:
            (directory / "cgroup.procs").write_text(str(process.pid))
        yield group
    finally:
        group.kill()
        group.remove()
        directory.parent.rmdir()


class Recycled:
    """Ends a process and gives its pid to an innocent one, once."""

    def __init__(self, victim: "subprocess.Popen[bytes]") -> None:
        self._victim = victim
        self.innocent: subprocess.Popen[bytes] | None = None

    def happen(self) -> None:
        if self.innocent is None:
            self._victim.kill()
            self._victim.wait()
            self.innocent = process_with_pid(self._victim.pid)

    def unharmed(self) -> bool:
        """Return whether the innocent process was left alone, and end it."""
        assert self.innocent is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.innocent.wait(0.2)
        alone = self.innocent.returncode is None
        self.innocent.kill()
        self.innocent.wait()
        return alone


def test_group_is_killed_without_whoever_got_the_pid_of_a_member_that_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """What serves a sandbox's kernel ends with the kernel, while that is waited for."""
    with sleeper() as kernel, sleeper() as helper, group_of(kernel, helper) as group:
        recycled, all_ended = Recycled(helper), cgroup._all_ended

        def kernel_ended(handles: list[int], deadline: float) -> bool:
            ended = all_ended(handles, deadline)
            recycled.happen()
            return ended

        monkeypatch.setattr(cgroup, "_all_ended", kernel_ended)

        assert group.kill(first=kernel.pid)

        assert recycled.unharmed()
        assert kernel.wait() == -signal.SIGKILL


@pytest.mark.parametrize("way", ["signal", "kill_tree"])
def test_signal_for_a_process_of_a_container_spares_whoever_got_its_pid(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    with sleeper() as victim:
        time.sleep(0.05)  # the kernel tells processes of one pid apart by their age, in steps of 10 ms
        recycled, read = Recycled(victim), docker_process._read

        def ended_after_the_look(entry: Path) -> object:
            found = read(entry)
            if entry.name == str(victim.pid):
                recycled.happen()
            return found

        monkeypatch.setattr(docker_process, "_read", ended_after_the_look)
        signaller = HostSignaller(os.getpid())
        if way == "signal":
            signaller.signal(victim.pid, signal.SIGKILL)
        else:
            signaller.kill_tree(victim.pid)

        assert recycled.unharmed()
