"""How an incarnation of a sandbox comes and goes, the same on every engine.

* **The newest generation wins.**  An order for an older one than is recorded is refused with ``CONFLICT``.  One that
  was carried out already is answered with what is there.  A newer one takes down what is there and keeps its workspace.
* **Intent first.**  The record says ``creating`` before the engine is touched, so that a crash leaves nothing that no
  record names.
* **All or nothing.**  When a start fails, everything that it made is removed; an earlier generation's workspace stays,
  under a record that keeps why the start failed.
* **A delete beats a create.**  It cuts the create short, marks the sandbox as going, and then waits for the lock.

Each engine supplies the steps (`EngineSteps`); this module alone decides their order.
"""

import logging
from abc import ABC, abstractmethod
from datetime import UTC, datetime
from typing import Final, Generic, TypeVar

from gateway.wire.errors import ErrorCode
from gateway.wire.states import DeathReason
from node_agent.errors import RuntimeFailure
from node_agent.host.disk import out_of_space
from node_agent.host.process import CommandError
from node_agent.host.volume import Volume, remove_tree
from node_agent.runtime.base import Death, EngineState, Found, Order
from node_agent.runtime.locks import SandboxLock, SandboxLocks, StartAttempt
from node_agent.runtime.record import IncarnationRecord, Part, RecordStore

log = logging.getLogger(__name__)

_DELETE_TIMEOUT: Final = 90.0  # seconds; above the longest step of a create that was cut short

Prepared = TypeVar("Prepared")


class EngineSteps(ABC, Generic[Part, Prepared]):
    """What one engine does of the life of an incarnation.  All but `prepare` and `interrupt` run under its lock."""

    @abstractmethod
    def prepare(self, order: Order) -> Prepared:
        """Get what the start needs and what may take minutes, such as the image.  Nothing of the sandbox is made yet.

        Raises:
            RuntimeFailure: the order can never start here, or, where retryable, not now.
        """

    @abstractmethod
    def plan(self, record: IncarnationRecord[Part], prepared: Prepared) -> IncarnationRecord[Part]:
        """Return the record with all that is known before the start.  Pure."""

    @abstractmethod
    def bring_up(
        self, record: IncarnationRecord[Part], prepared: Prepared, attempt: StartAttempt
    ) -> IncarnationRecord[Part]:
        """Make everything from an empty directory, or an earlier generation's workspace, to a running first process.

        Raises:
            RuntimeFailure, OSError, CommandError: it did not start; what was made stays for `take_down`.
        """

    @abstractmethod
    def take_down(self, sandbox_id: str, record: IncarnationRecord[Part] | None) -> None:
        """End processes and network and give the root file system up; volume and record stay.  Idempotent.

        Args:
            sandbox_id: whose.
            record: the last one; ``None`` where none is left.

        Raises:
            RuntimeFailure, OSError, CommandError: something does not go; the next call meets it again.
        """

    @abstractmethod
    def found(self, record: IncarnationRecord[Part]) -> Found:
        """Return the sandbox as the engine has it now."""

    def interrupt(self, sandbox_id: str) -> None:
        """End the calls that other threads have in flight on a sandbox that is about to be deleted."""


class Incarnations(Generic[Part, Prepared]):
    """Creates and deletes the sandboxes of one engine."""

    def __init__(self, records: RecordStore[Part], locks: SandboxLocks, steps: EngineSteps[Part, Prepared]) -> None:
        self._records = records
        self._locks = locks
        self._steps = steps

    def create(self, order: Order) -> Found:
        """Carry an order out; see `SandboxRuntime.create`."""
        lock = self._locks.of(order.sandbox_id)
        with lock.attempt() as attempt:
            with lock.held():
                present = self._carried_out(order)
            if present is not None:
                return self._steps.found(present)
            prepared = self._prepare(lock, order)  # minutes may go by: nothing is made yet, so nothing is locked
            with lock.changing():
                attempt.check()
                record = self._carried_out(order) or self._replace(order, prepared, attempt)
                return self._steps.found(record)

    def delete(self, sandbox_id: str) -> None:
        """Remove every trace of a sandbox; see `SandboxRuntime.delete`."""
        lock = self._locks.of(sandbox_id)
        lock.overtake()
        self._records.mark_deleting(sandbox_id)
        self._steps.interrupt(sandbox_id)
        with lock.changing(_DELETE_TIMEOUT):
            self._erase(sandbox_id)

    def _carried_out(self, order: Order) -> IncarnationRecord[Part] | None:
        """Return the record of an order that was carried out already.

        Raises:
            RuntimeFailure: ``CONFLICT`` when a newer generation is there.
        """
        record = self._records.load(order.sandbox_id)
        if record is None or record.generation < order.generation:
            return None
        if record.generation > order.generation:
            raise RuntimeFailure(
                ErrorCode.CONFLICT,
                f"sandbox {order.sandbox_id} is here in generation {record.generation}; {order.generation} is outdated",
            )
        return None if record.state is EngineState.CREATING else record

    def _prepare(self, lock: SandboxLock, order: Order) -> Prepared:
        """Prepare a start.  Where it can never come, only the workspace of the earlier generation stays."""
        try:
            return self._steps.prepare(order)
        except RuntimeFailure as failure:
            if not failure.retryable:
                with lock.changing():
                    earlier = self._records.load(order.sandbox_id)
                    if earlier is not None and earlier.generation < order.generation:
                        self._undo(order, failure, keep=self._has_workspace(earlier))
            raise

    def _replace(self, order: Order, prepared: Prepared, attempt: StartAttempt) -> IncarnationRecord[Part]:
        """Take down what is there and bring the order up; on failure, nothing of it stays."""
        earlier = self._records.load(order.sandbox_id)
        keep = earlier is not None and self._has_workspace(earlier)
        try:
            if keep:
                self._steps.take_down(order.sandbox_id, earlier)
            else:
                self._erase(order.sandbox_id)  # of a create or a delete that a crash cut short
            record = self._steps.plan(self._records.new(order).but(inherited=keep), prepared)
            return self._steps.bring_up(self._records.begin(record), prepared, attempt)
        except (RuntimeFailure, OSError, CommandError) as error:
            failure = error if isinstance(error, RuntimeFailure) else not_started(order.sandbox_id, error)
            self._undo(order, failure, keep=keep)
            attempt.check()  # whatever it stumbled over: a delete is the cause
            if failure is error:
                raise
            raise failure from error

    def _has_workspace(self, record: IncarnationRecord[Part]) -> bool:
        return record.leaves_workspace and Volume(self._records.directory(record.sandbox_id)).image.exists()

    def _undo(self, order: Order, failure: RuntimeFailure, *, keep: bool) -> None:
        """Remove what a failed start made.

        Args:
            order: what was to start.
            failure: why it did not.
            keep: whether an earlier generation's workspace is there and has to stay.
        """
        sandbox_id = order.sandbox_id
        try:
            if not keep:
                self._erase(sandbox_id)
                return
            self._steps.take_down(sandbox_id, self._records.remains(sandbox_id))
            death = Death(failure.reason or DeathReason.START_ERROR, None, failure.message, datetime.now(UTC))
            self._records.save(self._records.new(order).but(state=EngineState.DEAD, inherited=True, death=death))
        except (RuntimeFailure, OSError, CommandError) as error:
            # The first failure is what the caller has to know.  The record still names what is left: the next delete
            # or sweep meets it again, and the next start takes over the workspace all the same.
            log.error("sandbox %s: what is left of a failed start could not be removed: %s", sandbox_id, error)

    def _erase(self, sandbox_id: str) -> None:
        """Remove every trace, workspace included.  Idempotent.

        Raises:
            RuntimeFailure: engine or host do not do it.
        """
        self._records.mark_deleting(sandbox_id)
        try:
            self._steps.take_down(sandbox_id, self._records.remains(sandbox_id))
            remove_tree(self._records.directory(sandbox_id))
        except (OSError, CommandError) as error:
            raise RuntimeFailure(
                ErrorCode.INTERNAL, f"what is left of sandbox {sandbox_id} could not be removed: {error}"
            ) from error


def not_started(sandbox_id: str, error: OSError | CommandError) -> RuntimeFailure:
    """Return the failure of a start that the host did not allow."""
    message = f"sandbox {sandbox_id} did not start: {error}"
    if out_of_space(error):
        return RuntimeFailure(ErrorCode.DISK_FULL, f"{message}; the node's disk is full", reason=DeathReason.DISK_FULL)
    return RuntimeFailure(ErrorCode.INTERNAL, message, reason=DeathReason.START_ERROR)
