"""Where the kernel counts what one incarnation of a sandbox uses."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from node_agent.host.cgroup import Cgroup
from node_agent.host.volume import Volume

_INTERFACES = Path("/proc/net/dev")
"""Unlike ``/sys``, always of the network namespace in which the agent is."""


@dataclass(frozen=True)
class Counters:
    """What the kernel has counted.  ``None`` where it counts nothing (any more)."""

    cpu_seconds: float | None = None
    memory_mb: float | None = None
    egress_bytes: int | None = None
    disk_mb: float | None = None


@dataclass(frozen=True)
class CounterFiles:
    """The files that hold an incarnation's counters.  Reading them asks no engine and wakes nobody.

    Attributes:
        generation: which incarnation.
        group: of all its processes; ``None`` where no group of the node's own holds them.
        interface: on the host, at which whatever the sandbox sends is received; ``None`` without a network.
        volume: its disk.
    """

    generation: int
    group: Cgroup | None
    interface: str | None
    volume: Volume

    def read(self) -> Counters:
        """Return the counters as they stand."""
        group = self.group if self.group is not None and self.group.exists() else None
        return Counters(
            cpu_seconds=None if group is None else group.cpu_seconds(),
            memory_mb=None if group is None else group.memory_mb(),
            egress_bytes=None if self.interface is None else _received(self.interface),
            disk_mb=self._disk_mb(),
        )

    def _disk_mb(self) -> float | None:
        try:
            return self.volume.used_mb() if self.volume.mounted else None
        except OSError:  # it goes while we look
            return None


OnEnding = Callable[[str, CounterFiles], None]
"""Called with sandbox and files when all processes of an incarnation have ended, before its files go."""


def _received(interface: str) -> int | None:
    for line in _INTERFACES.read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == interface:
            return int(counters.split()[0])
    return None
