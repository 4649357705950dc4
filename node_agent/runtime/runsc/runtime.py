"""gVisor run directly: OCI bundles, the control socket, and bounded volumes."""

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import ClassVar, Final

import docker

from gateway.wire.errors import CODE_RULES, ErrorCode
from gateway.wire.sandboxes import RuntimeName
from gateway.wire.states import DeathReason
from node_agent.errors import RuntimeFailure
from node_agent.host import programs
from node_agent.host.disk import out_of_space
from node_agent.host.images import Images
from node_agent.host.network import DEFAULT_POOL, DEFAULT_RESOLVERS, Networks
from node_agent.host.process import CommandError
from node_agent.host.volume import Volumes
from node_agent.runtime.base import (
    Death,
    EngineState,
    ExecCommand,
    ExecProcess,
    Found,
    LogPiece,
    Order,
    RuntimeFacts,
    SandboxRuntime,
    Stream,
    UsageNow,
)
from node_agent.runtime.runsc import create, pause, probe, sweep
from node_agent.runtime.runsc.control import ControlError, ControlLostError
from node_agent.runtime.runsc.create import Host, Running
from node_agent.runtime.runsc.exec import not_running, start_exec
from node_agent.runtime.runsc.fd_store import Keeping
from node_agent.runtime.runsc.locks import Slot, Slots
from node_agent.runtime.runsc.paths import Layout, Places
from node_agent.runtime.runsc.probe import Outcome
from node_agent.runtime.runsc.record import Record
from node_agent.runtime.runsc.rootfs import RootFileSystems
from node_agent.runtime.runsc.runsc_cli import Guard
from node_agent.runtime.runsc.supervisor import Supervisor

log = logging.getLogger(__name__)

_DELETE_TIMEOUT: Final = 90.0  # above the longest step of a create that was told to end
_ENGINE_TIMEOUT: Final = 60  # seconds for one answer of the Docker engine
_USING: Final = (EngineState.RUNNING, EngineState.PAUSED, EngineState.CHECKPOINTED)


class RunscRuntime(SandboxRuntime):
    """Sandboxes by runsc, their images from a Docker engine.

    Args:
        root: directory of the node; everything that lasts lies below it.
        tag: 8 hex digits of the node, in the name of everything host-wide.
        base_url: of the Docker engine that has the images, as the SDK takes it, e.g. ``unix:///var/run/docker.sock``.
        resolvers: name servers of sandboxes with a network.
        pool: private range for the addresses of sandboxes with a network.
    """

    name: ClassVar[RuntimeName] = "runsc"

    def __init__(
        self,
        root: Path,
        *,
        tag: str,
        base_url: str,
        resolvers: Sequence[str] = DEFAULT_RESOLVERS,
        pool: str = DEFAULT_POOL,
    ) -> None:
        self._layout = Layout(root, tag)
        self._images = Images(lambda: docker.APIClient(base_url=base_url, timeout=_ENGINE_TIMEOUT))
        self._roots = RootFileSystems(self._layout.images, self._images, tag)
        self._volumes = Volumes(self._layout.templates)
        self._networks = Networks(tag, pool)
        self._resolvers = tuple(resolvers)
        self._keeping = Keeping(tag)
        self._supervisor = Supervisor(self._networks, self._keeping)
        self._slots = Slots()
        self._probing = threading.Lock()
        self._probed: Outcome | None = None

    # -- the engine ------------------------------------------------------------------------------------------------

    def probe(self) -> RuntimeFacts:
        return self._outcome().facts

    def _outcome(self) -> Outcome:
        """The probe's findings; the first call makes it."""
        with self._probing:
            if self._probed is None:
                self._probed = probe.probe(self._layout)
                for note in self._probed.facts.notes:
                    log.info("runsc: %s", note)
            return self._probed

    @property
    def _engine(self) -> pause.Engine:
        return self._outcome().engine

    def _host(self) -> Host:
        try:
            provided = programs.provide(self._layout.tools)
        except (CommandError, OSError) as error:
            code = ErrorCode.DISK_FULL if out_of_space(error) else ErrorCode.INTERNAL
            raise RuntimeFailure(code, f"programs for the sandboxes: {error}") from error
        return create.Host(self._volumes, self._networks, provided, self._resolvers)

    def images(self) -> list[str]:
        return self._images.local()

    def busybox(self, sandbox_id: str) -> str:
        return programs.BUSYBOX_INSIDE

    # -- create and delete -----------------------------------------------------------------------------------------

    def create(self, order: Order) -> Found:
        slot, places = self._both(order.sandbox_id)
        ticket = slot.ticket()
        with slot.lock:
            present = self._present(places, order)
        if present is not None:
            return present.found
        try:
            # Minutes may go by here.  Nothing is made yet, so nothing is locked.
            image = self._images.resolve(order.spec.image)
            root = self._roots.ensure(image)
            host, runsc = self._host(), self._engine.runsc
        except RuntimeFailure as failure:
            self._end_earlier(slot, places, order, failure)
            raise
        with slot.lock:
            present = self._present(places, order)
            if present is not None:
                return present.found
            with self._starting(slot, places, ticket) as guard:
                return self._replace(
                    slot, places, order, lambda: create.bring_up(host, runsc, places, order, image, root, guard)
                ).found

    def _end_earlier(self, slot: Slot, places: Places, order: Order, failure: RuntimeFailure) -> None:
        """Its next generation can never start: only the workspace of the one that is there stays."""
        if CODE_RULES[failure.code].retryable:
            return
        with slot.lock:
            earlier = self._load(places)
            if earlier is not None and earlier.generation < order.generation:
                self._supervisor.forget(slot, places)
                keep = earlier.leaves_workspace
                create.fail(self._networks, places, earlier, failure, keep=keep)
        slot.tell()

    def _present(self, places: Places, order: Order) -> Record | None:
        """The record of an order that was carried out already.

        Raises:
            RuntimeFailure: ``CONFLICT`` when a newer generation is there.
        """
        record = self._load(places)
        if record is None or record.generation < order.generation:
            return None
        if record.generation > order.generation:
            raise RuntimeFailure(
                ErrorCode.CONFLICT,
                f"sandbox {order.sandbox_id} is here in generation {record.generation}; {order.generation} is outdated",
            )
        return None if record.state is EngineState.CREATING else record

    @contextmanager
    def _starting(self, slot: Slot, places: Places, ticket: int) -> Iterator[Guard]:
        """A start that `delete` cuts short, and that then fails with ``CONFLICT`` whatever it stumbled over."""
        guard = slot.begin_start(ticket, places.cgroup.kill)
        if guard is None:
            raise _overtaken(places.sandbox_id)
        try:
            yield guard
        except RuntimeFailure as failure:
            if guard.cancelled:
                raise _overtaken(places.sandbox_id) from failure
            raise
        finally:
            slot.end_start()
            slot.tell()

    def _replace(self, slot: Slot, places: Places, order: Order, bring_up: Callable[[], Running]) -> Record:
        """Takes down what is there, then brings up.  After a failure only an earlier workspace is left."""
        earlier = self._load(places)
        keep = earlier is not None and earlier.leaves_workspace and places.volume.image.exists()
        try:
            self._supervisor.forget(slot, places)
            if not keep:
                create.erase(self._networks, places)  # of a delete or a create that a crash cut short
            else:
                create.take_down(self._networks, places, earlier)
            running = bring_up()
        except RuntimeFailure as failure:
            create.fail(self._networks, places, Record.of(order), failure, keep=keep)
            raise
        self._supervisor.watch(slot, places, running.record, running.pending)
        return running.record

    def delete(self, sandbox_id: str) -> None:
        slot, places = self._both(sandbox_id)
        slot.break_start()
        try:
            places.doom.touch()
        except FileNotFoundError:
            pass  # nothing is here, or nothing yet
        except OSError as error:
            # The mark only survives a crash of the agent; on a full disk it is the delete that makes room.
            log.warning("sandbox %s: its delete could not be marked: %s", sandbox_id, error)
        # Calls that wait for the sandbox's kernel end with it, and let the lock go.
        places.kill()
        if not slot.lock.acquire(timeout=_DELETE_TIMEOUT):
            raise RuntimeFailure(ErrorCode.BUSY, f"sandbox {sandbox_id} is busy with another call; delete it again")
        try:
            self._supervisor.forget(slot, places)
            create.erase(self._networks, places)
        finally:
            slot.lock.release()
            slot.tell()

    # -- what is there ---------------------------------------------------------------------------------------------

    def found(self) -> list[Found]:
        return [record.found for record in map(self._adopted, self._ids()) if record is not None]

    def _ids(self) -> list[str]:
        directory = self._layout.sandboxes
        return sorted(entry.name for entry in directory.iterdir()) if directory.is_dir() else []

    def _adopted(self, sandbox_id: str) -> Record | None:
        """The record, after the engine was asked; what runs is watched from here on."""
        slot, places = self._both(sandbox_id)
        if not slot.lock.acquire(blocking=False):
            return self._load(places)  # the call in flight knows better
        try:
            record = self._load(places)
            return None if record is None else self._supervisor.adopt(slot, places, record)
        finally:
            slot.lock.release()

    def wait(self, sandbox_id: str) -> Death:
        slot, places = self._both(sandbox_id)
        first = self._adopted(sandbox_id)
        with slot.changed:
            while True:
                record = self._load(places)
                if first is None or record is None or record.generation != first.generation:
                    return Death(DeathReason.DELETED, None, "it was deleted", datetime.now(UTC))
                if record.death is not None:
                    return record.death
                slot.changed.wait()

    def sweep(self) -> list[str]:
        records = [record for record in map(self._load_by_id, self._ids()) if record is not None]
        owned = {record.sandbox_id: record for record in records}
        try:
            return sweep.sweep(self._layout, self._networks, self._roots, self._keeping, owned)
        except (OSError, CommandError) as error:
            raise RuntimeFailure(ErrorCode.INTERNAL, f"sweep: {error}") from error

    def close(self) -> None:
        if not self._ids():
            self.sweep()
        self._supervisor.close()

    # -- freezing --------------------------------------------------------------------------------------------------

    def pause(self, sandbox_id: str) -> None:
        self._freeze(sandbox_id, "pause")

    def resume(self, sandbox_id: str) -> None:
        self._freeze(sandbox_id, "resume")

    def _freeze(self, sandbox_id: str, action: str) -> None:
        with self._changing(sandbox_id, EngineState.RUNNING, EngineState.PAUSED) as (_, places, record):
            pause.freeze(self._engine, places, record, action)

    def checkpoint(self, sandbox_id: str) -> None:
        if not self.probe().checkpoint:
            return super().checkpoint(sandbox_id)
        with self._changing(sandbox_id, EngineState.RUNNING, EngineState.CHECKPOINTED) as (slot, places, record):
            if record.state is EngineState.CHECKPOINTED:
                return None
            pause.refuse_live_execs(self._engine, places)
            self._supervisor.forget(slot, places)
            try:
                pause.checkpoint(self._engine, places, record)
            except RuntimeFailure:
                self._supervisor.watch(slot, places, record)
                raise
        return None

    def restore(self, sandbox_id: str) -> None:
        with self._changing(sandbox_id, EngineState.RUNNING, EngineState.CHECKPOINTED) as (slot, places, record):
            if record.state is EngineState.RUNNING:
                return
            with self._starting(slot, places, slot.ticket()) as guard:
                running = create.restore(self._host(), self._engine.runsc, places, record, guard)
            self._supervisor.watch(slot, places, running.record, running.pending)

    @contextmanager
    def _changing(self, sandbox_id: str, *states: EngineState) -> Iterator[tuple[Slot, Places, Record]]:
        """The sandbox under its lock, in one of these states.

        Raises:
            RuntimeFailure: ``SANDBOX_NOT_RUNNING`` in any other state.
        """
        slot, places = self._both(sandbox_id)
        with slot.lock:
            record = self._load(places)
            if record is not None:
                record = self._supervisor.adopt(slot, places, record)
            if record is None or record.state not in states:
                raise not_running(sandbox_id, record)
            yield slot, places, record
        slot.tell()

    # -- inside ----------------------------------------------------------------------------------------------------

    def exec(self, sandbox_id: str, command: ExecCommand) -> ExecProcess:
        slot, places = self._both(sandbox_id)
        with slot.lock:  # a pause in between would leave the start for the resume
            record = self._load(places)
            if record is None or record.state is not EngineState.RUNNING:
                raise not_running(sandbox_id, record)
            return start_exec(self._engine, places, record, command, partial(_awake, slot, places))

    def logs(self, sandbox_id: str, stream: Stream, offset: int, limit: int) -> LogPiece:
        slot, places = self._both(sandbox_id)
        try:
            with slot.lock:
                if self._load(places) is None:
                    raise not_running(sandbox_id, None)
                places.volume.mount()  # after a reboot of the host it is not
                file = places.log(stream).open("rb")
        except OSError as error:
            raise RuntimeFailure(ErrorCode.INTERNAL, f"logs of sandbox {sandbox_id}: {error}") from error
        with file:
            size = os.fstat(file.fileno()).st_size
            file.seek(offset)
            return LogPiece(file.read(limit), size)

    def usage(self, sandbox_id: str) -> UsageNow:
        slot, places = self._both(sandbox_id)
        try:
            with _awake(slot, places):
                record = self._load(places)
                if record is None or record.state not in _USING:
                    raise not_running(sandbox_id, record)
                pids = 0 if record.state is EngineState.CHECKPOINTED else places.control.count()
            used = places.volume.used_mb()
        except (ControlError, ControlLostError, OSError) as error:
            raise RuntimeFailure(ErrorCode.SANDBOX_NOT_RUNNING, f"sandbox {sandbox_id}: {error}") from error
        return UsageNow(places.cgroup.memory_mb(), places.cgroup.cpu_seconds(), used, pids)

    # -- records ---------------------------------------------------------------------------------------------------

    def _both(self, sandbox_id: str) -> tuple[Slot, Places]:
        return self._slots.of(sandbox_id), self._layout.places(sandbox_id)

    def _load_by_id(self, sandbox_id: str) -> Record | None:
        return self._load(self._layout.places(sandbox_id))

    def _load(self, places: Places) -> Record | None:
        """What is recorded; ``None`` also for a sandbox whose delete has begun."""
        try:
            return None if places.doom.exists() else Record.load(places.directory)
        except ValueError:
            # It cannot be known what it was; the sweep removes it.
            log.exception("the record of sandbox %s is damaged", places.sandbox_id)
            return None


@contextmanager
def _awake(slot: Slot, places: Places) -> Iterator[None]:
    """Around a question to the kernel of a sandbox that may be paused; no pause or resume comes in between."""
    with slot.lock, pause.awake(places):
        yield


def _overtaken(sandbox_id: str) -> RuntimeFailure:
    return RuntimeFailure(ErrorCode.CONFLICT, f"sandbox {sandbox_id} was deleted while it was started")
