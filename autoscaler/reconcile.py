"""One tick: observe, write the findings down, plan, act."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final

from autoscaler.clock import DaemonClock
from autoscaler.core import backoff
from autoscaler.core.actions import Finding, Move, Plan, Wait, WaitKind
from autoscaler.core.doubts import Doubt
from autoscaler.core.findings import applied, settle
from autoscaler.core.offers import ceilings
from autoscaler.core.plan import plan
from autoscaler.core.pools import FleetPolicy
from autoscaler.core.states import IntentState
from autoscaler.core.world import BackOff, BackOffKind, World
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
WARNED: Final = frozenset({WaitKind.UNKNOWN_POOL, WaitKind.UNKNOWN_PROVIDER, WaitKind.NOT_UNDERSTOOD})
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
        self._warned: set[str] = set()

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
            if not isinstance(finding, Doubt):  # the plan has it too, and it may last
                log.info("%s", _described(finding))
        self._warn(report.plan.waits)
        self._record_doubts(report)
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

    def _warn(self, waits: Iterable[Wait]) -> None:
        """Log what no plan touches: what is not understood, and what has left the settings, which goes on costing."""
        found = {wait.subject: wait.reason for wait in waits if wait.kind in WARNED}
        for name in self._warned - found.keys():
            self._log.resolve(name)
        for name, reason in found.items():
            self._log.report(name, reason)
        self._warned = set(found)

    def _record_doubts(self, report: TickReport) -> None:
        """Write down what is left out, for `sandboxes autoscaler status`."""
        now, known = self._clock.now(), report.world.backoffs
        waits = [wait for wait in report.plan.waits if wait.kind is WaitKind.NOT_UNDERSTOOD]
        doubted = {backoff.doubt_key(wait.subject): wait.reason for wait in waits}
        for key, reason in doubted.items():
            held = known.get(key)
            if held is None or held.until < now + backoff.DOUBT_SECONDS / 2:
                self._journal.back_off(BackOff(key, now + backoff.DOUBT_SECONDS, 1, now, reason))
        over = [key for key in known if key.kind is BackOffKind.DOUBT and key not in doubted]
        if over:
            self._journal.clear_backoffs(over)

    def _release(self, report: TickReport) -> None:
        """Close the circuit of pools of which a node has registered: their instances become nodes."""
        became = {f.operation_id for f in report.findings if isinstance(f, Move) and f.to is IntentState.READY}
        pools = {intent.pool for intent in report.world.intents if intent.operation_id in became}
        held = [key for pool in sorted(pools) if (key := backoff.pool_key(pool)) in report.world.backoffs]
        if held:
            self._journal.clear_backoffs(held)

    def _unpublished(self, world: World) -> list[Callable[[], None]]:
        """Return the publication of the ceilings, where one is due and the gateway can be reached."""
        try:
            found = ceilings(world, self._policy)
        except Exception as error:  # noqa: BLE001 - ceilings that cannot be told must not stop what the plan says
            self._log.report(NOT_PUBLISHED, f"{type(error).__name__}: {error}", level=logging.ERROR, trace=True)
            return []
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
