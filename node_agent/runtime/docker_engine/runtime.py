"""The Docker engine as a sandbox runtime."""

import contextlib
import logging
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar, Final

from gateway.wire.errors import CODE_RULES, ErrorCode
from gateway.wire.limits import MIB
from gateway.wire.sandboxes import RuntimeName
from gateway.wire.states import DeathReason
from node_agent.errors import RuntimeFailure
from node_agent.host import cgroup, programs
from node_agent.host.images import Image, Images
from node_agent.host.process import CommandError
from node_agent.host.volume import Volume, Volumes
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
from node_agent.runtime.docker_engine import container_config, containers, probe
from node_agent.runtime.docker_engine.client import Api, APIError, NotFound, calling
from node_agent.runtime.docker_engine.containers import Containers
from node_agent.runtime.docker_engine.create import Builder
from node_agent.runtime.docker_engine.exec import Execs, not_running
from node_agent.runtime.docker_engine.exit_watch import Deaths
from node_agent.runtime.docker_engine.host_files import log_file
from node_agent.runtime.docker_engine.locks import Slots, Ticket
from node_agent.runtime.docker_engine.networks import DockerNetworks
from node_agent.runtime.docker_engine.probe import Probe
from node_agent.runtime.docker_engine.records import Record, Records

log = logging.getLogger(__name__)

_NANOSECONDS: Final = 1e9


class DockerRuntime(SandboxRuntime):
    """Sandboxes as containers of a Docker engine, under gVisor or runc.

    Args:
        root: directory of the node; everything here lies below ``docker`` in it.
        tag: 8 hex digits, in every host-wide name.
        base_url: of the engine, a unix:// URL.  The engine runs on this machine and sees the same mounts.
    """

    name: ClassVar[RuntimeName] = "docker"

    def __init__(self, root: Path, *, tag: str, base_url: str) -> None:
        own = root / "docker"
        self._tag = tag
        self._tools = own / "tools"
        self._api = Api(base_url)
        self._images = Images(lambda: self._api.client)
        self._records = Records(own / "sandboxes")
        self._containers = Containers(self._api, tag)
        self._networks = DockerNetworks(self._api, tag, container_config.LABEL)
        self._builder = Builder(
            api=self._api,
            records=self._records,
            containers=self._containers,
            volumes=Volumes(own / "templates"),
            networks=self._networks,
            tools=self._tools,
            tag=tag,
        )
        self._deaths = Deaths(self._api, tag)
        self._execs = Execs(self._api, self._containers, self._deaths)
        self._slots = Slots()
        self._facts: RuntimeFacts | None = None

    def probe(self) -> RuntimeFacts:
        if self._facts is None:
            self._facts = Probe(self, self._api, self._tag, self._tools).run()
        return self._facts

    def create(self, order: Order) -> Found:
        with self._slots.creating(order.sandbox_id) as (ticket, lock):
            with lock:
                existing = self._existing(order)
            if existing is not None:
                return existing
            try:
                probe.check(order.spec, probe.count())
                # Outside the lock: a pull may take long, and a delete must not wait for it.
                image = self._images.resolve(order.spec.image)
            except RuntimeFailure as failure:
                with lock:
                    self._end_earlier(order, failure)
                raise
            with lock:
                ticket.check()
                return self._existing(order) or self._found(self._built(order, image, ticket))

    def delete(self, sandbox_id: str) -> None:
        with self._slots.deleting(sandbox_id):
            self._builder.destroy(sandbox_id)

    def found(self) -> list[Found]:
        records = [record for sandbox_id in self._records.ids() if (record := self._records.load(sandbox_id))]
        return [self._found(record) for record in records]

    def wait(self, sandbox_id: str) -> Death:
        record = self._records.load(sandbox_id)
        if record is None:
            return containers.deleted(sandbox_id)
        with calling(f"sandbox {sandbox_id}"), contextlib.suppress(NotFound):
            self._api.client.wait(self._containers.name(sandbox_id, record.generation), timeout=None)
        after = self._records.load(sandbox_id)
        if after is None or after.generation != record.generation:
            return containers.deleted(sandbox_id)
        return self._found(after).death or containers.deleted(sandbox_id)

    def sweep(self) -> list[str]:
        gone: list[str] = []
        records = {sandbox_id: self._records.load(sandbox_id) for sandbox_id in self._records.ids()}
        for sandbox_id in (sandbox_id for sandbox_id, record in records.items() if record is None):
            with self._slots.changing(sandbox_id):
                self._builder.destroy(sandbox_id)
            gone.append(f"remains of sandbox {sandbox_id}")
        owned = {record.order.sandbox_id: record for record in records.values() if record}
        for container, sandbox_id in self._containers.all().items():
            if sandbox_id not in owned:
                self._containers.remove(container)
                gone.append(f"container {container[:12]} of sandbox {sandbox_id}")
        gone += self._networks.sweep({record.network for record in owned.values() if record.network})
        if not owned and programs.release(self._tools):
            gone.append(f"mount of the programs in {self._tools}")
        return gone + self._containers.sweep_groups()

    def pause(self, sandbox_id: str) -> None:
        self._freeze(sandbox_id, "pause", EngineState.PAUSED)

    def resume(self, sandbox_id: str) -> None:
        self._freeze(sandbox_id, "unpause", EngineState.RUNNING)

    def exec(self, sandbox_id: str, command: ExecCommand) -> ExecProcess:
        return self._execs.start(self._known(sandbox_id), command)

    def busybox(self, sandbox_id: str) -> str:
        return programs.BUSYBOX_INSIDE

    def logs(self, sandbox_id: str, stream: Stream, offset: int, limit: int) -> LogPiece:
        path = log_file(self._volume(sandbox_id), stream.value)
        try:
            with path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(offset)
                return LogPiece(file.read(limit), size)
        except FileNotFoundError:  # the first process never began
            return LogPiece(b"", 0)

    def usage(self, sandbox_id: str) -> UsageNow:
        record = self._known(sandbox_id)
        with calling(f"usage of sandbox {sandbox_id}"):
            try:
                stats = self._api.client.stats(self._container(record), stream=False, one_shot=True)
            except NotFound as error:
                raise not_running(sandbox_id) from error
        if not stats.get("memory_stats"):
            raise not_running(sandbox_id)
        return UsageNow(
            memory_mb=stats["memory_stats"].get("usage", 0) / MIB,
            cpu_seconds=stats["cpu_stats"]["cpu_usage"]["total_usage"] / _NANOSECONDS,
            disk_mb=self._volume(sandbox_id).used_mb(),
            pids=stats["pids_stats"].get("current", 0),
        )

    def images(self) -> list[str]:
        return self._images.local()

    def close(self) -> None:
        self._deaths.close()
        self._api.close()
        if self._records.ids():
            return
        try:
            programs.release(self._tools)
            self._networks.firewall.remove()
            cgroup.remove_parent(container_config.cgroup_tag(self._tag))
        except (CommandError, OSError) as error:
            # The process is about to end; the next start's sweep meets what stays.
            log.warning("what served the sandboxes of this node could not be removed: %s", error)

    def _known(self, sandbox_id: str) -> Record:
        record = self._records.load(sandbox_id)
        if record is None:
            raise not_running(sandbox_id)
        return record

    def _container(self, record: Record) -> str:
        return self._containers.name(record.sandbox_id, record.generation)

    def _volume(self, sandbox_id: str) -> Volume:
        self._known(sandbox_id)
        volume = Volume(self._records.directory(sandbox_id))
        try:
            volume.mount()  # after a restart of the host it is not
        except OSError as error:
            raise RuntimeFailure(ErrorCode.INTERNAL, f"volume of sandbox {sandbox_id}: {error}") from error
        return volume

    def _freeze(self, sandbox_id: str, call: str, wanted: EngineState) -> None:
        record = self._known(sandbox_id)
        with calling(f"{call} of sandbox {sandbox_id}"):
            try:
                getattr(self._api.client, call)(self._container(record))
            except APIError as error:
                inspected = self._containers.inspect(sandbox_id, record.generation)
                if inspected is None or containers.state(inspected) not in (EngineState.RUNNING, EngineState.PAUSED):
                    raise not_running(sandbox_id) from error
                if containers.state(inspected) is not wanted:
                    raise

    # -- create --------------------------------------------------------------------------------------------------

    def _existing(self, order: Order) -> Found | None:
        """The sandbox of this very order, if it ran or runs.

        Raises:
            RuntimeFailure: ``CONFLICT`` when a newer generation is there.
        """
        record = self._records.load(order.sandbox_id)
        if record is None or record.generation < order.generation:
            return None
        if record.generation > order.generation:
            raise RuntimeFailure(
                ErrorCode.CONFLICT,
                f"sandbox {order.sandbox_id} is here in generation {record.generation}, newer than {order.generation}",
            )
        return self._found(record) if record.up else None

    def _built(self, order: Order, image: Image, ticket: Ticket) -> Record:
        """Takes down what is there of earlier generations and brings this one up; on failure, nothing of it stays."""
        record = self._records.load(order.sandbox_id)
        keep = record is not None and record.leaves_workspace
        if keep:
            self._builder.down(order.sandbox_id, record)
        else:
            self._builder.destroy(order.sandbox_id)
        try:
            return self._builder.up(order, image, ticket, inherited=keep)
        except RuntimeFailure as failure:
            self._undo(order, keep, failure)
            raise
        except OSError as error:
            refusal = RuntimeFailure(ErrorCode.INTERNAL, f"sandbox {order.sandbox_id}: {error}")
            self._undo(order, keep, refusal)
            raise refusal from error

    def _end_earlier(self, order: Order, failure: RuntimeFailure) -> None:
        """Its next generation can never start: only the workspace of the one that is there stays."""
        record = self._records.load(order.sandbox_id)
        if record is not None and record.generation < order.generation and not CODE_RULES[failure.code].retryable:
            self._undo(order, record.leaves_workspace, failure)

    def _undo(self, order: Order, keep: bool, failure: RuntimeFailure) -> None:
        try:
            if keep:
                self._builder.down(order.sandbox_id, self._records.load(order.sandbox_id))
                reason = failure.reason or DeathReason.START_ERROR
                death = Death(reason, None, failure.message, datetime.now(UTC))
                self._records.save(Record.of(order).but(death=death))
            else:
                self._builder.destroy(order.sandbox_id)
        except (RuntimeFailure, OSError) as error:
            # The first failure is what the caller has to know; the next sweep or delete meets the rest again.
            log.error("sandbox %s: its remains could not be removed: %s", order.sandbox_id, error)

    def _found(self, record: Record) -> Found:
        inspected = self._containers.inspect(record.sandbox_id, record.generation)
        state, death, started = EngineState.CREATING, record.death, None
        if inspected is not None and record.up:
            state, started = containers.state(inspected), containers.started_at(inspected)
            death = containers.death(inspected, record.spec.isolation) if state is EngineState.DEAD else None
        elif record.up:
            death = containers.taken_away()
        return Found(
            order=record.order,
            state=EngineState.DEAD if death else state,
            isolation=record.spec.isolation,
            image_digest=record.image_digest,
            started_at=started,
            death=death,
        )
