"""The orders about this node's sandboxes: create, delete, pause, resume, and what they do to the engines.

Three rules meet here:

* **The newest generation wins.**  An order for an older one is refused (`SandboxTable.fenced`); a create of a newer one
  takes the entry's place, its lock, and its workspace.
* **A delete beats a create in flight.**  It marks the entry, then asks the engine, which breaks a create that has come
  that far.  A create looks for the mark before it asks the engine and after; and once it has unwound, the delete asks
  the engine again, because a create that looked just before the mark may have begun just after.
* **One engine call at a time on one id** (`Entry.busy`), but for that first call of a delete.

What is known is memory only: after a restart `SandboxManager.adopt` rebuilds it from what the engines have.  Safe from
any thread.  Engine calls run on two pools, so that slow creates never hold up a delete.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final, Protocol

from gateway.wire.errors import ErrorCode
from gateway.wire.resources import Shape
from gateway.wire.sandboxes import RuntimeName
from gateway.wire.states import LIVE, DeathReason, SandboxState
from node_agent.errors import NodeError, RuntimeFailure
from node_agent.host.machine import Gpu
from node_agent.host.volume import Volume
from node_agent.runtime.base import Death, EngineState, Found, Order, SandboxRuntime
from node_agent.sandboxes.gpus import choose_gpus
from node_agent.sandboxes.table import Entry, NodeSandbox, SandboxTable, done

log = logging.getLogger(__name__)

DELETE_WAIT: Final = 120.0  # above what an engine takes for its longest delete
FIRST_WATCH_PAUSE: Final = 1.0
MAX_WATCH_PAUSE: Final = 30.0

_DEATH_BY_CODE: Final = {ErrorCode.IMAGE_ERROR: DeathReason.IMAGE_ERROR, ErrorCode.DISK_FULL: DeathReason.DISK_FULL}
"""Why a sandbox never ran, where the engine gave a code only."""


class OnGone(Protocol):
    """Called when a sandbox ended or was deleted."""

    def __call__(self, sandbox_id: str, generation: int, *, death: Death, deleted: bool) -> None: ...


OnState = Callable[[NodeSandbox], None]


class SandboxManager:
    """Creates, deletes, pauses, resumes and watches the sandboxes of this node.

    Args:
        runtimes: the engines.
        total: returns what the node may give away.
        shortage: returns why the host takes no new sandbox, whatever is left of that; ``None`` while it does.  It is
            given the MiB of disk that new sandboxes will set aside.
        creators: runs creates.
        workers: runs everything short.
        gpus: what the node hands out of them.
    """

    def __init__(
        self,
        runtimes: Mapping[RuntimeName, SandboxRuntime],
        total: Callable[[], Shape],
        shortage: Callable[[int], str | None],
        creators: Executor,
        workers: Executor,
        gpus: Sequence[Gpu] = (),
    ) -> None:
        self._runtimes = runtimes
        self._total = total
        self._shortage = shortage
        self._creators = creators
        self._workers = workers
        self._gpus = gpus
        self._table = SandboxTable()
        self._changed: Callable[[], None] = lambda: None
        self._on_gone: OnGone | None = None
        self._on_state: OnState = lambda _sandbox: None
        self.draining = False

    def listen(self, changed: Callable[[], None], gone: OnGone, state: OnState) -> None:
        """Set what is called from any thread.

        Args:
            changed: when the inventory changed.
            gone: when a sandbox ended.
            state: when one was started, paused or resumed, before anybody hears of it.
        """
        self._changed = changed
        self._on_gone = gone
        self._on_state = state

    # -- reading ------------------------------------------------------------------------------------------------------

    def sandboxes(self) -> list[NodeSandbox]:
        """Return the inventory at this moment."""
        return self._table.sandboxes()

    def reserved(self) -> Shape:
        """Return what the sandboxes that are here hold."""
        return self._table.held()

    def find(self, sandbox_id: str, generation: int | None) -> NodeSandbox:
        """Return the sandbox in that generation (``None``: in any).

        Raises:
            NodeError: ``SANDBOX_NOT_FOUND``, or ``CONFLICT`` where a newer generation is here.
        """
        return self._table.find(sandbox_id, generation).sandbox

    def runtime(self, entry: Entry) -> SandboxRuntime:
        """Return the engine of an entry."""
        return self._runtimes[entry.sandbox.runtime]

    def runtime_of(self, sandbox_id: str, generation: int | None) -> SandboxRuntime:
        """Return the engine of the sandbox, whatever its state.

        Raises:
            NodeError: as `find`.
        """
        return self._runtimes[self.find(sandbox_id, generation).runtime]

    def settled(self, sandbox_id: str, generation: int | None) -> Entry:
        """Return the sandbox's entry, once its create is over.

        Raises:
            NodeError: as `find`; ``CREATE_IN_PROGRESS``.
        """
        return self._table.settled(sandbox_id, generation)

    def held_disk_mb(self) -> int:
        """Return the MiB of the host's disk that the sandboxes' volumes have set aside."""
        held = 0.0
        for sandbox in self.sandboxes():
            try:
                volume = self.volume_of(sandbox.id)
                held += volume.held_mb() if volume is not None else 0
            except (OSError, NodeError) as error:
                log.warning("the disk of sandbox %s counts as free, as it cannot be read: %s", sandbox.id, error)
        return int(held)

    def volume_of(self, sandbox_id: str) -> Volume | None:
        """Return the disk of a sandbox; ``None`` where it has none.

        Raises:
            NodeError: ``SANDBOX_NOT_FOUND``; ``BUSY`` where its engine does not answer.
        """
        files = self.runtime_of(sandbox_id, None).counter_files(sandbox_id)
        return None if files is None else files.volume

    def find_death(self, sandbox_id: str, generation: int, seconds: float) -> Death | None:
        """Return how this incarnation ended; wait up to ``seconds`` for it, then ``None``."""
        entry = self._table.get(sandbox_id)
        if entry is None or entry.generation > generation:
            return _removed("the sandbox was deleted or replaced")
        entry.ended.wait(seconds)
        return entry.sandbox.death

    # -- create -------------------------------------------------------------------------------------------------------

    def create(self, order: Order, runtime: RuntimeName) -> "Future[NodeSandbox]":
        """Accept an order, or attach to it where it was accepted before.  The future fails with `NodeError`.

        Raises:
            NodeError: ``CONFLICT``, ``NODE_REFUSED``; of GPUs as `choose_gpus`.
        """
        with self._table.lock:
            former = self._table.fenced(order.sandbox_id, order.generation)
            if former is not None and former.generation == order.generation:
                return former.attach(order)
            self._admit(order, runtime, former)
            entry = Entry(NodeSandbox.ordered(self._with_gpus(order, former), runtime))
            if former is not None:
                entry.busy = former.busy
                former.ended.set()
            self._table.put(entry)
        if former is not None:
            self._notify_gone(former, _removed("the sandbox was restarted"), deleted=False)
        self._creators.submit(self._create, entry, former)
        return entry.created

    def _admit(self, order: Order, runtime: RuntimeName, former: Entry | None) -> None:
        if runtime not in self._runtimes:
            raise NodeError(ErrorCode.NODE_REFUSED, f"this node has no {runtime} runtime")
        # A restart stays on its node, also on a draining or full one: its workspace is here.
        if former is None and self.draining:
            raise NodeError(
                ErrorCode.NODE_REFUSED, "this node is draining and takes no new sandbox; place it on another one"
            )
        free = self._total().minus(self._table.held(without=former))
        if (problem := shortfall(free, order.spec.shape)) is not None:
            raise NodeError(ErrorCode.NODE_REFUSED, problem)
        if (
            former is None
            and (problem := self._shortage(order.spec.disk_mb + self._table.coming_disk_mb())) is not None
        ):
            raise NodeError(ErrorCode.NODE_REFUSED, problem)

    def _with_gpus(self, order: Order, former: Entry | None) -> Order:
        held, kept = self._table.held_gpus(without=former), former.sandbox.order.gpus if former is not None else ()
        return replace(order, gpus=choose_gpus(order.spec.gpus, self._gpus, held, kept))

    def _create(self, entry: Entry, former: Entry | None) -> None:
        try:
            _await_delete(former)
            with entry.busy:
                self._remove_former(entry, former)
                found = None if entry.deleted else self.runtime(entry).create(entry.sandbox.order)
            self._created(entry, found)
        except RuntimeFailure as failure:
            self._create_failed(entry, former, failure)
        except Exception as error:
            log.exception("create of sandbox %s failed inside the agent", entry.id)
            message = f"the node agent failed while creating sandbox {entry.id}: {error}"
            self._create_failed(entry, former, NodeError(ErrorCode.INTERNAL, message))
        self._changed()

    def _remove_former(self, entry: Entry, former: Entry | None) -> None:
        """Delete the former generation where the engine would not replace it: a failed delete, or another engine."""
        if former is None:
            return
        if former.deleted is not None or former.sandbox.runtime != entry.sandbox.runtime:
            self.runtime(former).delete(former.id)

    def _created(self, entry: Entry, found: Found | None) -> None:
        with self._table.lock:
            alive = found is not None and not self._overtaken(entry)
            if alive and found is not None:
                entry.sandbox = entry.sandbox.started(found)
        if alive:
            self._on_state(entry.sandbox)
            self._watch(entry)
            entry.created.set_result(entry.sandbox)
        else:
            entry.created.set_exception(entry.overtaken_error())

    def _create_failed(self, entry: Entry, former: Entry | None, error: NodeError) -> None:
        with self._table.lock:
            overtaken = self._overtaken(entry)
            if not overtaken and error.retryable:
                self._undo(entry, former)
            elif not overtaken:
                reason = error.reason or _DEATH_BY_CODE.get(error.code, DeathReason.START_ERROR)
                entry.sandbox = entry.sandbox.died(Death(reason, None, error.message, datetime.now(UTC)))
        entry.ended.set()
        entry.created.set_exception(entry.overtaken_error() if overtaken else error)

    def _undo(self, entry: Entry, former: Entry | None) -> None:
        """Restore what an order was to replace of which nothing came: it is listed, counted and deletable again."""
        if former is None or former.was_deleted:
            self._table.remove(entry)
            return
        self._table.put(former)
        if former.sandbox.state in LIVE:
            self._watch(former)  # it may have ended while nobody looked

    # -- delete -------------------------------------------------------------------------------------------------------

    def delete(self, sandbox_id: str, generation: int) -> "Future[None]":
        """Delete the sandbox in this and every older generation; done at once where there is none.

        The future fails with `NodeError` when the engine could not do it; the next call tries again.

        Raises:
            NodeError: ``CONFLICT`` where a newer generation is here.
        """
        with self._table.lock:
            entry = self._table.fenced(sandbox_id, generation)
            if entry is None:
                return done(None)
            if entry.deleted is not None and not entry.deleted.done():
                return entry.deleted
            if entry.sandbox.state is not SandboxState.DELETING:
                entry.sandbox = entry.sandbox.moved(SandboxState.DELETING)
            outcome: Future[None] = Future()
            entry.deleted = outcome
        self._workers.submit(self._delete, entry, outcome)
        return outcome

    def _delete(self, entry: Entry, outcome: "Future[None]") -> None:
        runtime = self.runtime(entry)
        try:
            runtime.delete(entry.id)
            with entry.busy:
                # A create that was in flight has unwound now; whatever it still made goes too.
                if not entry.created.done() or entry.created.exception() is not None:
                    runtime.delete(entry.id)
        except RuntimeFailure as failure:
            log.error("sandbox %s could not be deleted: %s", entry.id, failure.message)
            outcome.set_exception(failure)
            return
        except Exception as error:
            log.exception("delete of sandbox %s failed inside the agent", entry.id)
            outcome.set_exception(NodeError(ErrorCode.INTERNAL, f"sandbox {entry.id} could not be deleted: {error}"))
            return
        self._table.remove(entry)
        entry.ended.set()
        self._notify_gone(entry, _removed("the sandbox was deleted"), deleted=True)
        outcome.set_result(None)
        self._changed()

    # -- pause and resume ---------------------------------------------------------------------------------------------

    def pause(self, entry: Entry) -> "Future[NodeSandbox]":
        """Freeze the sandbox, whatever it does; see `node_agent.sandboxes.waking`.  Idempotent.

        The future fails with `NodeError`.
        """
        return self._workers.submit(self._switch, entry, SandboxState.RUNNING, SandboxState.PAUSED)

    def resume(self, entry: Entry) -> "Future[NodeSandbox]":
        """Let the sandbox go on.  Idempotent.  The future fails with `NodeError`."""
        return self._workers.submit(self._switch, entry, SandboxState.PAUSED, SandboxState.RUNNING)

    def _switch(self, entry: Entry, before: SandboxState, after: SandboxState) -> NodeSandbox:
        with entry.busy:
            if entry.sandbox.state is after:
                return entry.sandbox
            if entry.sandbox.state is not before or not self._table.is_newest(entry):
                raise entry.sandbox.not_running()
            runtime = self.runtime(entry)
            (runtime.pause if after is SandboxState.PAUSED else runtime.resume)(entry.id)
            with self._table.lock:
                if entry.sandbox.state is before:
                    entry.sandbox = entry.sandbox.moved(after)
            self._on_state(entry.sandbox)
        self._changed()
        return entry.sandbox

    def fail(self, sandbox_id: str, generation: int, reason: DeathReason, detail: str) -> None:
        """End a sandbox that must not go on; whoever watches it hears why.

        Raises:
            NodeError: it is not here in that generation, or its engine does not do it.
        """
        entry = self._table.settled(sandbox_id, generation)
        with entry.busy:
            if self._table.is_newest(entry):
                self.runtime(entry).fail(sandbox_id, reason, detail)

    # -- after a restart of the agent ---------------------------------------------------------------------------------

    def adopt(self) -> None:
        """Take over what an earlier life left: watch what runs, go on with what was created, sweep the rest.

        Called once, before the first order.

        Raises:
            RuntimeFailure: an engine could not be asked.
        """
        unfinished: list[Entry] = []
        for name, runtime in self._runtimes.items():
            for found in runtime.found():
                unfinished += self._adopt(name, found)
        for name, runtime in self._runtimes.items():
            for sentence in runtime.sweep():
                log.info("%s: swept: %s", name, sentence)
        for entry in unfinished:
            self._creators.submit(self._create, entry, None)

    def _adopt(self, name: RuntimeName, found: Found) -> list[Entry]:
        """Put one sandbox into the table; return its entry where its create has to go on."""
        entry = Entry(NodeSandbox.adopted(found, name))
        other = self._table.get(entry.id)
        if other is not None and other.generation >= entry.generation:
            log.warning("sandbox %s: generation %d is debris beside %d", entry.id, entry.generation, other.generation)
            self._runtimes[name].delete(entry.id)
            return []
        self._table.put(entry)
        log.info("adopted sandbox %s, generation %d: %s", entry.id, entry.generation, entry.sandbox.state)
        if found.state is EngineState.CREATING:
            return [entry]
        entry.created.set_result(entry.sandbox)
        if entry.sandbox.state in {SandboxState.RUNNING, SandboxState.PAUSED}:
            self._watch(entry)
        else:
            entry.ended.set()
        return []

    # -- watching -----------------------------------------------------------------------------------------------------

    def _watch(self, entry: Entry) -> None:
        threading.Thread(target=self._wait, args=(entry,), name=f"watch-{entry.id}", daemon=True).start()

    def _wait(self, entry: Entry) -> None:
        """Wait on a thread of its own until the sandbox ends, and record how."""
        pause = FIRST_WATCH_PAUSE
        while True:
            try:
                death = self.runtime(entry).wait(entry.id)
                break
            except RuntimeFailure as failure:
                log.error("sandbox %s cannot be watched: %s", entry.id, failure.message)
            if entry.ended.wait(pause):
                return
            pause = min(pause * 2, MAX_WATCH_PAUSE)
        with self._table.lock:
            if not self._table.is_newest(entry) or entry.sandbox.state not in LIVE:
                return
            entry.sandbox = entry.sandbox.died(death)
        entry.ended.set()
        log.info("sandbox %s ended: %s, %s", entry.id, death.reason, death.detail)
        self._notify_gone(entry, death, deleted=False)
        self._changed()

    # -- small parts --------------------------------------------------------------------------------------------------

    def _overtaken(self, entry: Entry) -> bool:
        """Return whether a delete or a newer generation came while the entry's create was in flight."""
        return entry.deleted is not None or not self._table.is_newest(entry)

    def _notify_gone(self, entry: Entry, death: Death, *, deleted: bool) -> None:
        if self._on_gone is not None:
            self._on_gone(entry.id, entry.generation, death=death, deleted=deleted)


def shortfall(free: Shape, wanted: Shape) -> str | None:
    """Return the sentence that says what is short for a sandbox of shape ``wanted``; ``None`` when it fits."""
    names = wanted.shortfalls(free)
    if not names:
        return None
    details = ", ".join(f"{name} {getattr(wanted, name):.15g} of {getattr(free, name):.15g} free" for name in names)
    return f"this node has no room: {details}"


def _await_delete(former: Entry | None) -> None:
    """Wait for a delete of the former generation: it must not meet the new one in the engine."""
    if former is None or former.deleted is None:
        return
    try:
        former.deleted.exception(timeout=DELETE_WAIT)
    except TimeoutError as error:
        raise RuntimeFailure(
            ErrorCode.BUSY, f"the former generation of sandbox {former.id} is still being deleted; try again"
        ) from error


def _removed(detail: str) -> Death:
    return Death(DeathReason.DELETED, None, detail, datetime.now(UTC))
