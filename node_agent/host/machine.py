"""What this machine has, how much of it is in use, and how long it took to become a node; from the kernel's files."""

import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gateway.wire.limits import MIB
from gateway.wire.nodes import BootStages, Pressure
from gateway.wire.resources import Shape
from node_agent.settings import NodeSettings

log = logging.getLogger(__name__)

_IMAGES_SHARE: Final = 4
"""Images get this part of the disk, unless the settings say otherwise."""


@dataclass(frozen=True)
class MachineUse:
    """What is in use now, in MiB."""

    memory_mb: int
    disk_mb: int


def parse_meminfo(text: str) -> dict[str, int]:
    """Return the values of ``/proc/meminfo`` in MiB."""
    pairs = (line.split(":", 1) for line in text.splitlines() if ":" in line)
    return {name: int(value.split()[0]) // 1024 for name, value in pairs}


def parse_pressure(text: str) -> float | None:
    """Return ``some avg10`` of a file below ``/proc/pressure``, in percent."""
    match = re.search(r"^some avg10=([0-9.]+)", text, re.MULTILINE)
    return float(match[1]) if match else None


def disk_is_short(*, free_mb: int, least_mb: int, was_short: bool) -> bool:
    """Return whether the host's disk is too full for one more sandbox.

    Args:
        free_mb: MiB free now.
        least_mb: below this it becomes short; from twice as much on it is not any more.
        was_short: whether it was at the last look.
    """
    return free_mb < (2 * least_mb if was_short else least_mb)


def most_sandboxes(settings: NodeSettings) -> int:
    """Return how many sandboxes this machine takes at most."""
    return min(settings.slots, max(1, int(len(os.sched_getaffinity(0)) * settings.slots_per_core)))


@dataclass(frozen=True)
class Gpu:
    """A GPU of this machine.

    Attributes:
        number: its place in NVIDIA's lists, which go by the address on the bus.
        uuid: ``None`` where the driver does not tell.
    """

    number: int
    uuid: str | None = None

    @property
    def name(self) -> str:
        """How an engine is asked for it."""
        return self.uuid or str(self.number)


class HostMachine:
    """This machine, and what of it the node gives away.  ``proc`` is where the kernel's files are found."""

    def __init__(self, settings: NodeSettings, *, gpus: int, proc: Path = Path("/proc")) -> None:
        self._settings = settings
        self._proc = proc
        self._gpus = gpus
        self._disk_mb = settings.disk_mb
        self.images_mb = settings.images_mb
        """MiB that images may take; ``None`` until it is measured."""
        self._disk_short = False

    def measure(self, held_disk_mb: int, image_mb: int = 0) -> None:
        """Fix the disk that the node gives away, so that placement does not see it move.

        Args:
            held_disk_mb: what adopted sandboxes have set aside: no longer free, and still theirs.
            image_mb: what images take, likewise.
        """
        whole = self.free_disk_mb() + held_disk_mb + image_mb
        if self.images_mb is None:
            self.images_mb = whole // _IMAGES_SHARE
        if self._disk_mb is None:
            self._disk_mb = max(0, whole - self._settings.reserve_disk_mb - self.images_mb)

    def free_disk_mb(self) -> int:
        """Return the MiB that are free below the root now."""
        state = os.statvfs(self._settings.root)
        return state.f_bavail * state.f_frsize // MIB

    def total(self) -> Shape:
        """Return what the node gives away."""
        settings = self._settings
        self.measure(0)
        memory = parse_meminfo((self._proc / "meminfo").read_text())["MemTotal"]
        cores = len(os.sched_getaffinity(0))
        return Shape(
            cpus=settings.cpus or cores * settings.cpu_overcommit,
            memory_mb=settings.memory_mb or max(0, memory - settings.reserve_memory_mb),
            disk_mb=self._disk_mb or 0,
            gpus=self._gpus,
            slots=most_sandboxes(settings),
        )

    def disk_shortage(self, wanted_mb: int = 0) -> str | None:
        """Return why the disk below the root takes no new sandbox, as a sentence; ``None`` while it does.

        Args:
            wanted_mb: MiB that new sandboxes will set aside.
        """
        free, least = self.free_disk_mb(), self._settings.least_disk_mb
        short = disk_is_short(free_mb=free, least_mb=least, was_short=self._disk_short)
        sentence = (
            f"this node's disk runs full: {free} MiB are free below {self._settings.root}; it takes new sandboxes"
            f" again once {2 * least} MiB are (least_disk_mb = {least})"
        )
        if short != self._disk_short:
            log.warning("%s", sentence if short else f"this node's disk has room again: {free} MiB are free")
        self._disk_short = short
        if short or wanted_mb <= free - least:
            return sentence if short else None
        return (
            f"this node's disk has {free} MiB free below {self._settings.root}, and {least} of them stay free"
            f" (least_disk_mb); {wanted_mb} MiB are asked for"
        )

    def use(self) -> MachineUse:
        """Return the memory that is not available to new programs, and the disk that is not free below the root."""
        memory = parse_meminfo((self._proc / "meminfo").read_text())
        disk = os.statvfs(self._settings.root)
        return MachineUse(
            memory["MemTotal"] - memory["MemAvailable"], (disk.f_blocks - disk.f_bavail) * disk.f_frsize // MIB
        )

    def pressure(self) -> Pressure:
        """Return how much tasks waited in the last 10 s; nothing where the kernel has no PSI."""
        return Pressure(cpu=self._stall("cpu"), memory=self._stall("memory"), io=self._stall("io"))

    def _stall(self, name: str) -> float | None:
        try:
            return parse_pressure((self._proc / "pressure" / name).read_text())
        except OSError:
            return None


_UUID_LINE: Final = re.compile(r"^GPU UUID:\s*(GPU-[0-9a-f-]{36})\s*$", re.MULTILINE)  # "?" while it is unknown


def list_gpus(proc: Path = Path("/proc")) -> tuple[Gpu, ...]:
    """Return the GPUs that the NVIDIA driver of this machine serves."""
    try:
        directories = sorted((proc / "driver/nvidia/gpus").iterdir())
    except OSError:
        return ()
    return tuple(Gpu(number, _uuid(directory / "information")) for number, directory in enumerate(directories))


def _uuid(file: Path) -> str | None:
    try:
        found = _UUID_LINE.search(file.read_text())
    except OSError:
        return None
    return found[1] if found else None


# -- boot -------------------------------------------------------------------------------------------------------------

NOTED_STAGES: Final = frozenset({"cloud_init", "engines", "bundle"})
_MAX_NOTES: Final = 4096  # bytes of the file; it has three short lines


def boot_stages(file: Path | None, proc: Path = Path("/proc")) -> BootStages | None:
    """Return the stages of this boot up to now, in seconds from the start of the kernel.

    Args:
        file: where the bootstrap noted its stages, one ``NAME SECONDS`` a line; lies on a file system that a reboot
            empties.
        proc: where the kernel's files are found.

    Returns:
        ``None`` where nothing was noted in this boot: then the machine was up for another reason.
    """
    if file is None:
        return None
    try:
        with file.open() as opened:
            noted = _parsed(opened.read(_MAX_NOTES))
    except FileNotFoundError:
        return None
    except OSError as error:
        log.warning("the stages of the boot cannot be read: %s", error)
        return None
    uptime = float((proc / "uptime").read_text().split()[0])
    started = _started((proc / "self/stat").read_text())
    return BootStages(**noted, agent=started, registered=uptime)


def _parsed(text: str) -> dict[str, float]:
    """Return the last time of each known stage; a bootstrap that broke off and began again notes some twice."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        name, _, seconds = line.partition(" ")
        try:
            if name in NOTED_STAGES:
                found[name] = max(0.0, float(seconds))
        except ValueError:
            log.warning("the stages of the boot have a line that cannot be parsed: %r", line[:100])
    return found


def _started(stat: str) -> float:
    """Return when a process began, from its ``/proc/PID/stat``: the 22nd field counts clock ticks; see proc(5)."""
    after_name = stat.rpartition(")")[2].split()
    return int(after_name[19]) / os.sysconf("SC_CLK_TCK")
