"""The port between the node agent and a real engine.

Two engines implement it (`node_agent.runtime.runsc`, `node_agent.runtime.docker_engine`) and one contract suite
(`tests/contract/runtime`) runs on both.  Every call blocks and may be made from any thread; the agent runs them on an
executor of its own.  The engine is the truth: nothing here needs memory that a restart would lose, and `found` reads
everything back from labels, bundles and the engine itself.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import ClassVar

from gateway.wire.errors import ErrorCode
from gateway.wire.sandboxes import Isolation, RuntimeName, SandboxSpec
from gateway.wire.states import DeathReason
from node_agent.errors import RuntimeFailure
from node_agent.host.firewall import Firewall
from node_agent.runtime.counters import CounterFiles, OnEnding


@dataclass(frozen=True)
class RuntimeFacts:
    """What the probe at start found.  ``notes`` are sentences for the log and for ``sandboxes doctor``."""

    name: RuntimeName
    version: str
    isolations: tuple[Isolation, ...]
    pause: bool
    checkpoint: bool
    gpus: bool
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Order:
    """One incarnation of a sandbox to bring up.

    Attributes:
        gpus: names of the devices that the node has given it.
    """

    sandbox_id: str
    generation: int
    operation_id: str
    spec: SandboxSpec
    spec_hash: str
    gpus: tuple[str, ...] = ()


class EngineState(StrEnum):
    """The states in which an engine has a sandbox."""

    CREATING = "creating"  # debris of a create that this agent's predecessor did not finish, or one in flight
    RUNNING = "running"
    PAUSED = "paused"
    CHECKPOINTED = "checkpointed"
    DEAD = "dead"


@dataclass(frozen=True)
class Death:
    """How a sandbox ended."""

    reason: DeathReason
    exit_code: int | None
    detail: str
    ended_at: datetime


@dataclass(frozen=True)
class Found:
    """One sandbox as the engine has it: enough to adopt it after a restart."""

    order: Order
    state: EngineState
    isolation: Isolation
    image_digest: str | None
    started_at: datetime | None
    death: Death | None = None


class Stream(StrEnum):
    """Which output a piece of bytes came from."""

    STDOUT = "stdout"
    STDERR = "stderr"


@dataclass(frozen=True)
class Chunk:
    """Output bytes in the order in which the engine gave them."""

    stream: Stream
    data: bytes


@dataclass(frozen=True)
class Exit:
    """How a process ended.  ``code`` is as a shell reports it: 128 + n after signal n."""

    code: int
    signal: int | None = None


@dataclass(frozen=True)
class ExecCommand:
    """A process to start inside a running sandbox.

    ``argv`` is exact (no shell).  ``argv[0]`` without a slash is looked up in the PATH of the merged environment.
    ``user`` ``None`` takes the sandbox's; ``env`` is added to the sandbox's own.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    working_dir: str | None = None
    user: str | None = None
    stdin: bool = False


class ExecProcess(ABC):
    """A process inside a sandbox.  One thread reads; another may write, signal or kill meanwhile."""

    @abstractmethod
    def read(self) -> Chunk | None:
        """Return the next output, at most `limits.EXEC_CHUNK` bytes; block while there is none.

        Returns:
            ``None`` once the process has ended and everything it wrote before its end was read, even if a background
            child still holds the pipe.
        """

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Feed stdin, blocking while the process does not read.  After the process's end it does nothing."""

    @abstractmethod
    def close_stdin(self) -> None:
        """End stdin.  Idempotent."""

    @abstractmethod
    def signal(self, number: int) -> None:
        """Send a signal to the process's group.  After its end it does nothing."""

    @abstractmethod
    def kill(self) -> None:
        """Send SIGKILL to the whole group and to every descendant that still hangs below it."""

    @abstractmethod
    def wait(self) -> Exit:
        """Wait until the process has ended, and return how.

        Raises:
            RuntimeFailure: ``EXEC_LOST`` when its end cannot be known (the sandbox died, the engine went away).
        """

    @abstractmethod
    def close(self) -> None:
        """Free descriptors and threads on this side; a blocked `read` or `write` returns.  Idempotent."""


@dataclass(frozen=True)
class LogPiece:
    """A piece of the first process's output; ``size`` is all that is stored of that stream now."""

    data: bytes
    size: int


@dataclass(frozen=True)
class UsageNow:
    """What a sandbox uses at this moment."""

    memory_mb: float
    cpu_seconds: float
    disk_mb: float
    pids: int


class SandboxRuntime(ABC):
    """An engine that runs sandboxes on this machine."""

    name: ClassVar[RuntimeName]

    @abstractmethod
    def probe(self) -> RuntimeFacts:
        """Check the engine for real, with a throwaway sandbox where that is needed.

        Raises:
            RuntimeFailure: the engine is missing or cannot run here; the sentence names the cure.
        """

    @abstractmethod
    def create(self, order: Order) -> Found:
        """Bring the sandbox up and return once its first process runs.

        Idempotent by id and generation.  A lower generation that is still there is torn down first, its workspace
        kept.  On any failure nothing but the workspace of an earlier generation is left behind; where a retryable one
        came before anything was done, that generation is left as it was.

        Raises:
            RuntimeFailure: ``IMAGE_ERROR``, ``START_ERROR``, ``CAPACITY``, ``DISK_FULL``, ``UNSUPPORTED``; or
                ``CONFLICT`` when a newer generation is there or `delete` came in between.
        """

    @abstractmethod
    def delete(self, sandbox_id: str) -> None:
        """Remove every trace of the sandbox, workspace included, whatever state it is in.

        Idempotent, bounded in time, and legal while `create` or an exec of the same sandbox is in flight in another
        thread: that one fails, and this one wins.
        """

    @abstractmethod
    def found(self) -> list[Found]:
        """Return every sandbox of this node that the engine and the disk know, dead ones included."""

    @abstractmethod
    def wait(self, sandbox_id: str) -> Death:
        """Wait until the first process of the running sandbox ends, and return how.

        A sandbox that was deleted meanwhile ends with reason ``deleted``.
        """

    @abstractmethod
    def sweep(self) -> list[str]:
        """Remove what this node's runtime made and no sandbox owns (mounts, namespaces, cgroups, files, …).

        Called once at start, after `found`.

        Returns:
            A sentence for each thing removed.
        """

    def close(self) -> None:  # noqa: B027 - an engine that holds nothing on this side has nothing to do
        """End what this object holds in this process: threads, connections.  Sandboxes run on.

        Once no sandbox is left it also removes what served all of them on this host (firewall rules, control groups).
        Idempotent; nothing may be called afterwards.
        """

    @abstractmethod
    def fail(self, sandbox_id: str, reason: DeathReason, detail: str) -> None:
        """End a sandbox that must not go on; its disk stays.  Nothing happens where it has ended.

        Args:
            sandbox_id: of the sandbox.
            reason: why; with ``detail`` it is how the sandbox ended from then on.
            detail: the same as a sentence.

        Raises:
            RuntimeFailure: engine or host do not do it.
        """

    @abstractmethod
    def pause(self, sandbox_id: str) -> None:
        """Freeze all processes.  Idempotent."""

    @abstractmethod
    def resume(self, sandbox_id: str) -> None:
        """Let all processes go on.  Idempotent."""

    def checkpoint(self, sandbox_id: str) -> None:
        """Write the sandbox's processes to disk and free its memory; see `RuntimeFacts.checkpoint`.

        Raises:
            RuntimeFailure: ``UNSUPPORTED`` on engines without it; ``CONFLICT`` while an exec runs.
        """
        raise RuntimeFailure(ErrorCode.UNSUPPORTED, f"the {self.name} runtime cannot checkpoint sandbox {sandbox_id}")

    def restore(self, sandbox_id: str) -> None:
        """Bring a checkpointed sandbox back to running.

        Raises:
            RuntimeFailure: ``UNSUPPORTED`` on engines without it.
        """
        raise RuntimeFailure(ErrorCode.UNSUPPORTED, f"the {self.name} runtime cannot restore sandbox {sandbox_id}")

    @abstractmethod
    def exec(self, sandbox_id: str, command: ExecCommand) -> ExecProcess:
        """Start a process in its own session and process group.

        Raises:
            RuntimeFailure: ``SANDBOX_NOT_RUNNING``; ``START_ERROR`` with a `RuntimeFailure.start_fault` when the
                program cannot be started.
        """

    @abstractmethod
    def busybox(self, sandbox_id: str) -> str:
        """Return the path, inside the sandbox, of the static busybox that is bound into every sandbox read-only."""

    @abstractmethod
    def logs(self, sandbox_id: str, stream: Stream, offset: int, limit: int) -> LogPiece:
        """Return output of the first process from byte ``offset``, at most ``limit`` bytes."""

    @abstractmethod
    def usage(self, sandbox_id: str) -> UsageNow:
        """Return what the sandbox uses now."""

    def firewalls(self) -> list[Firewall]:
        """Return the firewalls between this engine's sandboxes and the host; none where it gives them no network."""
        return []

    @abstractmethod
    def counter_files(self, sandbox_id: str) -> CounterFiles | None:
        """Return where the kernel counts what the present incarnation uses; ``None`` where there is none.

        Waits for no call in flight.

        Raises:
            RuntimeFailure: the engine had to be asked, and does not answer.
        """

    def listen_endings(self, ending: OnEnding) -> None:
        """Call ``ending`` for each incarnation whose processes have ended, before the kernel's counters of it go.

        It is called under the sandbox's lock, more than once for the same incarnation where a crash came in between.
        """
        self._ending = ending

    _ending: OnEnding = staticmethod(lambda _sandbox_id, _files: None)

    @abstractmethod
    def images(self) -> list[str]:
        """Return the digests of the images that start here without a pull."""


def not_running(sandbox_id: str, state: EngineState | None = None, death: Death | None = None) -> RuntimeFailure:
    """Return the refusal of work that needs running processes.

    Args:
        sandbox_id: where they were looked for.
        state: in which the sandbox is instead; ``None`` when it is not on this node.
        death: how it ended, where it did.
    """
    if state is None:
        return RuntimeFailure(ErrorCode.SANDBOX_NOT_RUNNING, f"sandbox {sandbox_id} is not on this node")
    hint = "; resume it first" if state is EngineState.PAUSED else ""
    detail = f": {death.detail}" if death else ""
    return RuntimeFailure(ErrorCode.SANDBOX_NOT_RUNNING, f"sandbox {sandbox_id} is {state.value}{detail}{hint}")


def deleted(sandbox_id: str) -> Death:
    """Return the end of a sandbox that was deleted, or replaced by its next generation."""
    return Death(DeathReason.DELETED, None, f"sandbox {sandbox_id} was deleted", datetime.now(UTC))
