"""The orders about this node's sandboxes, and what they do to the engines.

What is known of each is in `node_agent.sandboxes.table`; after a restart `Registry.adopt` rebuilds it from what the
engines have.  Safe from any thread.  Engine calls run on two pools, so that slow creates never hold up a delete.  A
lock per id keeps engine calls on one sandbox apart, but for `delete`: it does not wait for a create in flight, it
breaks it.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from datetime import UTC, datetime
from typing import Protocol

from gateway.wire.errors import CODE_RULES, ErrorCode
from gateway.wire.resources import Shape
from gateway.wire.sandboxes import RuntimeName
from gateway.wire.states import LIVE, DeathReason, SandboxState
from node_agent.errors import ApiError, of_failure
from node_agent.runtime.base import Death, EngineState, Found, Order, RuntimeFailure, SandboxRuntime
from node_agent.sandboxes import model as core
from node_agent.sandboxes.admission import refusal
from node_agent.sandboxes.entry import Entry, attach, deleted, newer, not_running, overtaken, reason_of, was_deleted
from node_agent.sandboxes.model import Sandbox
from node_agent.sandboxes.table import Entries

log = logging.getLogger(__name__)

DELETE_WAIT = 120.0  # above what an engine takes for its longest delete

Runtimes = Mapping[RuntimeName, SandboxRuntime]


class Gone(Protocol):
    """Told when a sandbox ended or was deleted."""

    def __call__(self, sandbox_id: str, generation: int, *, death: Death, deleted: bool) -> None: ...


class Registry:
    """Creates, deletes, pauses, resumes and watches sandboxes."""

    def __init__(
        self,
        runtimes: Runtimes,
        total: Callable[[], Shape],
        shortage: Callable[[], str | None],
        creators: Executor,
        workers: Executor,
    ) -> None:
        """
        Args:
            runtimes: the engines.
            total: what the node may give away.
            shortage: why the host takes no new sandbox whatever is left of that; ``None`` while it does.
            creators: runs creates.
            workers: runs everything short.
        """
        self._runtimes = runtimes
        self._total = total
        self._shortage = shortage
        self._creators = creators
        self._workers = workers
        self._entries = Entries()
        self._changed: Callable[[], None] = lambda: None
        self._gone: Gone | None = None
        self.draining = False

    def on_change(self, changed: Callable[[], None], gone: Gone) -> None:
        """Who is told that the inventory changed, and that a sandbox ended.  Called from any thread."""
        self._changed = changed
        self._gone = gone

    # -- reading ------------------------------------------------------------------------------------------------------

    def sandboxes(self) -> list[Sandbox]:
        """The inventory at this moment."""
        return self._entries.sandboxes()

    def reserved(self) -> Shape:
        """What the sandboxes that are there hold."""
        return self._entries.held()

    def find(self, sandbox_id: str, generation: int | None) -> Sandbox:
        """The sandbox in that generation (``None``: in any).

        Raises:
            ApiError: ``SANDBOX_NOT_FOUND``, or ``CONFLICT`` where a newer generation is there.
        """
        return self._entries.find(sandbox_id, generation).sandbox

    def running(self, sandbox_id: str, generation: int | None) -> tuple[SandboxRuntime, Sandbox]:
        """The sandbox and its engine, if processes can start in it.

        Raises:
            ApiError: as `find`; ``CREATE_IN_PROGRESS``; ``SANDBOX_NOT_RUNNING``.
        """
        sandbox = self._entries.settled(sandbox_id, generation).sandbox
        if sandbox.state is not SandboxState.RUNNING:
            raise not_running(sandbox)
        return self._runtimes[sandbox.runtime], sandbox

    def used_disk_mb(self) -> int:
        """MiB of disk that the sandboxes that are there have written; what cannot be asked counts as nothing."""
        used = 0.0
        for sandbox in self.sandboxes():
            try:
                used += self.engine(sandbox).usage(sandbox.order.sandbox_id).disk_mb
            except RuntimeFailure as failure:
                log.info("the disk of sandbox %s is not known: %s", sandbox.order.sandbox_id, failure.message)
        return int(used)

    def engine(self, sandbox: Sandbox) -> SandboxRuntime:
        """The engine that runs this sandbox."""
        return self._runtimes[sandbox.runtime]

    def find_death(self, sandbox_id: str, generation: int, seconds: float) -> Death | None:
        """How this incarnation ended; waits up to ``seconds`` for it."""
        entry = self._entries.get(sandbox_id)
        if entry is None or entry.generation > generation:
            return deleted("the sandbox was deleted or replaced")
        entry.ended.wait(seconds)
        return entry.sandbox.death

    # -- orders -------------------------------------------------------------------------------------------------------

    def create(self, order: Order, runtime: RuntimeName) -> "Future[Sandbox]":
        """Accepts an order, or attaches to it where it was accepted before.  The future fails with `ApiError`.

        Raises:
            ApiError: ``CONFLICT``, ``NODE_REFUSED``.
        """
        with self._entries.lock:
            present = self._entries.get(order.sandbox_id)
            if present is not None and present.generation >= order.generation:
                return attach(present, order)
            self._admit(order, runtime, present)
            entry = Entry(core.ordered(order, runtime))
            if present is not None:
                entry.busy = present.busy
                present.ended.set()
            self._entries.put(entry)
        if present is not None:
            self._tell_gone(present, deleted("the sandbox was restarted"), deleted=False)
        self._creators.submit(self._create, entry, present)
        return entry.created

    def delete(self, sandbox_id: str, generation: int) -> "Future[None]":
        """Removes the sandbox in this and every older generation; done at once where there is none.

        The future fails with `ApiError` when the engine could not do it; the next call tries again.

        Raises:
            ApiError: ``CONFLICT`` where a newer generation is there.
        """
        with self._entries.lock:
            entry = self._entries.get(sandbox_id)
            if entry is None:
                done: Future[None] = Future()
                done.set_result(None)
                return done
            if entry.generation > generation:
                raise newer(entry, generation)
            if entry.deleted is not None and not entry.deleted.done():
                return entry.deleted
            if entry.sandbox.state is not SandboxState.DELETING:
                entry.sandbox = core.moved(entry.sandbox, SandboxState.DELETING)
            entry.deleted = Future()
            outcome = entry.deleted
        self._workers.submit(self._delete, entry, outcome)
        return outcome

    def pause(self, sandbox_id: str, generation: int | None) -> "Future[Sandbox]":
        """Freezes the sandbox.  Idempotent.  The future fails with `ApiError`."""
        entry = self._entries.settled(sandbox_id, generation)
        return self._workers.submit(self._switch, entry, SandboxState.RUNNING, SandboxState.PAUSED)

    def resume(self, sandbox_id: str, generation: int | None) -> "Future[Sandbox]":
        """Lets the sandbox go on.  Idempotent.  The future fails with `ApiError`."""
        entry = self._entries.settled(sandbox_id, generation)
        return self._workers.submit(self._switch, entry, SandboxState.PAUSED, SandboxState.RUNNING)

    def adopt(self) -> None:
        """Takes over what an earlier life left: watches what runs, goes on with what was created, sweeps the rest.

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

    # -- inside -------------------------------------------------------------------------------------------------------

    def _admit(self, order: Order, runtime: RuntimeName, present: Entry | None) -> None:
        if runtime not in self._runtimes:
            raise ApiError(ErrorCode.NODE_REFUSED, f"this node has no {runtime} runtime", sandbox_id=order.sandbox_id)
        held = self._entries.held(without=present)
        # A restart stays on its node, also on a draining one: its workspace is here.
        draining = self.draining and present is None
        why = refusal(total=self._total(), held=held, wanted=order.spec.shape, draining=draining)
        if why is None and present is None:
            why = self._shortage()
        if why is not None:
            raise ApiError(ErrorCode.NODE_REFUSED, why, sandbox_id=order.sandbox_id)

    def _create(self, entry: Entry, former: Entry | None) -> None:
        try:
            _await_delete(former)
            with entry.busy:
                self._remove_former(entry, former)
                found = None if entry.deleted else self._engine_create(entry)
            self._created(entry, found)
        except RuntimeFailure as failure:
            self._create_failed(entry, former, of_failure(failure, entry.id), failure.reason)
        except Exception as error:
            log.exception("create of sandbox %s failed inside the agent", entry.id)
            message = f"the node agent failed while creating sandbox {entry.id}: {error}"
            self._create_failed(entry, former, ApiError(ErrorCode.INTERNAL, message, sandbox_id=entry.id), None)
        self._changed()

    def _remove_former(self, entry: Entry, former: Entry | None) -> None:
        if former is None:
            return
        if former.deleted is not None or former.sandbox.runtime != entry.sandbox.runtime:
            self._runtimes[former.sandbox.runtime].delete(former.id)

    def _engine_create(self, entry: Entry) -> Found:
        return self._runtimes[entry.sandbox.runtime].create(entry.sandbox.order)

    def _created(self, entry: Entry, found: Found | None) -> None:
        with self._entries.lock:
            alive = found is not None and entry.deleted is None and self._entries.has(entry)
            if alive and found is not None:
                entry.sandbox = core.started(entry.sandbox, found)
        if alive:
            self._watch(entry)
            entry.created.set_result(entry.sandbox)
        else:
            entry.created.set_exception(overtaken(entry))

    def _create_failed(self, entry: Entry, former: Entry | None, error: ApiError, reason: DeathReason | None) -> None:
        with self._entries.lock:
            broken = entry.deleted is not None or not self._entries.has(entry)
            if not broken and CODE_RULES[error.code].retryable:
                self._undo(entry, former)
            elif not broken:
                death = Death(reason or reason_of(error.code), None, error.message, datetime.now(UTC))
                entry.sandbox = core.died(entry.sandbox, death)
                entry.failure = error
        entry.ended.set()
        entry.created.set_exception(overtaken(entry) if broken else error)

    def _undo(self, entry: Entry, former: Entry | None) -> None:
        """Nothing came of the order: what it was to replace is told and counted again, and can be deleted."""
        if former is None or was_deleted(former):
            self._entries.remove(entry)
            return
        self._entries.put(former)
        if former.sandbox.state in LIVE:
            self._watch(former)  # it may have ended while nobody looked

    def _delete(self, entry: Entry, outcome: "Future[None]") -> None:
        runtime = self._runtimes[entry.sandbox.runtime]
        try:
            runtime.delete(entry.id)
            with entry.busy:
                # A create that was in flight has unwound now; whatever it still made goes too.
                if not entry.created.done() or entry.created.exception() is not None:
                    runtime.delete(entry.id)
        except RuntimeFailure as failure:
            log.error("sandbox %s could not be deleted: %s", entry.id, failure.message)
            outcome.set_exception(of_failure(failure, entry.id))
            return
        except Exception as error:
            log.exception("delete of sandbox %s failed inside the agent", entry.id)
            outcome.set_exception(ApiError(ErrorCode.INTERNAL, f"sandbox {entry.id} could not be deleted: {error}"))
            return
        self._entries.remove(entry)
        entry.ended.set()
        self._tell_gone(entry, deleted("the sandbox was deleted"), deleted=True)
        outcome.set_result(None)
        self._changed()

    def _switch(self, entry: Entry, before: SandboxState, after: SandboxState) -> Sandbox:
        with entry.busy:
            if entry.sandbox.state is after:
                return entry.sandbox
            if entry.sandbox.state is not before or not self._entries.has(entry):
                raise not_running(entry.sandbox)
            runtime = self._runtimes[entry.sandbox.runtime]
            try:
                (runtime.pause if after is SandboxState.PAUSED else runtime.resume)(entry.id)
            except RuntimeFailure as failure:
                raise of_failure(failure, entry.id) from failure
            with self._entries.lock:
                if entry.sandbox.state is before:
                    entry.sandbox = core.moved(entry.sandbox, after)
        self._changed()
        return entry.sandbox

    def _adopt(self, name: RuntimeName, found: Found) -> list[Entry]:
        """The entry, where its create has to go on."""
        entry = Entry(core.adopted(found, name))
        other = self._entries.get(entry.id)
        if other is not None and other.generation >= entry.generation:
            log.warning("sandbox %s: generation %d is debris beside %d", entry.id, entry.generation, other.generation)
            self._runtimes[name].delete(entry.id)
            return []
        self._entries.put(entry)
        log.info("adopted sandbox %s, generation %d: %s", entry.id, entry.generation, entry.sandbox.state)
        if found.state is EngineState.CREATING:
            return [entry]
        entry.created.set_result(entry.sandbox)
        if entry.sandbox.state in {SandboxState.RUNNING, SandboxState.PAUSED}:
            self._watch(entry)
        else:
            entry.ended.set()
        return []

    def _watch(self, entry: Entry) -> None:
        threading.Thread(target=self._wait, args=(entry,), name=f"watch-{entry.id}", daemon=True).start()

    def _wait(self, entry: Entry) -> None:
        pause = 1.0
        while True:
            try:
                death = self._runtimes[entry.sandbox.runtime].wait(entry.id)
                break
            except RuntimeFailure as failure:
                log.error("sandbox %s cannot be watched: %s", entry.id, failure.message)
            if entry.ended.wait(pause):
                return
            pause = min(pause * 2, 30.0)
        with self._entries.lock:
            if not self._entries.has(entry) or entry.sandbox.state not in LIVE:
                return
            entry.sandbox = core.died(entry.sandbox, death)
        entry.ended.set()
        log.info("sandbox %s ended: %s, %s", entry.id, death.reason, death.detail)
        self._tell_gone(entry, death, deleted=False)
        self._changed()

    def _tell_gone(self, entry: Entry, death: Death, *, deleted: bool) -> None:
        if self._gone is not None:
            self._gone(entry.id, entry.generation, death=death, deleted=deleted)


def _await_delete(former: Entry | None) -> None:
    """A delete of the former generation must not meet the new one in the engine."""
    if former is None or former.deleted is None:
        return
    try:
        former.deleted.exception(timeout=DELETE_WAIT)
    except TimeoutError as error:
        raise RuntimeFailure(
            ErrorCode.BUSY, f"the former generation of sandbox {former.id} is still being deleted; try again"
        ) from error
