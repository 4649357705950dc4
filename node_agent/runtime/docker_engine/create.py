"""Brings one sandbox up, and takes it down."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.wire.errors import ErrorCode
from gateway.wire.states import DeathReason
from node_agent.errors import RuntimeFailure
from node_agent.host.disk import out_of_space
from node_agent.host.images import Image
from node_agent.host.volume import Volume, Volumes, remove_tree
from node_agent.runtime.base import Order
from node_agent.runtime.docker_engine import container_config, host_files, scripts
from node_agent.runtime.docker_engine.client import Api, Hijacked, Refused, calling
from node_agent.runtime.docker_engine.containers import Containers
from node_agent.runtime.docker_engine.host_files import prepare
from node_agent.runtime.docker_engine.locks import Ticket
from node_agent.runtime.docker_engine.networks import DockerNetworks
from node_agent.runtime.docker_engine.process import start_failure
from node_agent.runtime.docker_engine.records import Record, Records
from node_agent.runtime.docker_engine.scripts import Mark, Scanner


@dataclass(frozen=True)
class Builder:
    """Makes and removes containers and everything around them.

    Attributes:
        tools: where the busybox is kept.
    """

    api: Api
    records: Records
    containers: Containers
    volumes: Volumes
    networks: DockerNetworks
    tools: Path
    tag: str

    def up(self, order: Order, image: Image, ticket: Ticket, *, inherited: bool) -> Record:
        """Brings the sandbox up and returns once its first process has begun.

        Args:
            order: what to bring up.
            image: its image.
            ticket: shows whether a delete came in between.
            inherited: whether an earlier generation's workspace is there.

        Raises:
            RuntimeFailure: as `SandboxRuntime.create`; what was made stays for the caller to take down.
        """
        try:
            return self._up(order, image, ticket, inherited=inherited)
        except OSError as error:
            code = ErrorCode.DISK_FULL if out_of_space(error) else ErrorCode.INTERNAL
            raise RuntimeFailure(code, f"sandbox {order.sandbox_id} did not start: {error}") from error

    def _up(self, order: Order, image: Image, ticket: Ticket, *, inherited: bool) -> Record:
        name = self.containers.name(order.sandbox_id, order.generation)
        record = self.records.save(
            Record.of(order).but(
                image_digest=image.digest,
                working_dir=container_config.working_directory(order.spec, image),
                network=None if order.spec.network == "none" else name,
                inherited=inherited,
            )
        )
        volume = self.volumes.ensure(self.records.directory(order.sandbox_id), order.spec.disk_mb)
        host_files.forget(volume)
        ticket.check()
        if record.network:
            self.networks.create(record.network)
        prefix = scripts.new_prefix()
        body = self._body(record, volume, image, prefix)
        with _starting(record):
            container = self.api.client.create_container_from_config(body, name)["Id"]
        ticket.check()
        record = self._bound(record, container, volume)
        self._start(record, container, prefix, ticket)
        return self.records.save(record.but(up=True))

    def down(self, sandbox_id: str, record: Record | None) -> None:
        """Removes containers and network of every generation; the volume stays.  Idempotent.

        Raises:
            RuntimeFailure: the engine does not do it.
        """
        for container in self.containers.ids(sandbox_id):
            self.containers.remove(container)
        if record is None:
            return
        if record.layer is not None:
            host_files.unmount(record.layer)
        if record.network:
            self.networks.remove(record.network)

    def destroy(self, sandbox_id: str) -> None:
        """Removes every trace, workspace included.  Idempotent.

        Raises:
            RuntimeFailure: engine or host do not do it.
        """
        record = self.records.mark_deleted(sandbox_id)
        self.down(sandbox_id, record)
        directory = self.records.directory(sandbox_id)
        try:
            Volume(directory).destroy()
            remove_tree(directory)
        except OSError as error:
            raise RuntimeFailure(ErrorCode.INTERNAL, f"files of sandbox {sandbox_id}: {error}") from error

    def _body(self, record: Record, volume: Volume, image: Image, prefix: str) -> dict[str, Any]:
        with calling(f"image {image.id}", ErrorCode.IMAGE_ERROR):
            inspected = self.api.client.inspect_image(image.id)
        place = prepare(record, volume, image, inspected, self.tools)
        parent = container_config.cgroup_parent(self.tag) if self.api.uses_cgroupfs else ""
        return container_config.container(record.order, image, place, container_config.Names(self.tag, prefix, parent))

    def _bound(self, record: Record, container: str, volume: Volume) -> Record:
        with calling(f"sandbox {record.sandbox_id}"):
            own = host_files.place(self.api.client.inspect_container(container))
        record = self.records.save(record.but(layer=own))
        try:
            host_files.mount(own, volume)
        except OSError as error:
            raise RuntimeFailure(ErrorCode.INTERNAL, f"volume of sandbox {record.sandbox_id}: {error}") from error
        return record

    def _start(self, record: Record, container: str, prefix: str, ticket: Ticket) -> None:
        path = f"/v{self.api.version}/containers/{container}/attach?stream=1&stdout=1&stderr=1"
        try:
            output = Hijacked(self.api.base_url, path, {})
        except Refused as error:
            raise RuntimeFailure(ErrorCode.INTERNAL, f"sandbox {record.sandbox_id}: {error.message}") from error
        with contextlib.closing(output), ticket.waiting(output.close):
            with _starting(record):
                self.api.client.start(container)
            try:
                _await_first(output, prefix, record)
            finally:
                ticket.check()


@contextlib.contextmanager
def _starting(record: Record) -> Iterator[None]:
    """What the engine refuses here is the spec's fault: an unknown user, a missing runtime, a bad path."""
    try:
        with calling(f"sandbox {record.sandbox_id}", ErrorCode.START_ERROR):
            yield
    except RuntimeFailure as failure:
        failure.reason = DeathReason.START_ERROR if failure.code is ErrorCode.START_ERROR else None
        raise


def _await_first(output: Hijacked, prefix: str, record: Record) -> None:
    """Until the first process begins; raises when it cannot."""
    program = (*record.spec.command, "its first process")[0]
    scanner = Scanner(prefix)
    said = b""
    while (received := output.read()) is not None:
        for item in scanner.feed(received[1]):
            if not isinstance(item, Mark):
                said += item
            elif item.kind == scripts.STARTED:
                return
            else:
                raise start_failure(item, program, record.working_dir)
    text = said.decode(errors="replace").strip() or "it said nothing"
    raise RuntimeFailure(
        ErrorCode.START_ERROR,
        f"sandbox {record.sandbox_id}: {program} could not be started: {text}",
        reason=DeathReason.START_ERROR,
    )
