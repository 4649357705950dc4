"""What clients ask for: create, find, delete, pause, resume and restart sandboxes, and call them over their routes.

The way of a create: `SandboxService.create` has one transaction write the sandbox and, where a node has room, the
choice of that node (`gateway.services.scheduler.admit`). Its commit starts the controller, which gives the order to the
node (`gateway.services.controllers`) and writes the answer. The create meanwhile watches the row, and returns when it
runs.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeVar
from weakref import WeakValueDictionary

from sqlmodel import Session

from gateway import errors
from gateway.core import transitions
from gateway.core.model import Node, NodeAddress, Route, Sandbox
from gateway.core.policy import Quota
from gateway.errors import ApiError
from gateway.services.controllers import ServiceContext
from gateway.services.expiry import Activity, Reaper
from gateway.services.scheduler import DEFAULT_TERMS, AdmissionRequest, Admitted, CreateTerms, admit, require_quota
from gateway.services.to_wire import cursor_after, read_cursor, sandbox_record
from gateway.services.unit_of_work import SandboxWatch, Written
from gateway.settings import GatewaySettings
from gateway.store import nodes, sandboxes
from gateway.wire import limits
from gateway.wire.errors import ErrorCode
from gateway.wire.sandboxes import SandboxEnvelope, SandboxList, SandboxRecord, SandboxSpec
from gateway.wire.shares import FairPool, Holder
from gateway.wire.states import DeathReason, NodeState, SandboxState
from gateway.wire.tenants import qualified

S = SandboxState
T = TypeVar("T")

MAX_WAITS: Final = 3000
"""Creates that wait at once, shared among tenants; one beyond is admitted as well, and answered at once."""
RETRIES_PER_SECOND: Final = 100
"""Of creates that found no seat to wait, all clients together: they are asked to come back that much later."""
OUTDATED: Final = frozenset({ErrorCode.CONFLICT, ErrorCode.SANDBOX_NOT_FOUND, ErrorCode.SANDBOX_NOT_RUNNING})
"""A node's answers to a call over a route that is no longer right; then nothing was done."""

_SWITCHED: Final = frozenset({S.RUNNING, S.PAUSED})
"""In which the node is asked to pause or resume: it resumes by itself for a call, and the row learns of that later."""


@dataclass(frozen=True)
class _Located:
    """A sandbox and the node that it is on."""

    sandbox: Sandbox
    node: Node | None


class SandboxService:
    """Sandboxes as clients see them."""

    def __init__(self, context: ServiceContext, activity: Activity, reaper: Reaper, settings: GatewaySettings) -> None:
        self._context = context
        self._uow = context.uow
        self._clock = context.clock
        self._activity = activity
        self._reaper = reaper
        self._settings = settings
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._seats = FairPool(MAX_WAITS)

    # -- create -------------------------------------------------------------------------------------------------------

    async def create(self, spec: SandboxSpec, terms: CreateTerms = DEFAULT_TERMS) -> SandboxEnvelope:
        """Return when the tenant's sandbox runs; ``recovered`` when the id was already there with an equal spec.

        One that ran and has ended since is returned as it is, in its state and with its reason; delete it to use the id
        again. One that never ran is answered with the error that it failed with.

        Args:
            spec: what the client asks for.
            terms: what holds beside that.

        Raises:
            ApiError: ``SPEC_CONFLICT``, ``QUOTA_EXCEEDED``, ``NEVER_FITS``;
                ``NO_ROOM`` or ``CREATE_IN_PROGRESS`` when the wait is over and
                the create goes on; ``IMAGE_ERROR``, ``START_ERROR``, ``CAPACITY``, ``DISK_FULL``, ``UNSUPPORTED`` as
                the node answered.
        """
        sandbox_id = qualified(terms.tenant, spec.id)
        with self._uow.watch(sandbox_id) as watch, self._seat(terms.tenant) as seated:
            until = self._clock.monotonic() + (min(terms.wait_seconds, self._settings.create_wait) if seated else 0.0)
            while True:
                admitted = await self._admit(spec, terms)
                if admitted.sandbox.state is not S.DELETING:
                    break
                # An earlier sandbox of this id is on its way out.
                if not await watch.change(self._clock, until):
                    raise errors.still_deleting(admitted.sandbox)
            sandbox = await self._brought_up(
                admitted.sandbox, watch, until, recovered=admitted.recovered, seated=seated
            )
        return SandboxEnvelope(sandbox=sandbox_record(sandbox), recovered=admitted.recovered)

    async def _admit(self, spec: SandboxSpec, terms: CreateTerms) -> Admitted:
        request = AdmissionRequest(
            spec, spec.sha256(), self._context.new_id(), self._clock.now(), self._settings.max_pending, terms
        )
        admitted = await self._uow.commit(lambda session: admit(session, request))
        if admitted.sandbox.state is S.PENDING:
            self._renew_wait(admitted.sandbox.id)
            if admitted.waits is not None:
                self._context.scheduler.note(admitted.sandbox, admitted.waits)
        return admitted

    async def _brought_up(
        self, sandbox: Sandbox, watch: SandboxWatch, until: float, *, recovered: bool = False, seated: bool = True
    ) -> Sandbox:
        """Return the sandbox once it is neither waiting nor being created.

        Args:
            sandbox: as it was admitted.
            watch: on it, opened before it was admitted.
            until: monotonic time until which to wait.
            recovered: it was there before, and is returned as it is, if it ever ran.
            seated: this wait has a seat; without one its client is spread over a longer time.

        Raises:
            ApiError: the time is over, or the sandbox failed, or was deleted meanwhile.
        """
        current = sandbox
        while current.state in {S.PENDING, S.CREATING}:
            if not await watch.change(self._clock, until):
                # Another gateway on the same database may have moved it on.
                current = await self._present(sandbox.id)
                if current.state is S.PENDING:
                    self._renew_wait(sandbox.id)
                    waits = self._context.scheduler.waits(current)
                    raise errors.no_room(current, waits, await self._retry_after(seated))
                if current.state is S.CREATING:
                    raise errors.in_progress(current)
                break
            current = watch.newer_than(current)
        if current.state in {S.DELETING, S.DELETED}:
            raise errors.deleted_meanwhile(current)
        if current.state is S.FAILED and current.error is not None and not (recovered and current.ever_ran):
            raise errors.failed(current)
        return current

    def _renew_wait(self, sandbox_id: str) -> None:
        """Renew the lease of a waiting sandbox; other gateways learn of that from the row's activity."""
        self._reaper.renew(sandbox_id)
        self.touch(sandbox_id)

    @contextmanager
    def _seat(self, tenant: str) -> Iterator[bool]:
        """Yield whether the tenant has a seat left to wait on; it is held until the block ends."""
        holder = Holder(tenant)
        seated = self._seats.take(holder) is None
        try:
            yield seated
        finally:
            if seated:
                self._seats.give(holder)

    async def _retry_after(self, seated: bool) -> float:
        """Return the seconds after which a waiting create shall be sent again; well within its lease."""
        if seated:
            return errors.RETRY_AFTER
        waiting = await self._uow.db.read(lambda session: sandboxes.count_in(session, S.PENDING))
        return min(max(errors.RETRY_AFTER, waiting / RETRIES_PER_SECOND), self._settings.pending_lease / 3)

    # -- find ---------------------------------------------------------------------------------------------------------

    async def get(self, sandbox_id: str) -> SandboxRecord:
        """Return the sandbox; one deleted within the last day has state ``deleted`` and its reason.

        Raises:
            ApiError: ``SANDBOX_NOT_FOUND``.
        """
        return self._record(await self._present(sandbox_id))

    async def page(
        self,
        *,
        labels: Mapping[str, str] | None = None,
        state: SandboxState | None = None,
        limit: int = limits.DEFAULT_PAGE,
        cursor: str | None = None,
        tenant: str | None = None,
    ) -> SandboxList:
        """Return one page, oldest first; deleted ones only when ``state`` asks for them.

        Args:
            labels: which a sandbox must carry, all of them; ``None`` takes every sandbox.
            state: in which a sandbox must be; ``None`` takes all but deleted ones.
            limit: sandboxes a page, `limits.MAX_PAGE` at most.
            cursor: ``next_cursor`` of the page before; ``None`` begins with the oldest.
            tenant: whose; ``None`` takes everybody's.

        Raises:
            ApiError: ``INVALID_REQUEST`` for a cursor that this service did not make.
        """
        size = max(1, min(limit, limits.MAX_PAGE))
        after = None if cursor is None else read_cursor(cursor)
        query = sandboxes.SandboxQuery(limit=size + 1, labels=labels or {}, state=state, after=after, tenant=tenant)
        found = await self._uow.db.read(lambda session: sandboxes.page(session, query))
        more = cursor_after(found[size - 1]) if len(found) > size else None
        return SandboxList(sandboxes=[self._record(sandbox) for sandbox in found[:size]], next_cursor=more)

    def _record(self, sandbox: Sandbox) -> SandboxRecord:
        return sandbox_record(sandbox, self._context.scheduler.waits(sandbox))

    async def _present(self, sandbox_id: str) -> Sandbox:
        sandbox = await self._uow.db.read(lambda session: sandboxes.get(session, sandbox_id))
        if sandbox is None:
            raise errors.not_found(sandbox_id, None)
        return sandbox

    # -- delete -------------------------------------------------------------------------------------------------------

    async def delete(self, sandbox_id: str) -> SandboxRecord | None:
        """Delete a sandbox, in every state.

        Returns:
            The record, ``deleted`` or (the node has yet to confirm) ``deleting``; ``None`` when the id is not in use.
        """
        until = self._clock.monotonic() + self._settings.delete_wait
        with self._uow.watch(sandbox_id) as watch:
            sandbox = await self._uow.commit(lambda session: self._begin_delete(session, sandbox_id), reserved=True)
            while sandbox is not None and sandbox.state is S.DELETING and await watch.change(self._clock, until):
                sandbox = self._left(sandbox, watch)
        return None if sandbox is None else sandbox_record(sandbox)

    def _begin_delete(self, session: Session, sandbox_id: str) -> Written[Sandbox | None]:
        row = sandboxes.get(session, sandbox_id)
        if row is None or row.state is S.DELETED:
            return Written(None)
        after = transitions.unless_leaving(row, DeathReason.DELETED, self._clock.now())
        if after is None:
            return Written(row)
        saved = sandboxes.save(session, row, after)
        return Written(saved, (saved,))

    def _left(self, sandbox: Sandbox, watch: SandboxWatch) -> Sandbox:
        latest = watch.latest or sandbox
        if latest.generation == sandbox.generation:
            return latest
        # The id is in use again already.
        return transitions.deleted(sandbox, self._clock.now())

    # -- pause, resume, restart ---------------------------------------------------------------------------------------

    async def pause(self, sandbox_id: str) -> SandboxRecord:
        """Freeze the sandbox's processes. Idempotent.

        Raises:
            ApiError: ``SANDBOX_NOT_FOUND``, ``SANDBOX_NOT_RUNNING``, ``NODE_UNREACHABLE`` and the node's own refusal.
        """
        async with self._lock(sandbox_id):
            located = await self._locate(sandbox_id)
            sandbox = located.sandbox
            if sandbox.state in _SWITCHED:
                await self._context.orders.pause(self._address(located), sandbox.id, sandbox.generation)
                sandbox = await self._settle(sandbox, S.PAUSED, transitions.paused)
        return sandbox_record(_expect(sandbox, S.PAUSED))

    async def resume(self, sandbox_id: str) -> SandboxRecord:
        """Thaw the sandbox's processes. Idempotent. Raises as `pause`."""
        return sandbox_record((await self._resumed(sandbox_id, _SWITCHED)).sandbox)

    async def _resumed(self, sandbox_id: str, states: Collection[SandboxState]) -> _Located:
        """Return the sandbox once it runs; the node is asked where it is in one of ``states``."""
        async with self._lock(sandbox_id):
            located = await self._locate(sandbox_id)
            sandbox = located.sandbox
            if sandbox.state in states:
                await self._context.orders.resume(self._address(located), sandbox.id, sandbox.generation)
                sandbox = await self._settle(sandbox, S.RUNNING, transitions.resumed)
        return _Located(_expect(sandbox, S.RUNNING), located.node)

    async def _settle(
        self, sandbox: Sandbox, state: SandboxState, confirmed: Callable[[Sandbox, datetime], Sandbox]
    ) -> Sandbox:
        """Write the state that the node confirmed, unless something else happened to the sandbox meanwhile."""
        if sandbox.state is state:
            return sandbox
        now = self._clock.now()
        row = await self._uow.change(
            sandbox.id, lambda row: confirmed(row, now) if row.same_operation(sandbox) else None, reserved=True
        )
        if row is None:
            raise errors.not_found(sandbox.id, None)
        return row

    def _lock(self, sandbox_id: str) -> asyncio.Lock:
        return self._locks.setdefault(sandbox_id, asyncio.Lock())

    async def restart(
        self, sandbox_id: str, quota: Quota | None = None, default_ttl: int | None = None
    ) -> SandboxRecord:
        """Start a new generation on the same node with the same workspace; return when it runs.

        Args:
            sandbox_id: which.
            quota: of its tenant, for one that has ended; ``None`` bounds nothing.
            default_ttl: seconds that it lives from now at most if its spec has no ttl; ``None`` bounds nothing.

        Raises:
            ApiError: as `create` and `pause`.
        """
        until = self._clock.monotonic() + self._settings.create_wait
        with self._uow.watch(sandbox_id) as watch:
            sandbox = await self._uow.commit(
                lambda session: self._begin_restart(session, sandbox_id, quota, default_ttl)
            )
            return sandbox_record(await self._brought_up(sandbox, watch, until))

    def _begin_restart(
        self, session: Session, sandbox_id: str, quota: Quota | None, default_ttl: int | None
    ) -> Written[Sandbox]:
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
        if quota is not None:
            require_quota(session, sandbox.tenant, quota, sandbox.granted.minus(sandbox.claimed))
        after = transitions.restarted(sandbox, self._context.new_id(), self._clock.now(), default_ttl)
        saved = sandboxes.save(session, sandbox, after)
        return Written(saved, (saved,))

    # -- routes -------------------------------------------------------------------------------------------------------

    async def call(
        self,
        sandbox_id: str,
        send: Callable[[Route], Awaitable[T]],
        *,
        generation: int | None = None,
        running: bool = True,
    ) -> T:
        """Return what ``send`` returns over the route to the sandbox, which may be one that was looked up a moment ago.

        ``send`` is called once more, over a route that is read again, when the node refused the first as outdated; or
        when it raised something retryable, and the new route is another one.

        Args:
            sandbox_id: which.
            send: makes the call to the node of a route.
            generation: as for `route`.
            running: as for `route`.

        Raises:
            ApiError: as `route`, and whatever ``send`` raises.
        """
        known = self._context.routes.get(sandbox_id)
        if known is None or generation not in {None, known.generation}:
            return await send(await self.route(sandbox_id, generation=generation, running=running))
        self._activity.touch(sandbox_id, known.idle_seconds)
        try:
            return await send(known)
        except ApiError as error:
            outdated = error.code in OUTDATED
            if not (error.retryable or outdated):
                raise
            self._context.routes.drop(sandbox_id)
            route = await self.route(sandbox_id, generation=generation, running=running)
            # Outdated and yet the same: another gateway had paused it, and the look has resumed it.
            if route == known and not outdated:
                raise
            return await send(route)

    async def route(self, sandbox_id: str, *, generation: int | None = None, running: bool = True) -> Route:
        """Return where to send a call about the sandbox; counts as activity.

        Args:
            sandbox_id: which.
            generation: the incarnation that the caller means (from a session id); ``None`` takes the present one.
            running: whether the call needs live processes (exec, files, usage): a paused sandbox is resumed, and one
                that is not running refuses. Without it an ended sandbox is routed too, while its node has it (logs).

        Raises:
            ApiError: ``SANDBOX_NOT_FOUND``, ``SANDBOX_NOT_RUNNING`` (with state and reason), ``NODE_UNREACHABLE``,
                ``EXEC_LOST`` when ``generation`` is not the present one.
        """
        with self._context.routes.lookup(sandbox_id) as lookup:
            located = await self._locate(sandbox_id)
            if generation is not None and generation != located.sandbox.generation:
                raise errors.other_generation(located.sandbox, generation)
            self._activity.touch(sandbox_id, located.sandbox.spec.idle_seconds)
            if running and located.sandbox.state is S.PAUSED:
                located = await self._resumed(sandbox_id, {S.PAUSED})
            sandbox = located.sandbox
            ended = sandbox.state in {S.EXITED, S.FAILED} and sandbox.ever_ran
            if not (sandbox.state is S.RUNNING or (not running and (ended or sandbox.state is S.PAUSED))):
                raise errors.not_running(sandbox)
            spec, address = sandbox.spec, self._address(located)
            route = Route(sandbox.id, sandbox.generation, address, spec.isolation, spec.idle_seconds)
            if sandbox.state is S.RUNNING:
                self._context.routes.keep(lookup, route)
            return route

    def touch(self, sandbox_id: str) -> None:
        """Count as activity, e.g. while a stream goes on. Costs no write."""
        self._activity.touch(sandbox_id)

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


def _expect(sandbox: Sandbox, state: SandboxState) -> Sandbox:
    if sandbox.state is not state:
        raise errors.not_running(sandbox)
    return sandbox
