"""Control groups of sandboxes, on hosts with version 1 and with version 2.

The engine makes the groups and sets the limits; here they are read, adjusted, emptied and removed.
"""

import contextlib
import errno
import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gateway.wire.limits import MIB
from node_agent.host import bpf
from node_agent.host.devices import DeviceRule
from node_agent.host.process import open_process, readable, send

_ROOT: Final = Path("/sys/fs/cgroup")
_PERIOD_US: Final = 100_000  # the kernel's default
_MIN_QUOTA_US: Final = 1_000  # the kernel refuses less
# gVisor 20240729 takes two threads of the host for each process inside, one more while that waits for the host, and
# some dozens of its own.  It dies when it can start none, so the bound has room to spare.
_THREADS_PER_PROCESS: Final = 4
_OWN_THREADS: Final = 256
_SHARES_PER_CPU: Final = 1024
_SHARES: Final = (2, 262_144)  # the kernel's bounds, version 1; engines convert for version 2
_IO_WEIGHT_PER_CPU: Final = 100
_IO_WEIGHTS: Final = (10, 1000)
_EMPTY_TIMEOUT: Final = 10.0
_GROUP_IS_GONE: Final = (errno.ENOENT, errno.ENODEV)  # before its file was opened, and after
_THAW_AGAIN: Final = 0.1  # seconds; a pause in another thread may freeze behind the kill's back
_ALL_DEVICES: Final = "a *:* rwm"
_confining: Final = threading.Lock()
_confined: Final[set[Path]] = set()


def parent_name(tag: str) -> str:
    """Return the name of the group that holds the groups of all sandboxes of one node."""
    return f"sandbox-{tag}"


class Cgroup:
    """The group ``/sandbox-<tag>/<name>`` in every hierarchy."""

    def __init__(self, tag: str, name: str) -> None:
        self.path = f"/{parent_name(tag)}/{name}"

    def exists(self) -> bool:
        """Return whether it is there."""
        return (_ROOT / self.path[1:] if _is_v2() else _ROOT / "cpuacct" / self.path[1:]).is_dir()

    # -- reading -------------------------------------------------------------------------------------------------

    def pids(self) -> set[int]:
        """Return the host pids of everything in it: the engine's processes for this sandbox, and nothing else.

        Raises:
            OSError: it cannot be read, which is no proof that it is empty.
        """
        found: set[int] = set()
        for directory in self._directories():
            try:
                found |= {int(line) for line in (directory / "cgroup.procs").read_text().split()}
            except OSError as error:  # it may go while we look
                if error.errno not in _GROUP_IS_GONE:
                    raise
        return found

    def oom_kills(self) -> int:
        """Return how often the kernel killed for want of memory here."""
        return _counter(self._file("memory", "memory.oom_control", "memory.events"), "oom_kill")

    def met_memory_limit(self) -> bool:
        """Return whether it ever needed more memory than its own bound."""
        if _is_v2():
            return _counter(_ROOT / self.path[1:] / "memory.events", "oom") > 0
        return _number(self._file("memory", "memory.failcnt", "")) > 0

    def memory_mb(self) -> float:
        """Return the MiB charged now; 0 when the group is not there."""
        return _number(self._file("memory", "memory.usage_in_bytes", "memory.current")) / MIB

    def cpu_seconds(self) -> float:
        """Return the processor time used so far; 0 when the group is not there."""
        if _is_v2():
            return _counter(_ROOT / self.path[1:] / "cpu.stat", "usage_usec") / 1e6
        return _number(self._file("cpuacct", "cpuacct.usage", "")) / 1e9

    def children(self) -> set[str]:
        """Return the names of the groups directly inside."""
        found: set[str] = set()
        for directory in self._directories():
            with contextlib.suppress(OSError):  # it may go while we look
                found |= {entry.name for entry in directory.iterdir() if entry.is_dir()}
        return found

    # -- changing ------------------------------------------------------------------------------------------------

    def set_cpus(self, cpus: float) -> None:
        """Bound processor time to ``cpus`` cores.

        Raises:
            OSError: the group or its cpu controller is not there.
        """
        quota = cpu_quota(cpus)
        if _is_v2():
            (_ROOT / self.path[1:] / "cpu.max").write_text(f"{quota} {_PERIOD_US}")
        else:
            self._file("cpu", "cpu.cfs_quota_us", "").write_text(str(quota))

    def set_io_weight(self, cpus: float) -> None:
        """Give the group a share of a busy disk by ``cpus``, where the kernel's scheduler of the disk knows weights."""
        for name in ("blkio.weight", "blkio.bfq.weight", "io.weight", "io.bfq.weight"):
            path = self._file("blkio", name, name)
            if path.exists():
                with contextlib.suppress(OSError):  # a scheduler without weights
                    path.write_text(str(io_weight(cpus)))

    def forbid_swap(self) -> None:
        """Keep the group's memory out of swap where the host allows it; elsewhere its limit still holds in memory."""
        with contextlib.suppress(OSError):
            (_ROOT / self.path[1:] / "memory.swap.max").write_text("0")

    def freeze(self) -> bool:
        """Stop every task in it, those that are still to come included; return ``False`` where there is no freezer.

        Returns once the kernel has the order: the last task stops some milliseconds later.

        Raises:
            OSError: the kernel refuses.
        """
        return self._set_freezer("FROZEN", "1")

    def thaw(self) -> bool:
        """Undo `freeze`.  Idempotent.

        Raises:
            OSError: the kernel refuses.
        """
        return self._set_freezer("THAWED", "0")

    def frozen(self) -> bool:
        """Return whether the last of `freeze` and `thaw` was `freeze`."""
        return _number(self._file("freezer", "freezer.self_freezing", "cgroup.freeze")) == 1

    def _set_freezer(self, v1: str, v2: str) -> bool:
        word = v2 if _is_v2() else v1
        try:
            # Without O_CREAT: where the group is gone, that is the answer.
            descriptor = os.open(self._file("freezer", "freezer.state", "cgroup.freeze"), os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(descriptor, word.encode())
            finally:
                os.close(descriptor)
        except OSError as error:
            if error.errno in _GROUP_IS_GONE:
                return False
            raise
        return True

    def kill(self, timeout: float = _EMPTY_TIMEOUT, *, first: int | None = None) -> bool:
        """Send SIGKILL to everything in it, frozen or not, and wait for the end; return whether it is empty now.

        Args:
            timeout: in seconds.
            first: a process that has to end before any other is touched, so that it cannot report their ends.
        """
        deadline = time.monotonic() + timeout
        while pids := sorted(self.pids()):
            leaders = [pid for pid in pids if pid == first]
            if not all([self._end(some, deadline) for some in (leaders, pids)]):
                return False
            if time.monotonic() > deadline:
                return False
        return True

    def _end(self, pids: list[int], deadline: float) -> bool:
        handles = self._opened(pids)
        try:
            for handle in handles:
                send(handle, signal.SIGKILL)
            while True:
                # With version 1 a frozen task dies only when it is let go; it does nothing else any more.
                self.thaw()
                if _all_ended(handles, min(deadline, time.monotonic() + _THAW_AGAIN)):
                    return True
                if time.monotonic() >= deadline:
                    return False
        finally:
            for handle in handles:
                os.close(handle)

    def _opened(self, pids: list[int]) -> list[int]:
        """Return pidfds of those that are in it still.

        Whoever waited for one process meanwhile has numbers of others that ended with it, and the host deals them out
        again: a number that is seen here behind its handle is the handle's.
        """
        opened: dict[int, int] = {}
        inside: set[int] = set()
        try:
            opened = {pid: handle for pid in pids if (handle := open_process(pid)) is not None}
            inside = self.pids()
        finally:
            for pid in opened.keys() - inside:
                os.close(opened[pid])
        return [handle for pid, handle in opened.items() if pid in inside]

    def remove(self) -> bool:
        """Remove the empty group; return whether there was one.  A group with processes stays."""
        return any([_remove(directory) for directory in self._directories()])

    def _directories(self) -> list[Path]:
        hierarchies = [_ROOT] if _is_v2() else _v1_hierarchies()
        return [path for hierarchy in hierarchies if (path := hierarchy / self.path[1:]).is_dir()]

    def _file(self, controller: str, v1: str, v2: str) -> Path:
        if _is_v2():
            return _ROOT / self.path[1:] / v2
        return _ROOT / controller / self.path[1:] / v1


def cpu_quota(cpus: float) -> int:
    """Return the microseconds per 100 ms for that many cores."""
    return max(_MIN_QUOTA_US, round(cpus * _PERIOD_US))


def cpu_shares(cpus: float) -> int:
    """Return the weight with which a sandbox of that many cores competes for a busy processor."""
    return _within(_SHARES, round(cpus * _SHARES_PER_CPU))


def io_weight(cpus: float) -> int:
    """Return the weight with which a sandbox of that many cores competes for a busy disk."""
    return _within(_IO_WEIGHTS, round(cpus * _IO_WEIGHT_PER_CPU))


def gvisor_threads(processes: int) -> int:
    """Return the bound on the host's threads for a gVisor sandbox that may run that many processes.

    Inside, RLIMIT_NPROC bounds the processes of each user and is met first; this is the backstop on the host.
    """
    return processes * _THREADS_PER_PROCESS + _OWN_THREADS


def _within(bounds: tuple[int, int], value: int) -> int:
    return max(bounds[0], min(bounds[1], value))


def names(tag: str) -> set[str]:
    """Return the names of the sandboxes' groups that this node has in any hierarchy."""
    hierarchies = [_ROOT] if _is_v2() else _v1_hierarchies()
    found: set[str] = set()
    for hierarchy in hierarchies:
        with contextlib.suppress(OSError):
            found |= {entry.name for entry in (hierarchy / parent_name(tag)).iterdir() if entry.is_dir()}
    return found


def confine_devices(tag: str, rules: Sequence[DeviceRule]) -> bool:
    """Let all sandboxes of one node open only the devices of ``rules``; to be called before each start.

    Returns:
        Whether the host has a devices controller (version 1), or takes device programs (version 2).

    Raises:
        OSError: it has one, and refuses the rules.
    """
    with _confining:
        if _is_v2():
            return _confine_v2(_ROOT / parent_name(tag), rules)
        return _confine_v1(_ROOT / "devices", parent_name(tag), rules)


def _confine_v2(group: Path, rules: Sequence[DeviceRule]) -> bool:
    group.mkdir(exist_ok=True)
    try:
        # Rules of an earlier life of this process are replaced: they may be other ones.
        if group not in _confined or not bpf.attached(group):
            bpf.attach(group, rules)
    except OSError as error:
        if error.errno in bpf.UNAVAILABLE:
            return False
        raise
    _confined.add(group)
    return True


def _confine_v1(hierarchy: Path, name: str, rules: Sequence[DeviceRule]) -> bool:
    if not (hierarchy / "devices.list").exists():
        return False
    group = hierarchy / name
    group.mkdir(exist_ok=True)
    present = (group / "devices.list").read_text().splitlines()
    if _ALL_DEVICES in present:
        (group / "devices.deny").write_text("a")
        present = []
    for rule in rules:
        if rule.line() not in present:
            (group / "devices.allow").write_text(rule.line())
    return True


def remove_parent(tag: str) -> bool:
    """Remove the node's own group once no sandbox is left in it; return whether there was one."""
    hierarchies = [_ROOT] if _is_v2() else _v1_hierarchies()
    return any([_remove(hierarchy / parent_name(tag)) for hierarchy in hierarchies])


def _is_v2() -> bool:
    return (_ROOT / "cgroup.controllers").exists()


def _v1_hierarchies() -> list[Path]:
    return sorted({entry.resolve() for entry in _ROOT.iterdir() if entry.is_dir()})


def _remove(directory: Path) -> bool:
    try:
        directory.rmdir()
    except OSError:  # not there, or still in use: the next sweep sees it again
        return False
    return True


def _all_ended(handles: list[int], deadline: float) -> bool:
    for handle in handles:
        left = max(0.0, deadline - time.monotonic())
        if not readable(handle, left):
            return False
    return True


def _number(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


def _counter(path: Path, key: str) -> int:
    """Return the value of a ``key value`` line of a flat file; 0 when there is none."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.split()[:1] == [key]), 0)
