"""The Docker engine as a sandbox runtime."""

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar, Final

from docker.errors import APIError, NotFound

from gateway.wire.errors import ErrorCode
from gateway.wire.limits import MIB
from gateway.wire.sandboxes import RuntimeName
from gateway.wire.states import DeathReason
from node_agent.errors import RuntimeFailure
from node_agent.host import cgroup, programs
from node_agent.host.disk import host_errors
from node_agent.host.firewall import DEFAULT_RULES, Firewall, FirewallRules, PullFirewall
from node_agent.host.image_budget import ImageBudget, Kind
from node_agent.host.images import Images
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
    deleted,
    not_running,
)
from node_agent.runtime.counters import CounterFiles
from node_agent.runtime.docker_engine import container_config, containers
from node_agent.runtime.docker_engine.client import Api, calling
from node_agent.runtime.docker_engine.containers import Containers
from node_agent.runtime.docker_engine.create import DockerSteps
from node_agent.runtime.docker_engine.exec import DockerExecs
from node_agent.runtime.docker_engine.exit_watch import ContainerExits
from node_agent.runtime.docker_engine.host_files import CheckedLayers, log_file
from node_agent.runtime.docker_engine.networks import DockerNetworks
from node_agent.runtime.docker_engine.probe import DockerProbe
from node_agent.runtime.incarnation import Incarnations
from node_agent.runtime.locks import SandboxLocks
from node_agent.runtime.record import DockerPart, DockerRecord, RecordStore

log = logging.getLogger(__name__)

_NANOSECONDS: Final = 1e9


class DockerRuntime(SandboxRuntime):
    """Sandboxes as containers of a Docker engine, under gVisor or runc.

    Args:
        root: directory of the node; everything here lies below ``docker`` in it.
        tag: 8 hex digits, in every host-wide name.
        base_url: of the engine, a unix:// URL.  The engine runs on this machine and sees the same mounts.
        rules: what the firewall of sandboxes with a network lets through; and where registries may be.
        allow_runc_without_user_namespaces: whether to offer runc where root of a container is root of the host.
        budget: what images may take of the disk; ``None`` for no bound.
    """

    name: ClassVar[RuntimeName] = "docker"

    def __init__(
        self,
        root: Path,
        *,
        tag: str,
        base_url: str,
        rules: FirewallRules = DEFAULT_RULES,
        allow_runc_without_user_namespaces: bool = False,
        budget: ImageBudget | None = None,
    ) -> None:
        own = root / "docker"
        self._tag = tag
        self._tools = own / "tools"
        self._api = Api(base_url)
        firewall = PullFirewall(f"{tag}_docker", base_url, rules.addresses)
        self._images = Images(lambda: self._api.client, rules.addresses, firewall, budget=budget)
        if budget is not None:
            budget.remove_with(Kind.PULLED, self._images.discard)
        self._records = RecordStore(own / "sandboxes", DockerPart)
        self._containers = Containers(self._api, tag)
        self._networks = DockerNetworks(self._api, tag, container_config.LABEL, rules)
        self._steps = DockerSteps(
            api=self._api,
            images=self._images,
            records=self._records,
            containers=self._containers,
            volumes=Volumes(own / "templates"),
            networks=self._networks,
            layers=CheckedLayers(),
            allow_runc=allow_runc_without_user_namespaces,
            tools=self._tools,
            tag=tag,
            ended=self._ended,
        )
        self._locks = SandboxLocks()
        self._incarnations = Incarnations(self._records, self._locks, self._steps)
        self._exits = ContainerExits(self._api, tag)
        self._execs = DockerExecs(self._api, self._containers, self._exits)
        self._facts: RuntimeFacts | None = None

    def probe(self) -> RuntimeFacts:
        if self._facts is None:
            self._facts = DockerProbe(self, self._api, self._tag, self._tools).run()
        return self._facts

    def images(self) -> list[str]:
        return self._images.local()

    def firewalls(self) -> list[Firewall]:
        return [self._networks.firewall]

    def busybox(self, sandbox_id: str) -> str:
        return programs.BUSYBOX_INSIDE

    # -- incarnations ----------------------------------------------------------------------------------------------

    def create(self, order: Order) -> Found:
        return self._incarnations.create(order)

    def delete(self, sandbox_id: str) -> None:
        self._incarnations.delete(sandbox_id)

    def found(self) -> list[Found]:
        return [self._steps.found(record) for record in self._records.all()]

    def wait(self, sandbox_id: str) -> Death:
        record = self._records.load(sandbox_id)
        if record is None:
            return deleted(sandbox_id)
        with self._containers.first_process(sandbox_id, record.generation) as kernel:
            with calling(f"sandbox {sandbox_id}"), contextlib.suppress(NotFound):
                self._api.client.wait(self._containers.name(sandbox_id, record.generation), timeout=None)
            killed = record.spec.isolation == "gvisor" and containers.was_killed(kernel)
        if killed:
            self._note_kill(sandbox_id, record.generation)
        after = self._records.load(sandbox_id)
        if after is None or after.generation != record.generation:
            return deleted(sandbox_id)
        return self._steps.found(after).death or deleted(sandbox_id)

    def _note_kill(self, sandbox_id: str, generation: int) -> None:
        """Write down that gVisor's kernel was killed, which Docker tells as an exit code of the first process."""
        with self._locks.of(sandbox_id).held():  # a call in flight may have killed it to replace or delete it
            record = self._records.load(sandbox_id)
            if record is None or record.generation != generation:
                return
            death = self._steps.found(record).death
            if death is not None and death.reason is DeathReason.EXITED:
                try:
                    self._records.save(record.but(state=EngineState.DEAD, death=containers.killed(death)))
                except OSError as error:
                    log.error("sandbox %s: that its engine was killed cannot be recorded: %s", sandbox_id, error)

    def sweep(self) -> list[str]:
        gone: list[str] = []
        owned = {record.sandbox_id: record for record in self._records.all()}
        for sandbox_id in self._records.ids():
            if sandbox_id not in owned:
                gone += self._swept(f"remains of sandbox {sandbox_id}", self._incarnations.delete, sandbox_id)
        for container, sandbox_id in self._containers.all().items():
            if sandbox_id not in owned:
                sentence = f"container {container[:12]} of sandbox {sandbox_id}"
                gone += self._swept(sentence, self._containers.remove, container)
        gone += self._networks.sweep({record.part.network for record in owned.values() if record.part.network})
        if not owned:
            gone += self._images.release()
            if programs.release(self._tools):
                gone.append(f"mount of the programs in {self._tools}")
        return gone + self._containers.sweep_groups()

    def _swept(self, what: str, remove: Callable[[str], None], name: str) -> list[str]:
        """Remove one thing, and return its sentence; where it does not go, neither the others nor the node wait."""
        try:
            remove(name)
        except RuntimeFailure as failure:
            log.error("%s could not be removed: %s", what, failure.message)
            return []
        return [what]

    def close(self) -> None:
        self._exits.close()
        self._api.close()
        if self._records.ids():
            return
        try:
            programs.release(self._tools)
            self._networks.firewall.remove()
            self._images.release()
            cgroup.remove_parent(container_config.cgroup_tag(self._tag))
        except (CommandError, OSError) as error:
            # The process is about to end; the next start's sweep meets what stays.
            log.warning("what served the sandboxes of this node could not be removed: %s", error)

    def fail(self, sandbox_id: str, reason: DeathReason, detail: str) -> None:
        with self._locks.of(sandbox_id).changing():
            record = self._records.load(sandbox_id)
            if record is None or record.state is not EngineState.RUNNING:
                return
            inspected = self._steps.inspect(record)
            if inspected is None or containers.state(inspected) is EngineState.DEAD:
                return  # it has ended by itself, and Docker knows how
            death = Death(reason, None, detail, datetime.now(UTC))
            with host_errors(f"sandbox {sandbox_id} is to end"), calling(f"sandbox {sandbox_id} is to end"):
                self._records.save(record.but(state=EngineState.DEAD, death=death))
                self._containers.end(inspected)
            self._ended(record)

    # -- freezing --------------------------------------------------------------------------------------------------

    def pause(self, sandbox_id: str) -> None:
        with self._switching(sandbox_id, EngineState.PAUSED) as container:
            self._api.client.pause(container)

    def resume(self, sandbox_id: str) -> None:
        with self._switching(sandbox_id, EngineState.RUNNING) as container:
            self._api.client.unpause(container)

    @contextlib.contextmanager
    def _switching(self, sandbox_id: str, wanted: EngineState) -> Iterator[str]:
        """Yield the container for a call that brings it to ``wanted``; no error if it is in that state already.

        Raises:
            RuntimeFailure: ``SANDBOX_NOT_RUNNING``; ``INTERNAL`` when the engine refuses.
        """
        record = self._known(sandbox_id)
        with calling(f"sandbox {sandbox_id} is to be {wanted}"):
            try:
                yield self._containers.name(sandbox_id, record.generation)
            except APIError as error:
                inspected = self._containers.inspect(sandbox_id, record.generation)
                state = None if inspected is None else containers.state(inspected)
                if state not in (EngineState.RUNNING, EngineState.PAUSED):
                    raise not_running(sandbox_id, state) from error
                if state is not wanted:
                    raise

    # -- inside ----------------------------------------------------------------------------------------------------

    def exec(self, sandbox_id: str, command: ExecCommand) -> ExecProcess:
        return self._execs.start(self._known(sandbox_id), command)

    def logs(self, sandbox_id: str, stream: Stream, offset: int, limit: int) -> LogPiece:
        path = log_file(self._volume(sandbox_id), stream)
        try:
            with path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(min(offset, size))  # file systems refuse to seek beyond their longest file
                return LogPiece(file.read(limit), size)
        except FileNotFoundError:  # the first process never began
            return LogPiece(b"", 0)

    def usage(self, sandbox_id: str) -> UsageNow:
        record = self._known(sandbox_id)
        with calling(f"usage of sandbox {sandbox_id}"):
            try:
                name = self._containers.name(sandbox_id, record.generation)
                stats = self._api.client.stats(name, stream=False, one_shot=True)
            except NotFound as error:
                raise not_running(sandbox_id) from error
        if not stats.get("memory_stats"):
            raise not_running(sandbox_id, EngineState.DEAD)
        return UsageNow(
            memory_mb=stats["memory_stats"].get("usage", 0) / MIB,
            cpu_seconds=stats["cpu_stats"]["cpu_usage"]["total_usage"] / _NANOSECONDS,
            disk_mb=self._volume(sandbox_id).used_mb(),
            pids=stats["pids_stats"].get("current", 0),
        )

    def counter_files(self, sandbox_id: str) -> CounterFiles | None:
        record = self._records.load(sandbox_id)
        return None if record is None else self._files_of(record)

    def _files_of(self, record: DockerRecord) -> CounterFiles:
        # systemd removes the group together with the container, so nothing could be counted at its end.
        group = self._containers.group(record.sandbox_id, record.generation) if self._api.uses_cgroupfs else None
        bridge = None if record.part.network is None else self._networks.bridge(record.part.network)
        return CounterFiles(record.generation, group, bridge, Volume(self._records.directory(record.sandbox_id)))

    def _ended(self, record: DockerRecord) -> None:
        self._ending(record.sandbox_id, self._files_of(record))

    def _known(self, sandbox_id: str) -> DockerRecord:
        record = self._records.load(sandbox_id)
        if record is None:
            raise not_running(sandbox_id)
        return record

    def _volume(self, sandbox_id: str) -> Volume:
        self._known(sandbox_id)
        volume = Volume(self._records.directory(sandbox_id))
        try:
            volume.mount()  # after a restart of the host it is not
        except OSError as error:
            raise RuntimeFailure(ErrorCode.INTERNAL, f"volume of sandbox {sandbox_id}: {error}") from error
        return volume
