"""What is kept of a sandbox on disk, so that a restarted agent finds it again: one file for each, for both engines.

Each sandbox has a directory of its own, with everything that lasts of it.  The record holds the order with its secrets
(the environment), so only root can read it.  A mark beside it says that a delete has begun: from then on the sandbox
counts as gone, also after a crash.
"""

import logging
from datetime import datetime
from pathlib import Path
from typing import Final, Generic, Self, TypeVar

from pydantic import BaseModel, ConfigDict

from gateway.wire.sandboxes import SandboxSpec
from node_agent.host.accounts import Account
from node_agent.host.disk import write_atomically
from node_agent.host.network import Net
from node_agent.runtime.base import Death, EngineState, Order

log = logging.getLogger(__name__)

_FILE: Final = "record.json"
_DELETING: Final = "deleting"


class RunscPart(BaseModel):
    """What runsc alone needs to find a sandbox again.

    Attributes:
        image_id: of the unpacked image that it runs over.
        image_env: the image's own environment.
        account: user of the first process.
        sentry_pid: host pid of the sandbox's kernel; ``None`` while none runs.
        net: its network; ``None`` without one.
        started_at: when its first process began.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    image_id: str | None = None
    image_env: dict[str, str] = {}
    account: Account = Account(0, 0)
    sentry_pid: int | None = None
    net: Net | None = None
    started_at: datetime | None = None


class DockerPart(BaseModel):
    """What the Docker engine alone needs to find a sandbox again.

    Attributes:
        layer: the container's directory in Docker's overlay2 store, over which its volume is mounted.
        network: its Docker network; ``None`` without one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    layer: Path | None = None
    network: str | None = None


Part = TypeVar("Part", bound=BaseModel)


class IncarnationRecord(BaseModel, Generic[Part]):
    """One sandbox as last settled.

    Attributes:
        gpus: names of the devices that it holds.
        state: ``creating`` until its first process runs.  Docker remembers what comes after that by itself; with runsc
            it is written here once it has happened.
        image_digest: of the image that it was made from.
        working_dir: where its processes start unless asked otherwise.
        inherited: whether the workspace is an earlier generation's.
        death: how it ended, where the engine does not keep that.
        part: what its engine needs.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    sandbox_id: str
    generation: int
    operation_id: str
    spec: SandboxSpec
    spec_hash: str
    gpus: tuple[str, ...] = ()
    state: EngineState = EngineState.CREATING
    image_digest: str | None = None
    working_dir: str = "/"
    inherited: bool = False
    death: Death | None = None
    part: Part

    @property
    def order(self) -> Order:
        """The order that made it."""
        return Order(self.sandbox_id, self.generation, self.operation_id, self.spec, self.spec_hash, self.gpus)

    @property
    def leaves_workspace(self) -> bool:
        """Whether the next start takes over the workspace.  One that never ran has none of its own."""
        return self.inherited or self.state is not EngineState.CREATING

    def but(self, **changes: object) -> Self:
        """Return the same with some fields changed."""
        return self.model_copy(update=changes)

    def with_part(self, **changes: object) -> Self:
        """Return the same with some fields of the engine's part changed."""
        return self.but(part=self.part.model_copy(update=changes))


class RecordStore(Generic[Part]):
    """The directories and records of all sandboxes of one engine.

    Args:
        root: directory that holds one directory for each sandbox.
        part: what the engine keeps beside the fields of every record.
    """

    def __init__(self, root: Path, part: type[Part]) -> None:
        self._root = root
        self._part = part

    def directory(self, sandbox_id: str) -> Path:
        """Return where everything of one sandbox lies."""
        return self._root / sandbox_id

    def ids(self) -> list[str]:
        """Return all sandboxes that have a directory, sorted; not each of them has a record."""
        return sorted(entry.name for entry in self._root.iterdir()) if self._root.is_dir() else []

    def new(self, order: Order) -> IncarnationRecord[Part]:
        """Return the first record of an order; nothing is written."""
        return IncarnationRecord[self._part](  # type: ignore[name-defined] # the model of the type that is held here
            sandbox_id=order.sandbox_id,
            generation=order.generation,
            operation_id=order.operation_id,
            spec=order.spec,
            spec_hash=order.spec_hash,
            gpus=order.gpus,
            part=self._part(),
        )

    def load(self, sandbox_id: str) -> IncarnationRecord[Part] | None:
        """Return the record; ``None`` when there is none, it is damaged, or the sandbox's delete has begun."""
        return None if (self.directory(sandbox_id) / _DELETING).exists() else self.remains(sandbox_id)

    def all(self) -> list[IncarnationRecord[Part]]:
        """Return the records of all sandboxes that have one."""
        return [record for record in map(self.load, self.ids()) if record is not None]

    def remains(self, sandbox_id: str) -> IncarnationRecord[Part] | None:
        """Return the record as `load` does, but also that of a sandbox whose delete has begun."""
        try:
            text = (self.directory(sandbox_id) / _FILE).read_bytes()
            return IncarnationRecord[self._part].model_validate_json(text)  # type: ignore[name-defined]
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ValueError:
            # What it was cannot be known; the sweep removes it.
            log.exception("the record of sandbox %s is damaged, or a newer release wrote it", sandbox_id)
            return None

    def begin(self, record: IncarnationRecord[Part]) -> IncarnationRecord[Part]:
        """Make the sandbox's directory and write its first record, durably: a workspace must keep its owner.

        Raises:
            OSError: the host's disk is full.
        """
        self.directory(record.sandbox_id).mkdir(parents=True, exist_ok=True, mode=0o700)
        return self.save(record, durable=True)

    def save(self, record: IncarnationRecord[Part], *, durable: bool = False) -> IncarnationRecord[Part]:
        """Write the record, whole or not at all, and return it.

        Args:
            record: of a sandbox that has a directory.
            durable: whether it must survive a power cut.  States that die with the host need not.

        Raises:
            OSError: the directory is gone, or the host's disk is full.
        """
        path = self.directory(record.sandbox_id) / _FILE
        write_atomically(path, record.model_dump_json().encode(), durable=durable)
        return record

    def mark_deleting(self, sandbox_id: str) -> None:
        """Let the sandbox count as gone from now on.  Idempotent; nothing happens where there is no directory."""
        try:
            (self.directory(sandbox_id) / _DELETING).touch()
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            # The mark only survives a crash of the agent; on a full disk it is the delete that makes room.
            log.warning("sandbox %s: its delete could not be marked: %s", sandbox_id, error)


RunscRecord = IncarnationRecord[RunscPart]
RunscRecords = RecordStore[RunscPart]
DockerRecord = IncarnationRecord[DockerPart]
DockerRecords = RecordStore[DockerPart]
