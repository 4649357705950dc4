"""One tick: observe, write the findings down, plan, act."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final

from autoscaler.clock import DaemonClock
from autoscaler.core import backoff
from autoscaler.core.actions import Finding, Move, Plan, Wait, WaitKind
from autoscaler.core.findings import applied, settle
from autoscaler.core.offers import ceilings
from autoscaler.core.plan import plan
from autoscaler.core.pools import FleetPolicy
from autoscaler.core.states import IntentState
from autoscaler.core.world import BackOff, World
from autoscaler.executor import Executor
from autoscaler.lanes import Lanes, SerialLanes, Turn
from autoscaler.observe import GatewayPort, Observer
from autoscaler.store.journal import Journal
from autoscaler.throttled_log import ThrottledLog
from gateway.client import GatewayError, GatewayUnreachableError
from gateway.wire.capacity import Ceilings

log = logging.getLogger(__name__)

CEILINGS_SECONDS: Final = 60.0
"""Ceilings are published again this often although nothing changed, for a gateway that has lost them."""
OUTSIDE: Final = frozenset({WaitKind.UNKNOWN_POOL, WaitKind.UNKNOWN_PROVIDER})
NOT_PUBLISHED: Final = "the largest possible nodes could not be published to the gateway"


@dataclass(frozen=True)
class TickReport:
    """What one tick has seen and decided."""

    world: World
    """Rows as they are after the findings."""
    findings: tuple[Finding, ...]
    plan: Plan


class Reconciler:
    """Ticks over one fleet.

    Args:
        observer: makes the world.
        journal: where findings are written.
        gateway: where ceilings are published.
        policy: the rules of the fleet.
        clock: for rows and waits.
        executor: ``None`` to only look: then nothing is written and nothing is called but listings.
        lanes: where providers and gateway are called.
    """

    def __init__(
        self,
        *,
        observer: Observer,
        journal: Journal,
        gateway: GatewayPort,
        policy: FleetPolicy,
        clock: DaemonClock,
        executor: Executor | None,
        lanes: Lanes = SerialLanes(),
    ) -> None:
        self._observer = observer
        self._journal = journal
        self._gateway = gateway
        self._policy = policy
        self._clock = clock
        self._executor = executor
        self._lanes = lanes
        self._published: Ceilings | None = None
        self._published_at = float("-inf")
        self._log = ThrottledLog(log, clock.monotonic)
        self._outside: set[str] = set()

    def look(self) -> TickReport:
        """Return what a tick would find and do now; change nothing."""
        world = self._observer.observe(self._lanes)
        now = self._clock.now()
        findings = settle(world, self._policy, now)
        settled = applied(world, findings, now)
        return TickReport(settled, findings, plan(settled, self._policy, now))

    def tick(self, is_stopping: Callable[[], bool] = lambda: False) -> TickReport:
        """Look and act."""
        report = self.look()
        if self._executor is None:
            return report
        self._record_clock(report.world)
        if report.findings:
            self._journal.settle(report.findings, self._clock.now())
        for finding in report.findings:
            log.info("%s", _described(finding))
        self._warn_of_outsiders(report.plan.waits)
        self._release(report)
        first = self._unpublished(report.world)
        self._executor.carry_out(report.plan, report.world, Turn(is_stopping), self._lanes, first=first)
        return report

    def prune(self) -> None:
        """Drop what is old from the journal."""
        self._journal.prune(self._clock.now())

    def _record_clock(self, world: World) -> None:
        """Write a clock jump down before anything else: the next process could not see it."""
        now, rest = self._clock.now(), self._observer.untrusted_seconds()
        known = world.backoffs.get(backoff.CLOCK)
        if rest > 0 and (known is None or known.until < now + rest - 1):
            self._journal.back_off(
                BackOff(backoff.CLOCK, now + rest, 1, now, "the wall clock jumped; ages prove nothing")
            )
        self._observer.save_clock()

    def _warn_of_outsiders(self, waits: Iterable[Wait]) -> None:
        """Log the instances whose pool or provider has left the settings: they cost money, and no plan touches them."""
        found = {wait.subject: wait.reason for wait in waits if wait.kind in OUTSIDE}
        for name in self._outside - found.keys():
            self._log.resolve(name)
        for name, reason in found.items():
            self._log.report(name, reason)
        self._outside = set(found)

    def _release(self, report: TickReport) -> None:
        """Close the circuit of pools of which a node has registered: their instances become nodes."""
        became = {f.operation_id for f in report.findings if isinstance(f, Move) and f.to is IntentState.READY}
        pools = {intent.pool for intent in report.world.intents if intent.operation_id in became}
        held = [key for pool in sorted(pools) if (key := backoff.pool_key(pool)) in report.world.backoffs]
        if held:
            self._journal.clear_backoffs(held)

    def _unpublished(self, world: World) -> list[Callable[[], None]]:
        """Return the publication of the ceilings, where one is due and the gateway can be reached."""
        found = ceilings(world, self._policy)
        recently = self._clock.monotonic() - self._published_at < CEILINGS_SECONDS
        if world.nodes is None or found is None or (found == self._published and recently):
            return []
        return [partial(self._publish, found)]

    def _publish(self, found: Ceilings) -> None:
        try:
            self._gateway.put_ceilings(found)
        except (GatewayError, GatewayUnreachableError) as error:
            self._log.report(NOT_PUBLISHED, str(error))
            return
        self._log.resolve(NOT_PUBLISHED)
        self._published, self._published_at = found, self._clock.monotonic()


def _described(finding: Finding) -> str:
    if isinstance(finding, Move):
        return f"{finding.operation_id} is {finding.to}: {finding.reason}"
    return str(finding)
