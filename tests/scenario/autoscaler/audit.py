"""The ten invariants (docs/autoscaler.md), held against the truth of clouds, gateway and journal.

The audit looks before every call that creates or deletes, and after every commit.  What the code under test believes
counts for nothing here.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from sqlalchemy.exc import OperationalError

from autoscaler.core.actions import Move
from autoscaler.core.pools import FleetPolicy
from autoscaler.core.states import IntentState
from autoscaler.core.world import Intent
from autoscaler.reconcile import TickReport
from gateway.wire.states import NodeState
from providers.base import POOL_LABEL, Create, Deleted, Instance, Ref
from providers.testing.fake import FakeCloud, FakeProvider, Machine
from tests.scenario.autoscaler.fake_gateway import LOST_SECONDS, Grant

if TYPE_CHECKING:
    from tests.scenario.autoscaler.worlds import Audited

HOUR: Final = 3600.0
PATIENT: Final = 420.0
"""Seconds for which a delete may be due at a cloud that can be seen; the longest pause between two tries is 360."""
S = IntentState
GOING: Final = frozenset({S.LOST, S.ABANDONED, S.DELETING})
"""States in which a delete is all that is left to do."""


class Violation(BaseException):
    """An invariant is broken.  No handler in the code under test may swallow it.

    Attributes:
        number: of the invariant.
        may_be_slow: whether the world might only have needed longer.
    """

    def __init__(self, number: int, words: str, *, may_be_slow: bool = False) -> None:
        super().__init__(f"invariant {number}: {words}")
        self.number = number
        self.may_be_slow = may_be_slow


def must(number: int, holds: bool, words: str) -> None:
    """Raise `Violation` with the invariant's number unless it holds."""
    if not holds:
        raise Violation(number, words)


class AuditedProvider(FakeProvider):
    """Checks every delete and create before it happens."""

    audit: "Audit"

    def create(self, want: Create) -> Instance:
        self.audit.creates(want)
        return super().create(want)

    def delete(self, ref: Ref) -> Deleted:
        self.audit.asked(ref)
        for machine in self._find(ref):
            if machine.gone_at is None:
                self.audit.deletes(self.cloud, machine)
        return super().delete(ref)


@dataclass
class Audit:
    """What must hold, and what has to be remembered for it.

    Attributes:
        step: where the process dies next.
        failing: so many commits fail from here on.
        orphans: machines, by id, that no row has to know: the world made them behind the autoscaler's back.
    """

    fleet: "Audited"
    policy: FleetPolicy
    step: Callable[[str], None] | None = None
    failing: int = 0
    orphans: set[str] = field(default_factory=set)
    forgotten: set[str] = field(default_factory=set)
    """Operations that were under way when a journal was lost: what comes of them is known by its labels only."""
    born: dict[str, datetime] = field(default_factory=dict)
    """When each operation was first in the journal: from there on it has its time to start."""
    sent: set[str] = field(default_factory=set)
    states: dict[str, IntentState] = field(default_factory=dict)
    homes: dict[str, str] = field(default_factory=dict)
    """The provider of each operation."""
    due: dict[str, float] = field(default_factory=dict)
    """For how many seconds the delete of a row could have been sent, and was not."""
    deleted: list[datetime] = field(default_factory=list)
    jumped_at: datetime | None = None
    is_bookkept: bool = True
    """Whether the journal has seen all that was spent, by a clock that was right."""
    rows_over: int = 0
    """By how many rows the fleet may be over its limits, until it orders more: what works and has no row gets one."""
    has_forgotten: bool = False
    """Whether a journal was lost."""

    def __call__(self, name: str) -> None:
        """Check before and after every commit and call."""
        if name.startswith("before ") and self.failing > 0:
            self.failing -= 1
            raise OperationalError(name, {}, Exception("database or disk is full"))
        if name == "after add":
            self.limits(is_new=True)
        if name.startswith("after "):
            self.truth()
        if self.step is not None:
            self.step(name)

    # -- at every moment ----------------------------------------------------------------------------------------------

    def truth(self) -> None:
        """Check that every operation has one machine and a row, within all limits, and that no row is wrong."""
        rows = self.fleet.journal.open_intents()
        known = {row.operation_id for row in rows}
        for cloud in self.fleet.clouds.values():
            for operation, machines in cloud.by_operation().items():
                must(1, bool(operation), f"{machines} carry no operation")
                must(1, len(machines) == 1, f"operation {operation} has {machines}")
            for machine in cloud.machines.values():
                is_known = machine.operation in known | self.forgotten or machine.instance.id in self.orphans
                must(2, is_known or machine.gone_at is not None, f"{machine.instance.name} has no row")
            must(9, cloud.rate_refusals == 0, f"{cloud.caps.calls_per_hour} calls an hour were not enough")
        self._changes(rows)
        self.limits()

    def limits(self, *, is_new: bool = False) -> None:
        """Check that rows and euro are within their limits, intents not yet called included."""
        rows = self.fleet.journal.open_intents()
        most, cap = self.policy.max, self.policy.max_hourly
        assert most is not None
        is_new = is_new and any(row.operation_id not in self.states for row in rows)
        over = 0 if is_new else self.rows_over
        must(3, len(rows) <= most + over, f"the fleet has {len(rows)} rows")
        must(3, bool(over) or cap is None or _rate(rows) <= cap, f"the fleet costs {_rate(rows)}")
        for each in self.policy.pools:
            mine = [row for row in rows if row.pool == each.name]
            if is_new and all(row.operation_id in self.states for row in mine):
                continue
            must(3, len(mine) <= each.max + over, f"{each.name} has {len(mine)} rows")
            is_dear = each.max_hourly is not None and _rate(mine) > each.max_hourly
            must(3, bool(over) or not is_dear, f"{each.name} costs {_rate(mine)}")

    def _changes(self, rows: tuple[Intent, ...]) -> None:
        """Check what became of rows since the last look."""
        for row in rows:
            self.homes[row.operation_id] = row.provider
            self.born.setdefault(row.operation_id, self.fleet.cloud.now)
            before, self.states[row.operation_id] = self.states.get(row.operation_id), row.state
            if before is row.state:
                continue
            if row.state in (S.READY, S.DRAINING) and before not in (S.READY, S.DRAINING):
                self._became_node(row)
            if row.state is S.LOST:
                self._was_lost(row)

    def _became_node(self, row: Intent) -> None:
        gateway = self.fleet.gateway
        machines = [m for m in self.machines() if gateway.agents.get(m.instance.id) == row.node_id]
        for machine in machines:
            other = f"{row.name} ({row.operation_id}) is taken for the node of {machine.operation}"
            must(10, machine.operation == row.operation_id, other)

    def _was_lost(self, row: Intent) -> None:
        for machine in self.machines():
            if machine.operation != row.operation_id or machine.lost or machine.gone_at is not None:
                continue
            record = self.fleet.gateway.record_of(machine)
            lives = record is not None or row.node_id is None
            must(6, not lives, f"{row.name} is taken for lost, and is there")

    # -- calls --------------------------------------------------------------------------------------------------------

    def creates(self, want: Create) -> None:
        """Check that the row is there before the call, under the same name, and that the month can pay for it."""
        row = self.fleet.journal.intent(want.operation_id)
        must(2, (row.name, row.state) == (want.name, "calling"), f"{row}")
        is_first = want.operation_id not in self.sent
        self.sent.add(want.operation_id)
        pool = next(each for each in self.policy.pools if each.name == want.pool)
        if is_first and self.is_bookkept and pool.max_monthly is not None:
            made = {machine.operation for cloud in self.fleet.clouds.values() for machine in cloud.made}
            rows = [row for row in self.fleet.journal.open_intents() if row.pool == want.pool]
            paid = self.paid(want.pool) + _rate(row for row in rows if row.operation_id not in made)
            must(3, paid <= pool.max_monthly, f"{want.pool} may cost {paid} this month")

    def paid(self, pool: str) -> Decimal:
        """Return the euro that the machines of a pool have cost, by their clouds; started hours count in full."""
        total = Decimal(0)
        for cloud in self.fleet.clouds.values():
            prices = {(offer.type, offer.location): offer.price_per_hour for offer in cloud.offers}
            for made in cloud.made:
                price = prices[made.instance.type, made.instance.location]
                if made.instance.labels.get(POOL_LABEL) != pool or made.instance.id in self.orphans:
                    continue
                until = min(made.gone_at or cloud.now, cloud.now)
                age = (until - made.instance.created_at).total_seconds() + cloud.clock_off
                total += (price or Decimal(0)) * max(1, math.ceil(age / HOUR))
        return total

    def asked(self, ref: Ref) -> None:
        """Record that a delete was sent, whatever comes of it."""
        self.deleted.append(self.fleet.cloud.now)
        for row in self.fleet.journal.open_intents():
            if row.name == ref.name:
                self.due.pop(row.operation_id, None)

    def deletes(self, cloud: FakeCloud, machine: Machine) -> None:
        """Check that it is proved idle, late, lost or nobody's; and of two with one name, the one that is meant."""
        rows = {row.operation_id: row for row in self.fleet.journal.open_intents()}
        row, name = rows.get(machine.operation), machine.instance.name
        gateway, record = self.fleet.gateway, self.fleet.gateway.record_of(machine)
        if row is None:
            age = (cloud.stamp() - machine.instance.created_at).total_seconds()
            namesake = next((each for each in rows.values() if each.name == name), None)
            number = 10 if namesake is not None else self._age_matters()
            must(number, age >= self.policy.orphan_seconds, f"{name} is no orphan at {age} s")
            work = gateway.work_on(record.id) if record is not None and record.state is not NodeState.LOST else []
            must(5, not work, f"{name} has no row, but work: {work}")
            return
        must(10, row.state is S.DELETING, f"{name} is deleted, and its row says {row.state}")
        if machine.lost:
            return
        if record is None:
            born = self.born.get(row.operation_id) or machine.instance.created_at - timedelta(seconds=cloud.clock_off)
            waited = (self.fleet.cloud.now - born).total_seconds()
            pool = next(each for each in self.policy.pools if each.name == row.pool)
            soonest = min(pool.start_seconds, pool.boot_seconds)
            must(self._age_matters(), waited >= soonest, f"{name} was given up after {waited} s")
        elif record.state is NodeState.LOST:
            silent = (cloud.now - (record.heartbeat_at or record.registered_at)).total_seconds()
            must(self._age_matters(), silent >= LOST_SECONDS, f"{record.id} was silent for {silent} s only")
        else:
            work = gateway.work_on(record.id)
            must(5, record.id in gateway.closed, f"{record.id} is open")
            must(5, not work, f"{record.id} has work: {work}")
            mark, beat = gateway.closed[record.id], record.heartbeat_at
            assert beat is not None
            must(5, mark is None or beat > mark, f"{record.id} has sent no heartbeat since it was closed")

    def has_no_call_for_a_delete(self, kept: int) -> None:
        """Check that a delete waits for the rate limit only once all calls that are kept for deletes are spent."""
        since = [at for at in self.deleted if (self.fleet.cloud.now - at).total_seconds() < HOUR]
        must(9, len(since) + 1 >= kept, "other calls have left none for a delete")

    def registers(self, machine: Machine, grant: Grant) -> None:
        """Check that a machine becomes the node of the order that it came from."""
        ordered = grant.request.operation_id
        must(10, ordered == machine.operation, f"{machine.instance.name}: {machine.operation} joins as {ordered}")

    # -- after every tick ---------------------------------------------------------------------------------------------

    def ticked(self, report: TickReport, seconds: float) -> None:
        """Check that a blind provider has proved nothing, and a healthy one was asked for the deletes that were due."""
        blind = {name for name, view in report.world.providers.items() if view.instances is None}
        for finding in report.findings:
            if isinstance(finding, Move):
                home = self.homes[finding.operation_id]
                must(6, home not in blind, f"{finding.operation_id} is {finding.to}, and {home} cannot be seen")
        rows = {row.operation_id: row for row in self.fleet.journal.open_intents()}
        for row in rows.values():
            if row.state in GOING and row.provider not in blind and report.world.synced:
                self.due[row.operation_id] = self.due.get(row.operation_id, 0.0) + seconds
                must(4, self.due[row.operation_id] < PATIENT + self.fleet.jumps, f"nobody deletes {row.name}")
        self.due = {operation: due for operation, due in self.due.items() if operation in rows}

    def forgets_all(self) -> None:
        """Record that the journal is lost: what is there is known by its labels only, and comes back as it is found."""
        self.orphans |= {machine.instance.id for machine in self.machines()}
        self.forgotten |= {operation for cloud in self.fleet.clouds.values() for operation in cloud.under_way()}
        self.rows_over += sum(1 for _ in self.machines()) + len(self.forgotten)
        self.has_forgotten = True
        self.is_bookkept = False
        self.states.clear()
        self.due.clear()

    def machines(self) -> Iterable[Machine]:
        """Return all machines that are there."""
        return (machine for cloud in self.fleet.clouds.values() for machine in cloud.machines.values())

    def _age_matters(self) -> int:
        """Return the invariant that a wrong age breaks: after a jump of the clock it is the eighth."""
        return 5 if self.jumped_at is None else 8


def _rate(rows: Iterable[Intent]) -> Decimal:
    return sum((row.price for row in rows if row.price is not None), Decimal(0))
