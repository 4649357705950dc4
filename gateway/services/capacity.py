"""What waits for room, and what could be had."""

from collections import Counter

from gateway.core.prepared import PreparedKind
from gateway.errors import ApiError
from gateway.services.ports import Clock
from gateway.services.scheduler import Dispatcher
from gateway.services.to_wire import prepared_builders, prepared_capacity
from gateway.store import ceilings, prepared, waiting
from gateway.store.db import Database
from gateway.store.waiting import Waiting
from gateway.wire.capacity import Ceilings, Demand, WaitingSandbox
from gateway.wire.errors import ErrorCode
from gateway.wire.resources import Shape


class CapacityService:
    """Demand and ceilings, for the autoscaler."""

    def __init__(self, db: Database, clock: Clock, dispatcher: Dispatcher) -> None:
        self._db = db
        self._clock = clock
        self._dispatcher = dispatcher

    async def demand(self) -> Demand:
        """What waits now, oldest first, and what is prepared; both of one moment, so that nothing is in both."""
        now = self._clock.now()
        queue, ahead = await self._db.read(lambda session: (waiting.queue(session), prepared.live(session, now)))
        oldest = (now - queue[0].since).total_seconds() if queue else None
        units = [item for item in ahead if item.kind is PreparedKind.SANDBOX]
        builders = [item for item in ahead if item.kind is PreparedKind.BUILDER]
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
            prepared_builder_count=sum(item.count for item in builders),
        )

    async def set_ceilings(self, told: Ceilings) -> None:
        """Replaces what the autoscaler said before; waiting sandboxes are judged again.

        Raises:
            ApiError: ``INVALID_REQUEST`` when a pool is told twice.
        """
        pools = sorted(told.pools, key=lambda pool: pool.pool)
        if len({pool.pool for pool in pools}) != len(pools):
            raise ApiError(ErrorCode.INVALID_REQUEST, "pools: every pool may be told once")
        if await self._db.read(ceilings.told) != pools:
            await self._db.write(lambda session: ceilings.replace_all(session, pools))
            self._dispatcher.wake()


def _waiting(one: Waiting) -> WaitingSandbox:
    return WaitingSandbox(
        sandbox_id=one.sandbox_id,
        shape=one.shape,
        runtime=one.runtime,
        isolation=one.isolation,
        since=one.since,
    )
