"""One tick: look, write down what has become clear, plan, act."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final

from autoscaler.clock import Clock
from autoscaler.core import backoff
from autoscaler.core.actions import Finding, Move, Plan, Wait, WaitKind
from autoscaler.core.findings import applied, settle
from autoscaler.core.offers import ceilings
from autoscaler.core.plan import plan
from autoscaler.core.pools import FleetPolicy
from autoscaler.core.states import IntentState
from autoscaler.core.world import BackOff, World
from autoscaler.executor import Executor
from autoscaler.lanes import Lanes, Serial, Turn
from autoscaler.observe import Gateway, Observer
from autoscaler.store.journal import Journal
from autoscaler.throttled_log import Remarks
from gateway.client import GatewayError, GatewayUnreachableError
from gateway.wire.capacity import Ceilings

log = logging.getLogger(__name__)

CEILINGS_SECONDS: Final = 60.0
"""Told again this often although nothing changed, so that a gateway that lost them has them back."""
OUTSIDE: Final = frozenset({WaitKind.UNKNOWN_POOL, WaitKind.UNKNOWN_PROVIDER})
NOT_TOLD: Final = "the gateway was not told what could be had"


@dataclass(frozen=True)
class Report:
    """What one tick saw and decided."""

    world: World
    """Rows as they are after the findings."""
    findings: tuple[Finding, ...]
    plan: Plan


class Reconciler:
    """Ticks over one fleet.

    Args:
        executor: ``None`` to only look: then nothing is written and nothing is called but listings.
        lanes: where everybody is called.
    """

    def __init__(
        self,
        *,
        observer: Observer,
        journal: Journal,
        gateway: Gateway,
        policy: FleetPolicy,
        clock: Clock,
        executor: Executor | None,
        lanes: Lanes = Serial(),
    ) -> None:
        self._observer = observer
        self._journal = journal
        self._gateway = gateway
        self._policy = policy
        self._clock = clock
        self._executor = executor
        self._lanes = lanes
        self._told: Ceilings | None = None
        self._told_at = float("-inf")
        self._remarks = Remarks(log, clock.monotonic)
        self._outside: set[str] = set()

    def look(self) -> Report:
        """What a tick would find and do now; changes nothing."""
        world = self._observer.observe(self._lanes)
        now = self._clock.now()
        findings = settle(world, self._policy, now)
        settled = applied(world, findings, now)
        return Report(settled, findings, plan(settled, self._policy, now))

    def tick(self, is_stopping: Callable[[], bool] = lambda: False) -> Report:
        """Looks and acts."""
        report = self.look()
        if self._executor is None:
            return report
        self._keep_jump(report.world)
        if report.findings:
            self._journal.settle(report.findings, self._clock.now())
        for finding in report.findings:
            log.info("%s", _words(finding))
        self._tell_outside(report.plan.waits)
        self._release(report)
        first = self._to_tell(report.world)
        self._executor.carry_out(report.plan, report.world, Turn(is_stopping), self._lanes, first=first)
        return report

    def prune(self) -> None:
        """Drops what is old from the journal."""
        self._journal.prune(self._clock.now())

    def _keep_jump(self, world: World) -> None:
        """A jump of the clock is written down before anything else: the next process could not see it."""
        now, rest = self._clock.now(), self._observer.clock_rest()
        known = world.backoffs.get(backoff.CLOCK)
        if rest > 0 and (known is None or known.until < now + rest - 1):
            self._journal.hold_back(
                BackOff(backoff.CLOCK, now + rest, 1, now, "the wall clock jumped; ages prove nothing")
            )
        self._observer.keep_clock()

    def _tell_outside(self, waits: Iterable[Wait]) -> None:
        """Warn of rows whose pool or provider is not in the settings: nothing else of a tick does, and they cost."""
        found = {wait.subject: wait.reason for wait in waits if wait.kind in OUTSIDE}
        for name in self._outside - found.keys():
            self._remarks.over(name)
        for name, reason in found.items():
            self._remarks.tell(name, reason)
        self._outside = set(found)

    def _release(self, report: Report) -> None:
        """A node that registered proves that its pool's instances become nodes."""
        became = {f.operation_id for f in report.findings if isinstance(f, Move) and f.to is IntentState.READY}
        pools = {intent.pool for intent in report.world.intents if intent.operation_id in became}
        held = [key for pool in sorted(pools) if (key := backoff.pool_key(pool)) in report.world.backoffs]
        if held:
            self._journal.release(held)

    def _to_tell(self, world: World) -> list[Callable[[], None]]:
        """What the gateway shall hear, if it can be asked and does not know it."""
        told = ceilings(world, self._policy)
        recently = self._clock.monotonic() - self._told_at < CEILINGS_SECONDS
        if world.nodes is None or told is None or (told == self._told and recently):
            return []
        return [partial(self._tell, told)]

    def _tell(self, told: Ceilings) -> None:
        try:
            self._gateway.put_ceilings(told)
        except (GatewayError, GatewayUnreachableError) as error:
            self._remarks.tell(NOT_TOLD, str(error))
            return
        self._remarks.over(NOT_TOLD)
        self._told, self._told_at = told, self._clock.monotonic()


def _words(finding: Finding) -> str:
    if isinstance(finding, Move):
        return f"{finding.operation_id} is {finding.to}: {finding.reason}"
    return str(finding)
