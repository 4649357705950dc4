"""A sandbox from its image to a running first process, and back to nothing.

`DockerSteps.bring_up` reads from start to end: volume, network, container, the container's layer on the volume, and the
start itself.  `node_agent.runtime.incarnation` decides when each step is taken; callers hold the sandbox's lock.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.wire.errors import ErrorCode
from gateway.wire.sandboxes import SandboxSpec
from gateway.wire.states import DeathReason
from node_agent.errors import RuntimeFailure
from node_agent.host import cgroup, devices
from node_agent.host.disk import host_errors
from node_agent.host.engine_errors import refusal
from node_agent.host.images import EngineImage, Images
from node_agent.host.volume import Volume, Volumes
from node_agent.runtime.base import EngineState, Found, Order
from node_agent.runtime.docker_engine import container_config, containers, host_files, probe, scripts
from node_agent.runtime.docker_engine.client import Api, StreamRefusedError, UpgradedStream, calling
from node_agent.runtime.docker_engine.container_config import ContainerNames, HostParts
from node_agent.runtime.docker_engine.containers import Containers
from node_agent.runtime.docker_engine.host_files import CheckedLayers
from node_agent.runtime.docker_engine.networks import DockerNetworks
from node_agent.runtime.docker_engine.process import start_failure
from node_agent.runtime.docker_engine.scripts import Mark, MarkScanner
from node_agent.runtime.incarnation import EngineSteps
from node_agent.runtime.locks import StartAttempt
from node_agent.runtime.record import DockerPart, DockerRecord, DockerRecords


@dataclass(frozen=True)
class DockerSteps(EngineSteps[DockerPart, EngineImage]):
    """What the Docker engine does of the life of an incarnation.

    Attributes:
        layers: of images, checked.
        allow_runc: whether runc may run without user namespaces.
        tools: where the static programs are kept.
        tag: of the node, 8 hex digits.
        ended: called once all processes of an incarnation have ended, before its control group and network go.
    """

    api: Api
    images: Images
    records: DockerRecords
    containers: Containers
    volumes: Volumes
    networks: DockerNetworks
    layers: CheckedLayers
    allow_runc: bool
    tools: Path
    tag: str
    ended: Callable[[DockerRecord], None]

    def prepare(self, order: Order) -> EngineImage:
        check_capabilities(order.spec)
        if order.spec.isolation == "runc":
            probe.check_user_namespaces(self.api, allow=self.allow_runc)
        probe.check_gpus(order.spec, probe.count_usable_gpus())
        image = self.images.resolve(order.spec.image)
        with calling(f"image {image.id}", ErrorCode.IMAGE_ERROR):
            inspected = self.api.client.inspect_image(image.id)
        self.layers.check(image, inspected)
        return image

    def plan(self, record: DockerRecord, prepared: EngineImage) -> DockerRecord:
        name = self.containers.name(record.sandbox_id, record.generation)
        return record.but(
            image_digest=prepared.digest, working_dir=container_config.working_directory(record.spec, prepared)
        ).with_part(network=None if record.spec.network == "none" else name)

    def bring_up(self, record: DockerRecord, prepared: EngineImage, attempt: StartAttempt) -> DockerRecord:
        volume = self.volumes.ensure(self.records.directory(record.sandbox_id), record.spec.disk_mb)
        host_files.remove_layer(volume)
        attempt.check()
        self._confine(record.sandbox_id)
        if record.part.network:
            self.networks.create(record.part.network)
        mark_prefix = scripts.new_prefix()
        container, parts = self._create_container(record, volume, prepared, mark_prefix)
        attempt.check()
        with calling(f"sandbox {record.sandbox_id}"):
            layer = host_files.layer_directory(self.api.client.inspect_container(container))
        record = self.records.save(record.with_part(layer=layer))
        host_files.mount_layer(layer, volume)
        host_files.hand_over(parts, layer)
        self._start(record, container, mark_prefix, attempt)
        return self.records.save(record.but(state=EngineState.RUNNING), durable=True)

    def _confine(self, sandbox_id: str) -> None:
        """Let containers open only the devices that an engine needs, where they are in the node's own group."""
        if self.api.uses_cgroupfs:
            with host_errors(f"devices of sandbox {sandbox_id}"):
                tag = container_config.cgroup_tag(self.tag)
                cgroup.confine_devices(tag, (*devices.DOCKER_RULES, *devices.gpu_rules()))

    def take_down(self, sandbox_id: str, record: DockerRecord | None) -> None:
        if record is not None and record.part.layer is not None:
            # Docker reads its own notes of a layer before it removes a container, and they may be on a damaged volume.
            host_files.unmount_layer(record.part.layer)
        for container in self.containers.ids(sandbox_id):  # of every generation
            self.containers.remove(container)
        if record is not None:
            self.ended(record)
        self.containers.clear_groups(sandbox_id)
        if record is not None and record.part.network:
            self.networks.remove(record.part.network)

    def inspect(self, record: DockerRecord) -> dict[str, Any] | None:
        """Return the container of an incarnation as Docker describes it; ``None`` when there is none.

        Raises:
            RuntimeFailure: the engine does not answer, or refuses.
        """
        try:
            return self.containers.inspect(record.sandbox_id, record.generation)
        except RuntimeFailure as failure:
            if failure.retryable or record.part.layer is None:
                raise
            # It could not read its notes of the layer; those below the damaged volume are whole.
            host_files.unmount_layer(record.part.layer)
            return self.containers.inspect(record.sandbox_id, record.generation)

    def found(self, record: DockerRecord) -> Found:
        state, death, started = record.state, record.death, None
        if state is EngineState.RUNNING:  # it was brought up; Docker knows what came after
            inspected = self.inspect(record)
            if inspected is None:
                state, death = EngineState.DEAD, containers.taken_away()
            else:
                state, started = containers.state(inspected), containers.started_at(inspected)
                death = containers.death(inspected, record.spec.isolation) if state is EngineState.DEAD else None
        return Found(
            order=record.order,
            state=state,
            isolation=record.spec.isolation,
            image_digest=record.image_digest,
            started_at=started,
            death=death,
        )

    def _create_container(
        self, record: DockerRecord, volume: Volume, image: EngineImage, mark_prefix: str
    ) -> tuple[str, HostParts]:
        """Create the container; return its id, and what it binds.  What Docker refuses here is wrong in the spec."""
        with calling(f"image {image.id}", ErrorCode.IMAGE_ERROR):
            inspected = self.api.client.inspect_image(image.id)
        parts = host_files.prepare(record, volume, image, inspected, self.tools)
        parent = self.containers.group(record.sandbox_id, record.generation).path if self.api.uses_cgroupfs else ""
        names = ContainerNames(self.tag, mark_prefix, parent)
        body = container_config.container(record.order, image, parts, names)
        name = self.containers.name(record.sandbox_id, record.generation)
        with calling(f"sandbox {record.sandbox_id}", ErrorCode.START_ERROR, reason=DeathReason.START_ERROR):
            made: dict[str, Any] = self.api.client.create_container_from_config(body, name)
        return made["Id"], parts

    def _start(self, record: DockerRecord, container: str, mark_prefix: str, attempt: StartAttempt) -> None:
        """Start the container and wait until its first process has begun."""
        path = f"/v{self.api.version}/containers/{container}/attach?stream=1&stdout=1&stderr=1"
        try:
            output = UpgradedStream(self.api.base_url, path, {})
        except StreamRefusedError as error:
            raise refusal(f"sandbox {record.sandbox_id}", error.message, ErrorCode.INTERNAL) from error
        with contextlib.closing(output), attempt.interruptible(output.close):
            with calling(f"sandbox {record.sandbox_id}", ErrorCode.START_ERROR, reason=DeathReason.START_ERROR):
                self.api.client.start(container)
            try:
                words = _await_first(output, mark_prefix, record)
            finally:
                attempt.check()
        if words is not None:
            raise self._not_started(record, container, words)

    def _not_started(self, record: DockerRecord, container: str, words: str) -> RuntimeFailure:
        """Return why the first process did not begin: by its own words or the engine's, or as the engine went away."""
        with calling(f"sandbox {record.sandbox_id}"):
            said = self.api.client.inspect_container(container)["State"]["Error"]
        what = f"sandbox {record.sandbox_id}: {_program(record)} could not be started"
        cause = words.strip() or said or "it gave no reason"
        return refusal(what, cause, ErrorCode.START_ERROR, DeathReason.START_ERROR)


def check_capabilities(spec: SandboxSpec) -> None:
    """Refuse capabilities that reach the host, whatever the gateway let through.

    Raises:
        RuntimeFailure: ``UNSUPPORTED``.
    """
    if not spec.host_level_capabilities:
        return
    raise RuntimeFailure(
        ErrorCode.UNSUPPORTED,
        f"sandbox {spec.id} asks for {', '.join(spec.host_level_capabilities)} with isolation runc, which would reach"
        " the host itself; drop them from security.cap_add, or use isolation gvisor",
    )


def _program(record: DockerRecord) -> str:
    return (*record.spec.command, "its first process")[0]


def _await_first(output: UpgradedStream, mark_prefix: str, record: DockerRecord) -> str | None:
    """Wait until the first process begins; return what was written where the stream ends before, else ``None``.

    Raises:
        RuntimeFailure: ``START_ERROR`` when it says why it cannot.
    """
    scanner = MarkScanner(mark_prefix)
    words = b""
    while (received := output.read()) is not None:
        for item in scanner.feed(received[1]):
            if not isinstance(item, Mark):
                words += item
            elif item.kind == scripts.STARTED:
                return None
            else:
                raise start_failure(item, _program(record), record.working_dir)
    return words.decode(errors="replace")
