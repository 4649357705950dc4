"""The journal of intents.  Every method is one transaction, durable when it returns, from any thread."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, replace
from decimal import Decimal
from typing import Any, Final

from sqlalchemy import Engine, delete, tuple_
from sqlmodel import Session, col, select

from autoscaler.core import backoff, cost
from autoscaler.core.actions import Adopt, BootExtended, BootStarted, Finding, Learn, Move
from autoscaler.core.doubts import Doubt
from autoscaler.core.findings import changed
from autoscaler.core.states import IntentState, next_state
from autoscaler.core.world import BackOff, BackOffKey, BackOffKind, Intent, LearnedKey
from autoscaler.store.db import open_copy, open_engine
from autoscaler.store.tables import BackOffRow, EventRow, IntentRow, LearnedRow, SpendRow
from gateway.wire.resources import Shape

EVENTS_KEPT: Final = 10_000
GONE_KEPT_SECONDS: Final = 7 * 24 * 3600.0
"""For so long the row of a gone instance is kept."""


@dataclass(frozen=True)
class Event:
    """One thing that happened."""

    id: int
    at: float
    subject: str
    kind: str
    detail: str


class Journal:
    """Intents, events, back-offs and learned shapes; the only writer of its database."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.guard: Callable[[Session], None] = lambda _: None
        """Called first in every transaction that writes; what it raises, the write raises."""

    @classmethod
    def open(cls, url: str) -> "Journal":
        """Open the journal at a SQLAlchemy URL; create or migrate it.

        Raises:
            JournalError: it cannot be used.
        """
        return cls(open_engine(url))

    @classmethod
    def open_copy(cls, url: str) -> "Journal":
        """Open a copy of the journal at a SQLAlchemy URL to look at; nothing there is created or migrated.

        Raises:
            JournalError: it cannot be read.
        """
        return cls(open_copy(url))

    @property
    def engine(self) -> Engine:
        """The engine, for the lease that lives in the same database."""
        return self._engine

    @property
    def shared(self) -> bool:
        """Whether autoscalers on several machines may have it; a file has a lock of its own."""
        return self._engine.dialect.name == "postgresql"

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    # -- intents ------------------------------------------------------------------------------------------------------

    def open_intents(self) -> tuple[Intent, ...]:
        """Return all intents that are not gone, the oldest first."""
        with Session(self._engine) as session, session.begin():
            query = select(IntentRow).where(IntentRow.state != IntentState.GONE)
            rows = session.exec(query.order_by(col(IntentRow.created_at), col(IntentRow.operation_id)))
            return tuple(_intent(row) for row in rows)

    def spent(self, now: float) -> dict[str, Decimal]:
        """Return the euro that gone instances have cost in this month, by pool."""
        with Session(self._engine) as session, session.begin():
            rows = session.exec(select(SpendRow).where(SpendRow.month == cost.month_of(now)))
            return {row.pool: Decimal(row.euros) for row in rows}

    def gone_names(self) -> frozenset[str]:
        """Return the names of gone instances whose rows are still kept."""
        with Session(self._engine) as session, session.begin():
            return frozenset(session.exec(select(IntentRow.name).where(IntentRow.state == IntentState.GONE)))

    def intent(self, operation_id: str) -> Intent:
        """Return one intent, which must exist."""
        with Session(self._engine) as session, session.begin():
            return _intent(session.get_one(IntentRow, operation_id))

    def add(self, intents: Sequence[Intent]) -> None:
        """Write new intents, all or none."""
        with self._writing() as session:
            for intent in intents:
                session.add(_stored(intent))
                session.add(_event(intent.created_at, intent.name, intent.state, intent.detail))

    def move(self, operation_id: str, to: IntentState, *, now: float, reason: str, **changes: object) -> Intent:
        """Change the state of one intent, and with it any other fields.

        Raises:
            IntentTransitionError: the state table does not allow that change.
        """
        with self._writing() as session:
            row = _row(session, operation_id)
            before = _intent(row)
            after = replace(before, state=next_state(before.state, to), changed_at=now, detail=reason)
            after = replace(after, **changes)  # type: ignore[arg-type]  # the fields' names are checked by replace
            _change(session, row, before, after, now)
            session.add(_event(now, after.name, to, reason))
            return after

    def amend(self, operation_id: str, *, now: float, reason: str, **changes: object) -> Intent:
        """Change fields other than the state."""
        with self._writing() as session:
            row = _row(session, operation_id)
            after = replace(_intent(row), detail=reason, **changes)  # type: ignore[arg-type]  # as above
            _store(session, row, after)
            session.add(_event(now, after.name, "note", reason))
            return after

    def settle(self, findings: Sequence[Finding], now: float) -> None:
        """Write findings, all or none."""
        with self._writing() as session:
            for finding in findings:
                match finding:
                    case Move() | BootStarted() | BootExtended():
                        row = _row(session, finding.operation_id)
                        before = _intent(row)
                        _change(session, row, before, changed(before, finding, now), now)
                        session.add(_event(now, before.name, finding.event, finding.reason))
                    case Adopt():
                        session.merge(_stored(finding.intent))
                        session.add(_event(now, finding.intent.name, "adopted", finding.reason))
                    case Learn():
                        shape = finding.shape.model_dump_json()
                        row_of = LearnedRow(pool=finding.pool, type=finding.type, spec=finding.spec, shape=shape)
                        session.merge(row_of)
                        session.add(_event(now, f"{finding.pool}/{finding.type}", "learned", shape))
                    case Doubt():
                        pass  # it changes no row; the reconciler tells it

    # -- back-offs and learned shapes ---------------------------------------------------------------------------------

    def backoffs(self) -> dict[BackOffKey, BackOff]:
        """Return all stored back-offs by key, ended or not."""
        with Session(self._engine) as session, session.begin():
            return {held.key: held for held in map(_backoff, session.exec(select(BackOffRow)))}

    def back_off(self, held: BackOff) -> None:
        """Store a back-off in place of the one under its key."""
        with self._writing() as session:
            session.merge(BackOffRow(**asdict(held.key), **{k: v for k, v in vars(held).items() if k != "key"}))
            session.add(_event(held.failed_at, str(held.key), "backoff", backoff.describe(held)))

    def clear_backoffs(self, keys: Sequence[BackOffKey]) -> None:
        """Delete the back-offs under these keys."""
        key = tuple_(col(BackOffRow.kind), col(BackOffRow.owner), col(BackOffRow.item))
        with self._writing() as session:
            session.exec(delete(BackOffRow).where(key.in_([astuple(each) for each in keys])))

    def learned(self) -> dict[LearnedKey, Shape]:
        """Return what nodes really had, by pool, type and spec; for each pool and type, the last spec only."""
        with Session(self._engine) as session, session.begin():
            rows = session.exec(select(LearnedRow))
            return {(row.pool, row.type, row.spec): Shape.model_validate_json(row.shape) for row in rows}

    # -- events -------------------------------------------------------------------------------------------------------

    def record(self, now: float, subject: str, kind: str, detail: str) -> None:
        """Write an event that changes no row."""
        with self._writing() as session:
            session.add(_event(now, subject, kind, detail))

    def events(self, limit: int) -> tuple[Event, ...]:
        """Return the latest events, the newest last."""
        with Session(self._engine) as session, session.begin():
            rows = session.exec(select(EventRow).order_by(col(EventRow.id).desc()).limit(limit)).all()
            return tuple(Event(**row.model_dump()) for row in reversed(rows))

    def prune(self, now: float) -> None:
        """Delete events beyond `EVENTS_KEPT`, rows gone for `GONE_KEPT_SECONDS`, and back-offs long ended."""
        with self._writing() as session:
            newest = session.exec(select(EventRow.id).order_by(col(EventRow.id).desc()).limit(1)).first() or 0
            session.exec(delete(EventRow).where(col(EventRow.id) <= newest - EVENTS_KEPT))
            old = col(IntentRow.changed_at) < now - GONE_KEPT_SECONDS
            session.exec(delete(IntentRow).where(col(IntentRow.state) == IntentState.GONE, old))
            quiet = now - backoff.FORGET_SECONDS
            session.exec(delete(BackOffRow).where(col(BackOffRow.failed_at) < quiet, col(BackOffRow.until) < quiet))

    @contextmanager
    def _writing(self) -> Iterator[Session]:
        with Session(self._engine) as session, session.begin():
            self.guard(session)
            yield session


def _row(session: Session, operation_id: str) -> IntentRow:
    """Return a row, locked for a change by this thread only."""
    return session.get_one(IntentRow, operation_id, with_for_update=True)


def _intent(row: IntentRow) -> Intent:
    price = Decimal(row.price) if row.price is not None else None
    return Intent(**{**row.model_dump(), "state": IntentState(row.state), "price": price})


def _backoff(row: BackOffRow) -> BackOff:
    key = BackOffKey(BackOffKind(row.kind), row.owner, row.item)
    return BackOff(key, row.until, row.failures, row.failed_at, row.reason)


def _stored(intent: Intent) -> IntentRow:
    return IntentRow(**_columns(intent))


def _columns(intent: Intent) -> dict[str, Any]:
    return {**asdict(intent), "price": str(intent.price) if intent.price is not None else None}


def _store(session: Session, row: IntentRow, intent: Intent) -> None:
    for name, value in _columns(intent).items():
        setattr(row, name, value)
    session.add(row)


def _change(session: Session, row: IntentRow, before: Intent, after: Intent, now: float) -> None:
    """Store a change of state, and with the end of a row what its instance has cost."""
    _store(session, row, after)
    if after.state is IntentState.GONE and (euros := cost.cost(before, now)):
        month = cost.month_of(now)
        key = (before.pool, month)
        booked = session.get(SpendRow, key, with_for_update=True) or SpendRow(pool=before.pool, month=month, euros="0")
        booked.euros = str(Decimal(booked.euros) + euros)
        session.add(booked)


def _event(at: float, subject: str, kind: str, detail: str) -> EventRow:
    return EventRow(at=at, subject=subject, kind=kind, detail=detail)
