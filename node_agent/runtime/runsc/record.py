"""What is kept of a sandbox on disk, so that a restarted agent finds it again."""

from datetime import datetime
from pathlib import Path
from typing import Final, Self

from pydantic import BaseModel, ConfigDict

from gateway.wire.sandboxes import SandboxSpec
from node_agent.host.accounts import Account
from node_agent.host.disk import write_atomically
from node_agent.host.network import Net
from node_agent.runtime.base import Death, EngineState, Found, Order

_FILE: Final = "record.json"


class Record(BaseModel):
    """One sandbox as last settled.

    Attributes:
        state: ``paused`` and ``running`` are written after the engine did it; see `Places.settling`.
        sentry_pid: host pid of the sandbox's kernel.
        image_env: the image's own environment.
        account, working_dir: of the first process; what an exec starts from.
        inherited: whether the workspace is an earlier generation's.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    sandbox_id: str
    generation: int
    operation_id: str
    spec: SandboxSpec
    spec_hash: str
    state: EngineState
    image_id: str | None = None
    image_digest: str | None = None
    sentry_pid: int | None = None
    net: Net | None = None
    image_env: dict[str, str] = {}
    account: Account = Account(0, 0)
    working_dir: str = "/"
    inherited: bool = False
    started_at: datetime | None = None
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
            state=EngineState.CREATING,
        )

    @classmethod
    def load(cls, directory: Path) -> Self | None:
        """The record in ``directory``; ``None`` when there is none.

        Raises:
            ValueError: it is damaged, or a newer release wrote it.
        """
        try:
            return cls.model_validate_json((directory / _FILE).read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None

    def save(self, directory: Path, *, durable: bool = False) -> None:
        """Writes it whole or not at all.

        Args:
            directory: of the sandbox.
            durable: whether it must survive a power cut.  The first record must, so that a workspace keeps its owner;
                the states after it die with the host anyway.

        Raises:
            OSError: the directory is gone, or the host's disk is full.
        """
        write_atomically(directory / _FILE, self.model_dump_json().encode(), durable=durable)

    def but(self, **changes: object) -> Self:
        """The same with some fields changed."""
        return self.model_copy(update=changes)

    @property
    def leaves_workspace(self) -> bool:
        """Whether the next start takes over the workspace.  One that was never told to run has none of its own."""
        return self.inherited or self.state is not EngineState.CREATING

    @property
    def order(self) -> Order:
        """The order that made it."""
        return Order(self.sandbox_id, self.generation, self.operation_id, self.spec, self.spec_hash)

    @property
    def found(self) -> Found:
        """As the runtime port tells it."""
        return Found(
            order=self.order,
            state=self.state,
            isolation="gvisor",
            image_digest=self.image_digest,
            started_at=self.started_at,
            death=self.death,
        )
