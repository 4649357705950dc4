"""Sandboxes that run: watched for their end, found again after a restart, and settled when they died."""

import logging
import os
import socket
from datetime import UTC, datetime
from functools import partial

from node_agent.errors import RuntimeFailure
from node_agent.host.network import Networks
from node_agent.runtime.base import Death, EngineState
from node_agent.runtime.runsc import pause, start
from node_agent.runtime.runsc.control import ControlError, ControlLostError, Pending
from node_agent.runtime.runsc.death import End, Memory, judge
from node_agent.runtime.runsc.exit_watch import Watcher
from node_agent.runtime.runsc.fd_store import Keeping
from node_agent.runtime.runsc.locks import Slot
from node_agent.runtime.runsc.paths import Places
from node_agent.runtime.runsc.record import Record

log = logging.getLogger(__name__)

_ALIVE = (EngineState.RUNNING, EngineState.PAUSED)


class Supervisor:
    """Knows when sandboxes end, and writes why."""

    def __init__(self, networks: Networks, keeping: Keeping) -> None:
        self._networks = networks
        self._keeping = keeping
        self._watcher = Watcher()

    def adopt(self, slot: Slot, places: Places, record: Record) -> Record:
        """Asks the engine for the truth about a recorded sandbox, and watches what runs.  Under the slot's lock.

        Raises:
            RuntimeFailure: ``BUSY`` when its processes do not end.
        """
        if record.state is EngineState.CHECKPOINTED:
            start.kill(places)  # a checkpoint or restore that a crash cut short
            return record
        if record.state not in _ALIVE or slot.watch is not None:
            return record
        if start.alive(places, record.sentry_pid):
            record = pause.settle(places, record)
            with pause.awake(places):
                self.watch(slot, places, record, self._kept(places))
                if record.state is EngineState.PAUSED:
                    pause.drain(places)
            return record
        if places.checkpoint.is_dir():
            return pause.settle_checkpoint(places, record)
        return self._bury(places, record, self._end_meanwhile(places))

    def _kept(self, places: Places) -> Pending | None:
        """The wait status to come that an earlier life of this agent asked for."""
        descriptor = self._keeping.take(places.sandbox_id)
        return None if descriptor is None else Pending(socket.socket(fileno=descriptor), stays=True)

    def _end_meanwhile(self, places: Places) -> End:
        """How a sandbox ended while no agent ran."""
        pending = self._kept(places)
        if pending is None:
            return End()
        try:
            _, status = pending.take()
        except ControlError:
            return End()
        except ControlLostError:
            status = None
        finally:
            pending.close()
        return End(status, killed=status is None)  # a kernel that ends by itself answers first

    def watch(self, slot: Slot, places: Places, record: Record, pending: Pending | None = None) -> None:
        """Settles the sandbox when its first process or its kernel ends.  Under the slot's lock.

        Args:
            slot: the sandbox in this process.
            places: where it lies.
            record: what it is.
            pending: the wait status to come, where somebody asked for it already.
        """
        handle = start.sentry_handle(places, record.sentry_pid)
        if handle is None:
            handle = _ended_handle()
        generation = record.generation

        def ended(end: End) -> None:
            self._ended(slot, places, generation, end)

        if pending is None:
            pending = self._ask(places)
        else:
            self._keeping.keep(places.sandbox_id, pending.fileno())
        gofer = start.gofer_handle(places)
        slot.watch = self._watcher.add(partial(self._ask, places), handle, gofer, ended, pending)

    def _ask(self, places: Places) -> Pending | None:
        """The wait status of the first process, to come also when this agent goes; ``None`` where nobody is left."""
        try:
            pending = places.control.wait_first()
        except ControlLostError:
            return None
        self._keeping.keep(places.sandbox_id, pending.fileno())
        return pending

    def forget(self, slot: Slot, places: Places) -> None:
        """Watches no longer.  Under the slot's lock."""
        self._keeping.drop(places.sandbox_id)
        if slot.watch is not None:
            self._watcher.drop(slot.watch)
            slot.watch = None

    def close(self) -> None:
        """Ends the watching of everything."""
        self._watcher.stop()
        self._keeping.close()

    def _ended(self, slot: Slot, places: Places, generation: int, end: End) -> None:
        with slot.lock:
            record = Record.load(places.directory)
            doomed = places.doom.exists()
            if record is not None and record.generation == generation and record.state in _ALIVE and not doomed:
                slot.watch = None
                try:
                    self._bury(places, record, end)
                except (OSError, RuntimeFailure):
                    # The next look at the sandbox, or the agent's next start, tries again.
                    log.exception("sandbox %s ended and could not be settled", places.sandbox_id)
        slot.tell()

    def _bury(self, places: Places, record: Record, end: End) -> Record:
        """Writes the death, and frees all but the volume."""
        death = self._judge(places, end)
        try:
            record.but(state=EngineState.DEAD, death=death).save(places.directory)
        except OSError as error:
            # On a full disk, what follows makes room for the second writing.
            log.error("sandbox %s: its death could not be written down yet: %s", places.sandbox_id, error)
        start.kill(places)
        if record.net is not None:
            self._networks.remove(record.net)
        start.unmount(places)
        start.forget_files(places)
        record = record.but(state=EngineState.DEAD, death=death, net=None, sentry_pid=None)
        record.save(places.directory)
        self._keeping.drop(places.sandbox_id)
        return record

    def _judge(self, places: Places, end: End) -> Death:
        group = places.cgroup
        memory = Memory(group.oom_kills(), group.met_memory_limit())
        full = places.volume.mounted and places.volume.full()
        return judge(end, memory=memory, disk_full=full, ended_at=datetime.now(UTC))


def _ended_handle() -> int:
    """A descriptor that is readable at once, for a kernel that ended before it could be watched."""
    return os.eventfd(1, os.EFD_CLOEXEC)
