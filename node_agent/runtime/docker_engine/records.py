"""What this node wrote down of a sandbox: the order, and where its parts are.

Docker's labels say which containers are ours; the order itself holds secrets (its environment), so it lies in a file
that only root can read.
"""

import logging
from pathlib import Path
from typing import Final, Self

from pydantic import BaseModel, ConfigDict

from gateway.wire.sandboxes import SandboxSpec
from node_agent.host.disk import write_atomically
from node_agent.runtime.base import Death, Order

log = logging.getLogger(__name__)

_FILE: Final = "record.json"
_DELETED: Final = "deleted"


class Record(BaseModel):
    """One sandbox on this node.

    Attributes:
        image_digest: of the image that it was made from.
        working_dir: where its processes start unless they say otherwise.
        layer: the container's directory in Docker's overlay2 store, over which its volume is mounted.
        network: its Docker network.
        inherited: its workspace is an earlier generation's.
        up: its first process has begun; before that it is debris, if nobody is creating it.
        death: how it ended where Docker does not know, because the container never ran or is gone.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    sandbox_id: str
    generation: int
    operation_id: str
    spec: SandboxSpec
    spec_hash: str
    image_digest: str | None = None
    working_dir: str = "/"
    layer: Path | None = None
    network: str | None = None
    inherited: bool = False
    up: bool = False
    death: Death | None = None

    @classmethod
    def of(cls, order: Order) -> Self:
        """The first record of an order."""
        return cls(
            sandbox_id=order.sandbox_id,
            generation=order.generation,
            operation_id=order.operation_id,
            spec=order.spec,
            spec_hash=order.spec_hash,
        )

    @property
    def leaves_workspace(self) -> bool:
        """Whether the next start takes over the workspace.  One that was never told to run has none of its own."""
        return self.inherited or self.up or self.death is not None

    @property
    def order(self) -> Order:
        """The order that made it."""
        return Order(self.sandbox_id, self.generation, self.operation_id, self.spec, self.spec_hash)

    def but(self, **changes: object) -> Self:
        """The same with some fields changed."""
        return self.model_copy(update=changes)


class Records:
    """Records of all sandboxes, one directory each."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def directory(self, sandbox_id: str) -> Path:
        """Where everything of one sandbox lies."""
        return self.root / sandbox_id

    def ids(self) -> list[str]:
        """All sandboxes that have a directory, sorted; not each of them has a record."""
        return sorted(entry.name for entry in self.root.iterdir()) if self.root.is_dir() else []

    def load(self, sandbox_id: str) -> Record | None:
        """The record; ``None`` when there is none, or the sandbox is being deleted.

        Raises:
            ValueError: it is damaged, or a newer release wrote it.
        """
        directory = self.directory(sandbox_id)
        if (directory / _DELETED).exists():
            return None
        return self._read(directory)

    def save(self, record: Record) -> Record:
        """Writes the record, whole or not at all.

        Raises:
            OSError: the directory is gone, or the host's disk is full.
        """
        directory = self.directory(record.sandbox_id)
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(directory / _FILE, record.model_dump_json().encode(), durable=True)
        return record

    def mark_deleted(self, sandbox_id: str) -> Record | None:
        """From now on the sandbox counts as deleted, also after a crash in the middle; its last record."""
        directory = self.directory(sandbox_id)
        if not directory.is_dir():
            return None
        try:
            (directory / _DELETED).touch()
        except OSError as error:
            # The mark only survives a crash of the agent; on a full disk it is the delete that makes room.
            log.warning("sandbox %s: its delete could not be marked: %s", sandbox_id, error)
        return self._read(directory)

    def _read(self, directory: Path) -> Record | None:
        try:
            return Record.model_validate_json((directory / _FILE).read_bytes())
        except FileNotFoundError:
            return None
