"""The journal in memory: a simulated day writes tens of thousands of rows that are never read again.

It keeps the same rows by the same rules as the one in the database, and a test holds the two against each other.
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Final

from autoscaler.core import backoff, cost
from autoscaler.core.actions import Adopt, BootExtended, BootStarted, Finding, Learn, Move
from autoscaler.core.doubts import Doubt
from autoscaler.core.findings import changed
from autoscaler.core.states import IntentState, next_state
from autoscaler.core.world import BackOff, BackOffKey, Intent, LearnedKey
from autoscaler.store.journal import EVENTS_KEPT, Event, Journal
from gateway.wire.resources import Shape

GONE_KEPT: Final = 500
"""Names of gone instances, the latest ones: by then their nodes are forgotten."""


class MemoryJournal(Journal):
    """See `autoscaler.store.journal.Journal`; nothing of it outlives the process."""

    def __init__(self) -> None:
        self._open: dict[str, Intent] = {}
        self._gone: deque[str] = deque(maxlen=GONE_KEPT)
        self._last_gone: dict[str, Intent] = {}
        self._backoffs: dict[BackOffKey, BackOff] = {}
        self._learned: dict[LearnedKey, Shape] = {}
        self._euros: dict[tuple[str, str], Decimal] = {}
        self._events: deque[Event] = deque(maxlen=EVENTS_KEPT)
        self._number = 0
        self.moves: Counter[str] = Counter()
        """How many intents have entered each state."""

    def close(self) -> None:
        """Do nothing: no connection is held."""

    def open_intents(self) -> tuple[Intent, ...]:
        return tuple(sorted(self._open.values(), key=lambda intent: (intent.created_at, intent.operation_id)))

    def spent(self, now: float) -> dict[str, Decimal]:
        month = cost.month_of(now)
        return {pool: euros for (pool, booked), euros in self._euros.items() if booked == month}

    def gone_names(self) -> frozenset[str]:
        return frozenset(self._gone)

    def intent(self, operation_id: str) -> Intent:
        return self._open.get(operation_id) or self._last_gone[operation_id]

    def add(self, intents: Sequence[Intent]) -> None:
        for intent in intents:
            self._open[intent.operation_id] = intent
            self._record(intent.created_at, intent.name, intent.state, intent.detail)
            self.moves[intent.state] += 1

    def move(self, operation_id: str, to: IntentState, *, now: float, reason: str, **changes: object) -> Intent:
        before = self.intent(operation_id)
        after = replace(before, state=next_state(before.state, to), changed_at=now, detail=reason)
        after = replace(after, **changes)  # type: ignore[arg-type]  # the fields' names are checked by replace
        self._change(before, after, now)
        return after

    def amend(self, operation_id: str, *, now: float, reason: str, **changes: object) -> Intent:
        after = replace(self.intent(operation_id), detail=reason, **changes)  # type: ignore[arg-type]  # as above
        self._open[operation_id] = after
        self._record(now, after.name, "note", reason)
        return after

    def settle(self, findings: Sequence[Finding], now: float) -> None:
        for finding in findings:
            match finding:
                case Move():
                    before = self.intent(finding.operation_id)
                    self._change(before, changed(before, finding, now), now)
                case BootStarted() | BootExtended():
                    before = self.intent(finding.operation_id)
                    self._open[finding.operation_id] = changed(before, finding, now)
                    self._record(now, before.name, finding.event, finding.reason)
                case Adopt():
                    self._open[finding.intent.operation_id] = finding.intent
                    self._record(now, finding.intent.name, "adopted", finding.reason)
                case Learn():
                    self._learned[finding.key] = finding.shape
                    self._record(now, f"{finding.pool}/{finding.type}", "learned", finding.shape.model_dump_json())
                case Doubt():
                    pass  # it changes no row

    def backoffs(self) -> dict[BackOffKey, BackOff]:
        return dict(self._backoffs)

    def back_off(self, held: BackOff) -> None:
        self._backoffs[held.key] = held
        self._record(held.failed_at, str(held.key), "backoff", backoff.describe(held))

    def clear_backoffs(self, keys: Sequence[BackOffKey]) -> None:
        for key in keys:
            self._backoffs.pop(key, None)

    def learned(self) -> dict[LearnedKey, Shape]:
        return dict(self._learned)

    def record(self, now: float, subject: str, kind: str, detail: str) -> None:
        self._record(now, subject, kind, detail)

    def events(self, limit: int) -> tuple[Event, ...]:
        return tuple(self._events)[-limit:]

    def prune(self, now: float) -> None:
        """Do nothing: what is kept is bounded anyway."""

    def _change(self, before: Intent, after: Intent, now: float) -> None:
        self._record(now, after.name, after.state, after.detail)
        self.moves[after.state] += 1
        if after.state is not IntentState.GONE:
            self._open[after.operation_id] = after
            return
        del self._open[after.operation_id]
        self._last_gone = {after.operation_id: after}
        self._gone.append(after.name)
        if euros := cost.cost(before, now):
            key = (before.pool, cost.month_of(now))
            self._euros[key] = self._euros.get(key, Decimal(0)) + euros

    def _record(self, at: float, subject: str, kind: str, detail: str) -> None:
        self._number += 1
        self._events.append(Event(self._number, at, subject, kind, detail))
