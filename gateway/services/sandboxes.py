"""Sandboxes as clients see them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar
from weakref import WeakValueDictionary

from sqlmodel import Session

from gateway.core import transitions
from gateway.core.model import Node, NodeAddress, Route, Sandbox
from gateway.errors import ApiError
from gateway.services import errors
from gateway.services.controllers import ServiceContext
from gateway.services.expiry import Activity, Expiry
from gateway.services.scheduler import Admitted, Application, admit
from gateway.services.to_wire import cursor_after, read_cursor, sandbox_record
from gateway.services.unit_of_work import SandboxWatch, Written
from gateway.settings import GatewaySettings
from gateway.store import nodes, sandboxes
from gateway.wire import limits
from gateway.wire.errors import ErrorCode
from gateway.wire.sandboxes import SandboxEnvelope, SandboxList, SandboxRecord, SandboxSpec
from gateway.wire.states import DeathReason, NodeState, SandboxState

S = SandboxState
T = TypeVar("T")

MOST_WAITS: Final = 1000
"""Creates that wait at once; one beyond is taken in as well, and answered at once."""
RETRIES_PER_SECOND: Final = 100
"""Of creates that found no seat to wait, all clients together: they are asked to come back that much later."""
OUTDATED: Final = frozenset({ErrorCode.CONFLICT, ErrorCode.SANDBOX_NOT_FOUND, ErrorCode.SANDBOX_NOT_RUNNING})
"""What a node answers to a call over a route that is no longer right; then nothing was done."""


@dataclass(frozen=True)
class _Located:
    """A sandbox and the node that it is on."""

    sandbox: Sandbox
    node: Node | None


class SandboxService:
    """Create, find, pause, restart and delete sandboxes; the routes to them."""

    def __init__(self, context: ServiceContext, activity: Activity, expiry: Expiry, settings: GatewaySettings) -> None:
        self._context = context
        self._uow = context.uow
        self._clock = context.clock
        self._activity = activity
        self._expiry = expiry
        self._settings = settings
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._waits = 0

    async def create(self, spec: SandboxSpec) -> SandboxEnvelope:
        """Answers when the sandbox runs; ``recovered`` when the id was already there with an equal spec.

        One that ran and has ended since is told as it is, in its state and with its reason; delete it to use the id
        again.  One that never ran is answered with the error that it failed with.

        Raises:
            ApiError: ``SPEC_CONFLICT``, ``NEVER_FITS``; ``NO_ROOM`` or ``CREATE_IN_PROGRESS`` when the wait is over and
                the create goes on; ``IMAGE_ERROR``, ``START_ERROR``, ``CAPACITY``, ``DISK_FULL``, ``UNSUPPORTED`` as
                the node told it.
        """
        spec_hash = spec.sha256()
        with self._uow.watch(spec.id) as watch, self._seat() as seated:
            until = self._clock.monotonic() + (self._settings.create_wait if seated else 0.0)
            while True:
                admitted = await self._admit(spec, spec_hash)
                if admitted.sandbox.state is not S.DELETING:
                    break
                # An earlier sandbox of this id is on its way out.
                if not await watch.change(self._clock, until):
                    raise errors.still_deleting(admitted.sandbox)
            sandbox = await self._brought_up(
                admitted.sandbox, watch, until, was_there=admitted.recovered, seated=seated
            )
        return SandboxEnvelope(sandbox=sandbox_record(sandbox), recovered=admitted.recovered)

    async def get(self, sandbox_id: str) -> SandboxRecord:
        """The sandbox; one deleted within the last day is still told, in state ``deleted`` with its reason.

        Raises:
            ApiError: ``SANDBOX_NOT_FOUND``.
        """
        return sandbox_record(await self._present(sandbox_id))

    async def page(
        self,
        *,
        labels: Mapping[str, str] | None = None,
        state: SandboxState | None = None,
        limit: int = limits.DEFAULT_PAGE,
        cursor: str | None = None,
    ) -> SandboxList:
        """One page, oldest first; deleted ones only when ``state`` asks for them.

        Raises:
            ApiError: ``INVALID_REQUEST`` for a cursor that this service did not make.
        """
        size = max(1, min(limit, limits.MAX_PAGE))
        after = None if cursor is None else read_cursor(cursor)
        query = sandboxes.SandboxQuery(limit=size + 1, labels=labels or {}, state=state, after=after)
        found = await self._uow.db.read(lambda session: sandboxes.page(session, query))
        more = cursor_after(found[size - 1]) if len(found) > size else None
        return SandboxList(sandboxes=[sandbox_record(sandbox) for sandbox in found[:size]], next_cursor=more)

    async def delete(self, sandbox_id: str) -> SandboxRecord | None:
        """The record, ``deleted`` or (the node has yet to confirm) ``deleting``; ``None`` without such id."""
        until = self._clock.monotonic() + self._settings.delete_wait
        with self._uow.watch(sandbox_id) as watch:
            sandbox = await self._begin_delete(sandbox_id)
            while sandbox is not None and sandbox.state is S.DELETING and await watch.change(self._clock, until):
                sandbox = self._left(sandbox, watch)
        return None if sandbox is None else sandbox_record(sandbox)

    async def pause(self, sandbox_id: str) -> SandboxRecord:
        """Freezes it.  Idempotent.

        Raises:
            ApiError: ``SANDBOX_NOT_FOUND``, ``SANDBOX_NOT_RUNNING``, ``NODE_UNREACHABLE`` and the node's own refusal.
        """
        async with self._lock(sandbox_id):
            located = await self._locate(sandbox_id)
            sandbox = located.sandbox
            if sandbox.state is S.RUNNING:
                address = self._address(located)
                await self._context.orders.pause(address, sandbox.id, sandbox.generation)
                sandbox = await self._settle(sandbox, S.PAUSED)
        return sandbox_record(_expect(sandbox, S.PAUSED))

    async def resume(self, sandbox_id: str) -> SandboxRecord:
        """Lets it go on.  Idempotent.  Raises as `pause`."""
        async with self._lock(sandbox_id):
            located = await self._locate(sandbox_id)
            sandbox = located.sandbox
            if sandbox.state is S.PAUSED:
                address = self._address(located)
                await self._context.orders.resume(address, sandbox.id, sandbox.generation)
                sandbox = await self._settle(sandbox, S.RUNNING)
        return sandbox_record(_expect(sandbox, S.RUNNING))

    async def restart(self, sandbox_id: str) -> SandboxRecord:
        """A new generation on the same node with the same workspace; answers when it runs.

        Raises:
            ApiError: as `create` and `pause`.
        """
        until = self._clock.monotonic() + self._settings.create_wait
        with self._uow.watch(sandbox_id) as watch:
            sandbox = await self._uow.commit(lambda session: self._begin_restart(session, sandbox_id))
            return sandbox_record(await self._brought_up(sandbox, watch, until))

    async def call(
        self,
        sandbox_id: str,
        send: Callable[[Route], Awaitable[T]],
        *,
        generation: int | None = None,
        running: bool = True,
    ) -> T:
        """What ``send`` gives over the route to the sandbox, which may be one that was looked up a moment ago.

        ``send`` is called once more, over a route that is read anew, when the node refused the first as outdated; or
        when it raised something retryable, and the new route is another one.

        Raises:
            ApiError: as `route`, and whatever ``send`` raises.
        """
        known = self._context.routes.get(sandbox_id)
        if known is None or generation not in {None, known.generation}:
            return await send(await self.route(sandbox_id, generation=generation, running=running))
        self.touch(sandbox_id)
        try:
            return await send(known)
        except ApiError as error:
            outdated = error.code in OUTDATED
            if not (error.retryable or outdated):
                raise
            self._context.routes.forget(sandbox_id)
            route = await self.route(sandbox_id, generation=generation, running=running)
            # Outdated and yet the same: another gateway had paused it, and the look has resumed it.
            if route == known and not outdated:
                raise
            return await send(route)

    async def route(self, sandbox_id: str, *, generation: int | None = None, running: bool = True) -> Route:
        """Where to send a call about the sandbox; counts as activity.

        Args:
            sandbox_id: which.
            generation: the incarnation that the caller means (from a session id); ``None`` takes the present one.
            running: whether the call needs live processes (exec, files, usage): a paused sandbox is resumed, and one
                that is not running refuses.  Without it an ended sandbox is routed too, while its node has it (logs).

        Raises:
            ApiError: ``SANDBOX_NOT_FOUND``, ``SANDBOX_NOT_RUNNING`` (with state and reason), ``NODE_UNREACHABLE``,
                ``EXEC_LOST`` when ``generation`` is not the present one.
        """
        with self._context.routes.reading(sandbox_id) as reading:
            located = await self._locate(sandbox_id)
            if generation is not None and generation != located.sandbox.generation:
                raise errors.other_generation(located.sandbox, generation)
            self.touch(sandbox_id)
            if running and located.sandbox.state is S.PAUSED:
                await self.resume(sandbox_id)
                reading.overtaken = False
                located = await self._locate(sandbox_id)
            sandbox = located.sandbox
            ended = sandbox.state in {S.EXITED, S.FAILED} and sandbox.ever_ran
            if not (sandbox.state is S.RUNNING or (not running and (ended or sandbox.state is S.PAUSED))):
                raise errors.not_running(sandbox)
            route = Route(sandbox.id, sandbox.generation, self._address(located))
            if sandbox.state is S.RUNNING:
                self._context.routes.keep(reading, route)
            return route

    def touch(self, sandbox_id: str) -> None:
        """Counts as activity, e.g. while a stream goes on.  Costs no write."""
        self._activity.touch(sandbox_id)

    # -- create -------------------------------------------------------------------------------------------------------

    async def _admit(self, spec: SandboxSpec, spec_hash: str) -> Admitted:
        application = Application(
            spec, spec_hash, self._context.new_id(), self._clock.now(), self._settings.max_pending
        )
        admitted = await self._uow.commit(lambda session: admit(session, application))
        if admitted.sandbox.state is S.PENDING:
            self._asked_for(spec.id)
            if not admitted.recovered:
                self._context.scheduler.note(admitted.sandbox, admitted.reasons)
        return admitted

    def _asked_for(self, sandbox_id: str) -> None:
        """Somebody wants the one that waits, which other gateways learn from its row."""
        self._expiry.renew(sandbox_id)
        self.touch(sandbox_id)

    @contextmanager
    def _seat(self) -> Iterator[bool]:
        """Whether there is a seat to wait on; it is held until the block ends."""
        if self._waits >= MOST_WAITS:
            yield False
            return
        self._waits += 1
        try:
            yield True
        finally:
            self._waits -= 1

    async def _until_next_try(self, seated: bool) -> float:
        """Seconds after which a create that still waits shall be sent again; well within its lease."""
        if seated:
            return errors.RETRY_AFTER
        others = await self._uow.db.read(lambda session: sandboxes.count_in(session, S.PENDING))
        return min(max(errors.RETRY_AFTER, others / RETRIES_PER_SECOND), self._settings.pending_lease / 3)

    async def _brought_up(
        self, sandbox: Sandbox, watch: SandboxWatch, until: float, *, was_there: bool = False, seated: bool = True
    ) -> Sandbox:
        """The sandbox once it is neither waiting nor being created; one that was there as it is, if it ever ran.

        Raises:
            ApiError: the time is over, or it failed, or was deleted meanwhile.
        """
        current = sandbox
        while current.state in {S.PENDING, S.CREATING}:
            if not await watch.change(self._clock, until):
                # Another gateway on the same database may have moved it on.
                current = await self._present(sandbox.id)
                if current.state is S.PENDING:
                    self._asked_for(sandbox.id)
                    reasons = self._context.scheduler.reasons(current)
                    raise errors.no_room(current, reasons, await self._until_next_try(seated))
                if current.state is S.CREATING:
                    raise errors.in_progress(current)
                break
            current = watch.newer_than(current)
        if current.state in {S.DELETING, S.DELETED}:
            raise errors.deleted_meanwhile(current)
        if current.state is S.FAILED and current.error is not None and not (was_there and current.ever_ran):
            raise errors.failed(current)
        return current

    # -- delete -------------------------------------------------------------------------------------------------------

    async def _begin_delete(self, sandbox_id: str) -> Sandbox | None:
        now = self._clock.now()

        def fn(session: Session) -> Written[Sandbox | None]:
            row = sandboxes.get(session, sandbox_id)
            if row is None or row.state is S.DELETED:
                return Written(None)
            after = transitions.unless_leaving(row, DeathReason.DELETED, now)
            if after is None:
                return Written(row)
            saved = sandboxes.save(session, row, after)
            return Written(saved, (saved,))

        return await self._uow.commit(fn)

    def _left(self, sandbox: Sandbox, watch: SandboxWatch) -> Sandbox:
        latest = watch.latest or sandbox
        if latest.generation == sandbox.generation:
            return latest
        # The id is in use again already.
        return transitions.deleted(sandbox, self._clock.now())

    # -- restart ------------------------------------------------------------------------------------------------------

    def _begin_restart(self, session: Session, sandbox_id: str) -> Written[Sandbox]:
        sandbox = sandboxes.get(session, sandbox_id)
        if sandbox is None or sandbox.state is S.DELETED:
            raise errors.not_found(sandbox_id, sandbox)
        if sandbox.state in {S.PENDING, S.CREATING}:
            return Written(sandbox)
        if sandbox.state not in {S.RUNNING, S.PAUSED, S.EXITED, S.FAILED} or not sandbox.ever_ran:
            raise errors.not_running(sandbox)
        room = next((room for room in nodes.rooms(session) if room.node.id == sandbox.node_id), None)
        if room is None:
            raise errors.workspace_gone(sandbox)
        short = sandbox.granted.shortfalls(room.free + sandbox.held)
        if short:
            raise errors.no_room_to_restart(sandbox, short)
        after = transitions.restarted(sandbox, self._context.new_id(), self._clock.now())
        saved = sandboxes.save(session, sandbox, after)
        return Written(saved, (saved,))

    # -- shared -------------------------------------------------------------------------------------------------------

    async def _present(self, sandbox_id: str) -> Sandbox:
        sandbox = await self._uow.db.read(lambda session: sandboxes.get(session, sandbox_id))
        if sandbox is None:
            raise errors.not_found(sandbox_id, None)
        return sandbox

    async def _locate(self, sandbox_id: str) -> _Located:
        def fn(session: Session) -> _Located:
            sandbox = sandboxes.get(session, sandbox_id)
            if sandbox is None or sandbox.state is S.DELETED:
                raise errors.not_found(sandbox_id, sandbox)
            return _Located(sandbox, None if sandbox.node_id is None else nodes.get(session, sandbox.node_id))

        return await self._uow.db.read(fn)

    def _address(self, located: _Located) -> NodeAddress:
        node = located.node
        if node is None or node.state in {NodeState.LOST, NodeState.GONE}:
            raise errors.node_away(located.sandbox)
        return self._context.directory.address_of(node)

    async def _settle(self, sandbox: Sandbox, state: SandboxState) -> Sandbox:
        """Writes what the node confirmed, unless something else happened to the sandbox meanwhile."""
        now = self._clock.now()

        def decide(row: Sandbox) -> Sandbox | None:
            if (row.operation_id, row.state) != (sandbox.operation_id, sandbox.state):
                return None
            return transitions.paused(row, now) if state is S.PAUSED else transitions.resumed(row, now)

        return await self._uow.change(sandbox.id, decide) or await self._present(sandbox.id)

    def _lock(self, sandbox_id: str) -> asyncio.Lock:
        return self._locks.setdefault(sandbox_id, asyncio.Lock())


def _expect(sandbox: Sandbox, state: SandboxState) -> Sandbox:
    if sandbox.state is not state:
        raise errors.not_running(sandbox)
    return sandbox
