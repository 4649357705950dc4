"""Capacity asked for ahead: written, listed, taken back.  Creates claim it in their own transaction."""

from dataclasses import replace
from datetime import timedelta
from typing import Final

from sqlmodel import Session

from gateway.core.placement import NeverFits, Wanted
from gateway.core.prepared import Prepared, PreparedKind
from gateway.errors import ApiError
from gateway.services import scheduler
from gateway.services.ports import Clock, NewId
from gateway.store import prepared
from gateway.store.db import Database
from gateway.wire import limits
from gateway.wire.capacity import BuilderPrepareRequest, PrepareRequest
from gateway.wire.errors import ErrorCode
from gateway.wire.resources import Shape

_NAMES: Final = {PreparedKind.SANDBOX: "prep", PreparedKind.BUILDER: "builder-prep"}


class PreparedService:
    """Units that count as demand until a create claims them or their time is over."""

    def __init__(self, db: Database, clock: Clock, new_id: NewId) -> None:
        self._db = db
        self._clock = clock
        self._new_id = new_id

    async def prepare(self, request: PrepareRequest) -> Prepared:
        """Asks for units of one shape; the same id replaces what was asked for under it.

        Raises:
            ApiError: ``NEVER_FITS`` when no node and no pool could hold one unit; ``NO_ROOM`` when too much is
                prepared already; ``CONFLICT`` when the id is one of builders.
        """
        fresh = self._fresh(PreparedKind.SANDBOX, request, request.shape)
        asked = replace(fresh, runtime=request.chosen_runtime, isolation=request.isolation, image=request.image)

        def fn(session: Session) -> Prepared:
            answer = scheduler.judge(session, Wanted(asked.shape, asked.runtime, asked.isolation))
            if isinstance(answer, NeverFits):
                raise ApiError(
                    ErrorCode.NEVER_FITS,
                    f"capacity {asked.id} fits no node and no pool: {'; '.join(answer.reasons)}; ask for less",
                    reasons=list(answer.reasons),
                    requested_resources=asked.shape,
                    maximum_resources=answer.maximum,
                )
            return _put(session, asked)

        return await self._db.write(fn)

    async def prepare_builders(self, request: BuilderPrepareRequest) -> Prepared:
        """Asks for builders.  Raises as `prepare`, but for ``NEVER_FITS``."""
        asked = self._fresh(PreparedKind.BUILDER, request, Shape())
        return await self._db.write(lambda session: _put(session, asked))

    async def delete(self, kind: PreparedKind, prepare_id: str) -> Prepared | None:
        """Takes back what nobody claimed; ``None`` where there is nothing of that kind and id."""
        now = self._clock.now()

        def fn(session: Session) -> Prepared | None:
            found = prepared.get(session, kind, prepare_id, now)
            if found is None:
                return None
            # Claimed units go as well: what failing creates give back is wanted no more.
            prepared.remove(session, prepare_id)
            return found if found.count else None

        return await self._db.write(fn)

    def _fresh(self, kind: PreparedKind, request: PrepareRequest | BuilderPrepareRequest, shape: Shape) -> Prepared:
        now = self._clock.now()
        return Prepared(
            id=request.id or f"{_NAMES[kind]}-{self._new_id()[:16]}",
            batch=self._new_id(),
            kind=kind,
            shape=shape,
            count=request.count,
            created_at=now,
            updated_at=now,
            expires_at=now + timedelta(seconds=request.ttl_seconds),
        )


def _put(session: Session, asked: Prepared) -> Prepared:
    now = asked.updated_at
    other = next(kind for kind in PreparedKind if kind is not asked.kind)
    namesake = prepared.get(session, other, asked.id, now)
    if namesake is not None and namesake.count:
        raise ApiError(ErrorCode.CONFLICT, f"{asked.id} is prepared as {other.value}s; choose another id")
    before = prepared.get(session, asked.kind, asked.id, now)
    if (before is None or not before.count) and prepared.count(session, now) >= limits.MAX_PREPARED:
        raise ApiError(
            ErrorCode.NO_ROOM,
            f"{limits.MAX_PREPARED} requests for prepared capacity stand already; delete some, or let them expire",
            retry_after=10,
        )
    made = asked if before is None else replace(asked, created_at=before.created_at)
    prepared.put(session, made)
    return made
