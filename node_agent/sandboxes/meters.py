"""Meters: what each incarnation of a sandbox has used, counted by the kernel and summed up here.

A meter is read at every heartbeat, at every start, pause and resume, and when the processes have ended, before the
kernel's counters go.  In between, memory and disk are taken to change evenly.  After each reading the meters are
written to a file together with the counters that they were read from, so an agent that is killed goes on where it was:
what the kernel counted meanwhile is the difference.  Nothing is reported that is not in the file.

A meter is kept until the gateway says that it has the last reading.
"""

import logging
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final
from uuid import uuid4

from pydantic import BaseModel, ValidationError

from gateway.wire.sandboxes import RuntimeName
from gateway.wire.states import SandboxState
from gateway.wire.usage import MAX_REPORTS, REPORT_INTERVAL, UsageAmounts, UsageReport
from node_agent.errors import RuntimeFailure
from node_agent.host.disk import write_atomically
from node_agent.runtime.base import SandboxRuntime
from node_agent.runtime.counters import CounterFiles, Counters
from node_agent.sandboxes.table import NodeSandbox

log = logging.getLogger(__name__)

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_UP: Final = frozenset({SandboxState.RUNNING, SandboxState.PAUSED})
_DEAD: Final = frozenset({SandboxState.EXITED, SandboxState.FAILED})


class Meter(BaseModel):
    """The meter of one incarnation."""

    meter_id: str
    sandbox_id: str
    generation: int
    begun: float
    """Seconds since the host started, at the first reading."""
    read: float
    """The same at the last one."""
    paused: bool = False
    """Whether it is paused since the last reading."""
    ended: bool = False
    """All its processes are gone; only its disk counts."""
    final: bool = False
    """Its disk is gone as well."""
    cpu_seconds: float = 0.0
    """The kernel's counter, as it was read last; so are the three below."""
    egress_bytes: int = 0
    memory_mb: float = 0.0
    disk_mb: float = 0.0
    total: UsageAmounts = UsageAmounts()

    def take(self, counters: Counters, now: float) -> None:
        """Add what came since the last reading."""
        seconds, self.read = max(0.0, now - self.read), now
        disk = self.disk_mb if counters.disk_mb is None else counters.disk_mb
        self.total = self.total.plus(disk_mb_seconds=(self.disk_mb + disk) / 2 * seconds)
        self.disk_mb = disk
        if self.ended:
            return
        memory = self.memory_mb if counters.memory_mb is None else counters.memory_mb
        kind = "paused_memory_mb_seconds" if self.paused else "memory_mb_seconds"
        cpu = self.cpu_seconds if counters.cpu_seconds is None else counters.cpu_seconds
        egress = self.egress_bytes if counters.egress_bytes is None else counters.egress_bytes
        self.total = self.total.plus(
            **{kind: (self.memory_mb + memory) / 2 * seconds},
            cpu_seconds=_increase(self.cpu_seconds, cpu),
            egress_bytes=_increase(self.egress_bytes, egress),
        )
        self.memory_mb, self.cpu_seconds, self.egress_bytes = memory, cpu, egress

    def end(self, counters: Counters, now: float) -> None:
        """Add what came up to the end of all its processes.  Idempotent."""
        # What it held to its end is what was read last: its memory has gone with its processes.
        self.take(replace(counters, memory_mb=None), now)
        self.ended, self.memory_mb = True, 0.0

    def report(self, now: float) -> UsageReport:
        """Return what the gateway is told."""
        return UsageReport(
            meter_id=self.meter_id,
            sandbox_id=self.sandbox_id,
            generation=self.generation,
            total=self.total,
            span_seconds=self.read - self.begun,
            age_seconds=max(0.0, now - self.read),
            final=self.final,
        )


class _Kept(BaseModel):
    """The content of the file."""

    boot_id: str
    meters: list[Meter] = []


class Meters:
    """The meters of one node.  Safe from any thread.

    Args:
        path: of the file that keeps them.
        runtimes: the engines.
    """

    def __init__(self, path: Path, runtimes: Mapping[RuntimeName, SandboxRuntime]) -> None:
        self._path = path
        self._runtimes = runtimes
        # Counters are read under it as well: an older reading after a newer one would look like a counter that began
        # anew, and the counters of one incarnation must not be read for another.
        self._lock = threading.Lock()
        self._boot_id = _BOOT_ID.read_text().strip()
        self._meters = {(meter.sandbox_id, meter.generation): meter for meter in self._load()}
        self._reported: dict[str, float] = {}
        self._kept = True
        for runtime in runtimes.values():
            runtime.listen_endings(self._ended)

    # -- reading ------------------------------------------------------------------------------------------------------

    def read_all(self, sandboxes: Iterable[NodeSandbox]) -> None:
        """Read the meters of all that is here, and close those of what is not here any more."""
        with self._lock:
            here = {(sandbox.id, sandbox.generation): sandbox for sandbox in sandboxes}
            for sandbox in here.values():
                self._read(sandbox)
            for key in set(self._meters) - set(here):
                self._close(key)
            self._save()

    def read(self, sandbox: NodeSandbox) -> None:
        """Read the meter of a sandbox that was just started, paused or resumed."""
        with self._lock:
            meter = self._meters.get((sandbox.id, sandbox.generation))
            if meter is not None and meter.ended:
                meter.ended = False  # what ended was an earlier attempt at the same start
            self._read(sandbox)
            self._save()

    def _ended(self, sandbox_id: str, files: CounterFiles) -> None:
        """Take in the last counters of processes that have all ended."""
        with self._lock:
            counters = files.read()
            key = (sandbox_id, files.generation)
            if key not in self._meters and counters.cpu_seconds is None:
                return
            self._meter(*key).end(counters, _now())
            self._save()

    def _read(self, sandbox: NodeSandbox) -> None:
        key = (sandbox.id, sandbox.generation)
        if sandbox.state not in _UP and key not in self._meters:
            return
        try:
            files = self._runtimes[sandbox.runtime].counter_files(sandbox.id)
        except RuntimeFailure as failure:
            log.info("what sandbox %s uses is read later: %s", sandbox.id, failure.message)
            return
        if files is not None and files.generation == sandbox.generation:
            meter = self._meter(*key)
            if sandbox.state in _DEAD:
                meter.end(files.read(), _now())
            else:
                meter.take(files.read(), _now())
            meter.paused = sandbox.state is SandboxState.PAUSED

    def _close(self, key: tuple[str, int]) -> None:
        """Make a meter final, unless an engine still has the incarnation."""
        meter = self._meters[key]
        if meter.final:
            return
        try:
            found = [runtime.counter_files(meter.sandbox_id) for runtime in self._runtimes.values()]
        except RuntimeFailure:
            return
        if all(files is None or files.generation != meter.generation for files in found):
            meter.ended = meter.final = True

    def _meter(self, sandbox_id: str, generation: int) -> Meter:
        now = _now()
        new = Meter(meter_id=uuid4().hex, sandbox_id=sandbox_id, generation=generation, begun=now, read=now)
        return self._meters.setdefault((sandbox_id, generation), new)

    # -- reporting ----------------------------------------------------------------------------------------------------

    def reports(self) -> list[UsageReport]:
        """Return the meters that the gateway has to hear of now: first those that are final."""
        with self._lock:
            if not self._kept:
                return []
            now = _now()
            due = [meter for meter in self._meters.values() if meter.final or self._is_due(meter, now)]
            due.sort(key=lambda meter: (not meter.final, self._reported.get(meter.meter_id, 0.0)))
            self._reported |= {meter.meter_id: now for meter in due[:MAX_REPORTS]}
            return [meter.report(now) for meter in due[:MAX_REPORTS]]

    def acknowledge(self, meter_ids: Collection[str]) -> None:
        """Forget final meters that the gateway has."""
        if not meter_ids:
            return
        with self._lock:
            for meter in [meter for meter in self._meters.values() if meter.final and meter.meter_id in meter_ids]:
                del self._meters[meter.sandbox_id, meter.generation]
                self._reported.pop(meter.meter_id, None)
            self._save()

    def _is_due(self, meter: Meter, now: float) -> bool:
        last = self._reported.get(meter.meter_id)
        return last is None or now - last >= REPORT_INTERVAL

    # -- the file -----------------------------------------------------------------------------------------------------

    def _save(self) -> None:
        kept = _Kept(boot_id=self._boot_id, meters=list(self._meters.values()))
        try:
            write_atomically(self._path, kept.model_dump_json().encode())
        except OSError as error:
            if self._kept:
                log.error("%s cannot be written (%s); usage is reported once it can", self._path, error.strerror)
            self._kept = False
        else:
            self._kept = True

    def _load(self) -> list[Meter]:
        try:
            kept = _Kept.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return []
        except ValidationError as error:
            log.error("%s is damaged; usage since the last report is lost: %s", self._path, error)
            return []
        if kept.boot_id != self._boot_id:
            now = _now()
            for meter in kept.meters:
                # The host was started anew: nothing of it runs, and the clock began again.
                meter.begun, meter.read, meter.ended = now - (meter.read - meter.begun), now, True
        return kept.meters


def _increase(before: float, after: float) -> float:
    """Return by how much a counter grew; one that is smaller than before began anew."""
    return after - before if after >= before else after


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
