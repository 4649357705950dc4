"""What waits for capacity, what was requested ahead, and what could be bought.

Prepared units count as demand until a create claims them, in its own transaction, or their time is over.
"""

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Final

from sqlmodel import Session

from gateway import errors
from gateway.core.model import PreparedBatch, PreparedKind
from gateway.core.placement import NeverFits, Requirements
from gateway.core.policy import Quota
from gateway.core.quota import units_excess
from gateway.errors import ApiError
from gateway.services.scheduler import Scheduler, place_one
from gateway.services.tasks import AsyncClock, NewId
from gateway.services.to_wire import prepared_builders, prepared_capacity
from gateway.store import capacity, sandboxes
from gateway.store.db import Database, lock_placement
from gateway.store.sandboxes import QueuedSandbox
from gateway.wire import limits
from gateway.wire.capacity import BuilderPrepareRequest, Ceilings, Demand, PrepareRequest, WaitingSandbox
from gateway.wire.errors import ErrorCode
from gateway.wire.resources import Shape
from gateway.wire.tenants import DEFAULT_TENANT, qualified, tenant_of

_PREFIXES: Final = {PreparedKind.SANDBOX: "prep", PreparedKind.BUILDER: "builder-prep"}
"""Of the ids of prepared units for which the client chose none."""


class CapacityService:
    """Demand and ceilings, for the autoscaler."""

    def __init__(self, db: Database, clock: AsyncClock, scheduler: Scheduler) -> None:
        self._db = db
        self._clock = clock
        self._scheduler = scheduler

    async def demand(self, tenant: str | None = None) -> Demand:
        """Return what waits now, oldest first, and what is prepared.

        Both are of one moment, so that nothing is in both.

        Args:
            tenant: whose; ``None`` returns everybody's.
        """
        now = self._clock.now()
        queue, ahead = await self._db.read(
            lambda session: (sandboxes.queue(session, tenant), capacity.unclaimed(session, now, tenant))
        )
        oldest = (now - queue[0].since).total_seconds() if queue else None
        units = [item for item in ahead if item.kind is PreparedKind.SANDBOX]
        builders = [item for item in ahead if item.kind is PreparedKind.BUILDER]
        builder_count = sum(item.count for item in builders)
        alike = Counter(one.shape for one in queue)
        pending = sum((shape.times(count) for shape, count in alike.items()), start=Shape())
        wanted_ahead = sum((item.total for item in units), start=Shape())
        return Demand(
            waiting=[_waiting(one) for one in queue],
            pending_count=len(queue),
            pending_resources=pending,
            oldest_pending_seconds=None if oldest is None else max(0.0, oldest),
            prepared=[prepared_capacity(item) for item in units],
            prepared_resources=wanted_ahead,
            desired_resources=pending + wanted_ahead,
            prepared_builders=[prepared_builders(item) for item in builders],
            prepared_builder_count=builder_count,
            desired_builders=builder_count,
        )

    async def set_ceilings(self, reported: Ceilings) -> None:
        """Replace what the autoscaler reported before; waiting sandboxes are judged again.

        Raises:
            ApiError: ``INVALID_REQUEST`` when a pool is in it twice.
        """
        pools = sorted(reported.pools, key=lambda pool: pool.pool)
        if len({pool.pool for pool in pools}) != len(pools):
            raise ApiError(ErrorCode.INVALID_REQUEST, "pools: every pool may be named once")
        if await self._db.read(capacity.ceilings) != pools:
            await self._db.write(lambda session: capacity.replace_ceilings(session, pools))
            self._scheduler.wake()


class PreparedService:
    """Capacity asked for ahead: prepared and taken back."""

    def __init__(self, db: Database, clock: AsyncClock, new_id: NewId) -> None:
        self._db = db
        self._clock = clock
        self._new_id = new_id

    async def prepare(
        self, request: PrepareRequest, tenant: str = DEFAULT_TENANT, quota: Quota | None = None
    ) -> PreparedBatch:
        """Prepare units of one shape for a tenant; the same id replaces what was asked for under it.

        Raises:
            ApiError: ``NEVER_FITS`` when no node and no pool could hold one unit; ``QUOTA_EXCEEDED`` when that is too
                much; ``NO_ROOM`` when too much is prepared already; ``CONFLICT`` when the id is one of builders.
        """
        fresh = self._fresh(PreparedKind.SANDBOX, request, request.shape, tenant)
        asked = replace(fresh, runtime=request.chosen_runtime, isolation=request.isolation, image=request.image)

        def fn(session: Session) -> PreparedBatch:
            answer = place_one(session, Requirements(asked.shape, asked.runtime, asked.isolation))
            if isinstance(answer, NeverFits):
                raise errors.never_fits(f"capacity {asked.id}", asked.shape, answer)
            return _put(session, asked, quota)

        return await self._db.write(fn)

    async def prepare_builders(
        self, request: BuilderPrepareRequest, tenant: str = DEFAULT_TENANT, quota: Quota | None = None
    ) -> PreparedBatch:
        """Prepare builders for a tenant. Raises as `prepare`, but for ``NEVER_FITS``."""
        asked = self._fresh(PreparedKind.BUILDER, request, Shape(), tenant)
        return await self._db.write(lambda session: _put(session, asked, quota))

    async def delete(self, kind: PreparedKind, prepare_id: str) -> PreparedBatch | None:
        """Take back what nobody claimed; return it, or ``None`` where there is nothing of that kind and id."""
        now = self._clock.now()

        def fn(session: Session) -> PreparedBatch | None:
            found = capacity.get(session, kind, prepare_id, now)
            if found is None:
                return None
            # Claimed units go as well: what failing creates give back is no longer wanted.
            capacity.remove(session, prepare_id)
            return found if found.count else None

        return await self._db.write(fn, reserved=True)

    def _fresh(
        self, kind: PreparedKind, request: PrepareRequest | BuilderPrepareRequest, shape: Shape, tenant: str
    ) -> PreparedBatch:
        now = self._clock.now()
        return PreparedBatch(
            id=qualified(tenant, request.id or f"{_PREFIXES[kind]}-{self._new_id()[:16]}"),
            tenant=tenant,
            batch=self._new_id(),
            kind=kind,
            shape=shape,
            count=request.count,
            created_at=now,
            updated_at=now,
            expires_at=now + timedelta(seconds=request.ttl_seconds),
        )


def _put(session: Session, asked: PreparedBatch, quota: Quota | None) -> PreparedBatch:
    lock_placement(session.connection())
    now = asked.updated_at
    other = next(kind for kind in PreparedKind if kind is not asked.kind)
    namesake = capacity.get(session, other, asked.id, now)
    if namesake is not None and namesake.count:
        raise ApiError(ErrorCode.CONFLICT, f"{asked.id} is prepared as {other.value}s; choose another id")
    before = capacity.get(session, asked.kind, asked.id, now)
    if (before is None or not before.count) and capacity.count_unclaimed(
        session, now, asked.tenant
    ) >= limits.MAX_PREPARED:
        raise ApiError(
            ErrorCode.NO_ROOM,
            f"tenant {asked.tenant} has {limits.MAX_PREPARED} requests for prepared capacity already; delete some, or"
            " let them expire",
            retry_after=errors.RETRY_WHEN_FULL,
        )
    if quota is not None:
        replaced = before.count if before is not None else 0
        used = capacity.unclaimed_units(session, now, asked.tenant) - replaced
        excess = units_excess(quota, used, asked.count)
        if excess is not None:
            raise errors.quota_exceeded(asked.tenant, excess)
    made = asked if before is None else replace(asked, created_at=before.created_at)
    capacity.put(session, made)
    return made


def _waiting(one: QueuedSandbox) -> WaitingSandbox:
    return WaitingSandbox(
        sandbox_id=one.sandbox_id,
        tenant=tenant_of(one.sandbox_id),
        shape=one.shape,
        runtime=one.runtime,
        isolation=one.isolation,
        since=one.since,
    )
