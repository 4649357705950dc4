"""Carrying out a plan: the row first, then the call, then its outcome.

A crash at any point leaves a row from which the next tick goes on.  A create whose outcome is unknown is sent again
under the same name, which cannot make a second instance; one that was given up is never sent again.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from functools import partial

from autoscaler.clock import DaemonClock
from autoscaler.core import backoff
from autoscaler.core.actions import Action, Boot, CancelDrain, Drain, Forget, Plan, Retry, Stop, Sweep
from autoscaler.core.pools import FleetPolicy
from autoscaler.core.states import IntentState
from autoscaler.core.world import DRIFT, Intent, World
from autoscaler.instances import InstanceCreator, Randomness
from autoscaler.lanes import GATEWAY, Lanes, Turn, TurnOverError
from autoscaler.observe import GatewayPort
from autoscaler.store.journal import Journal
from autoscaler.throttled_log import ThrottledLog
from autoscaler.user_data import LaunchTemplate
from gateway.client import GatewayError, GatewayUnreachableError
from gateway.wire.errors import ErrorCode
from providers.base import ComputeProvider, Deleted, ProviderError, Ref

log = logging.getLogger(__name__)

S = IntentState
Step = Callable[[], None]


class Executor:
    """The only place that changes anything outside."""

    def __init__(
        self,
        journal: Journal,
        providers: Mapping[str, ComputeProvider],
        gateway: GatewayPort,
        policy: FleetPolicy,
        templates: Mapping[str, LaunchTemplate],
        clock: DaemonClock,
        randomness: Randomness = Randomness(),
    ) -> None:
        self._journal = journal
        self._providers = providers
        self._gateway = gateway
        self._policy = policy
        self._clock = clock
        self._log = ThrottledLog(log, clock.monotonic)
        self._creator = InstanceCreator(journal, providers, gateway, policy, templates, clock, randomness)

    def carry_out(self, plan: Plan, world: World, turn: Turn, lanes: Lanes, *, first: Sequence[Step] = ()) -> None:
        """Carry out every action: those of each provider in order, and the providers side by side.

        An action that fails does not stop the others.  A call that takes too long goes on in its lane, and until it
        ends, that provider counts as blind.

        Args:
            plan: what to do.
            world: what the plan was made from.
            turn: bounds the time for all of it.
            lanes: where to act; those in which the world was observed.
            first: calls of the gateway that come before everything else there.
        """
        work = self._steps_by_lane(plan, world, turn)
        work[GATEWAY] = [*first, *work.get(GATEWAY, [])]
        begun = [lanes.start(lane, partial(_run_lane, steps, turn)) for lane, steps in work.items() if steps]
        done, late = wait([future for future in begun if future is not None], turn.seconds)
        turn.end()
        for future in done:
            future.result()
        if late:
            self._log.report("calls have not ended in time", f"nothing new begins in {len(late)} lanes")

    def _steps_by_lane(self, plan: Plan, world: World, turn: Turn) -> dict[str, list[Step]]:
        booted = iter(self._creator.write([action for action in plan.actions if isinstance(action, Boot)]))
        homes = {intent.operation_id: intent.provider for intent in world.intents}
        lanes: dict[str, list[Step]] = {}
        for action in plan.actions:
            match action:
                case Boot():
                    lane, do = action.provider, partial(self._creator.boot, action, next(booted), world, turn)
                case Retry() | Stop():
                    lane, do = homes[action.operation_id], partial(self._do, action, turn)
                case Sweep():
                    lane, do = action.provider, partial(self._do, action, turn)
                case Drain() | CancelDrain() | Forget():
                    lane, do = GATEWAY, partial(self._do, action, turn)
            lanes.setdefault(lane, []).append(partial(self._run, action, do))
        return lanes

    def _run(self, action: Action, do: Step) -> None:
        """Run one action.  A broken one must not hold up the deletes behind it; its row says where it stands."""
        kind = type(action).__name__
        try:
            do()
        except TurnOverError:
            log.info("%s is left to the next tick", kind)
        except (GatewayError, GatewayUnreachableError) as error:
            level = logging.DEBUG if isinstance(action, Forget) else logging.WARNING
            self._log.report(f"{kind} waits for the gateway", str(error), level=level)
        except Exception:
            log.exception("%s failed", action)

    def _do(self, action: Action, turn: Turn) -> None:
        match action:
            case Retry():
                self._creator.create(self._journal.intent(action.operation_id), turn)
            case Drain():
                self._drain(action, turn)
            case CancelDrain():
                # The call first: if its answer is lost, the row still says that the node is to be deleted.
                self._gateway.drain(action.node_id, draining=False)
                known = self._journal.intent(action.operation_id).cause
                cause = "" if known == DRIFT else known
                self._move(action.operation_id, S.READY, action.reason, drain_mark=None, cause=cause)
            case Stop():
                self._stop(action, turn)
            case Sweep():
                self._sweep(action)
            case Forget():
                self._gateway.remove_node(action.node_id, machine_gone=True)
                self._journal.record(self._clock.now(), action.node_id, "forgotten", action.reason)

    # -- drain and stop -----------------------------------------------------------------------------------------------

    def _drain(self, action: Drain, turn: Turn) -> None:
        intent = self._journal.intent(action.operation_id)
        if intent.state is S.READY:
            cause = action.cause or intent.cause
            with turn.writing():
                self._move(action.operation_id, S.DRAINING, action.reason, drain_mark=None, cause=cause)
        record = self._gateway.drain(action.node_id, draining=True)
        mark = record.heartbeat_at.timestamp() if record.heartbeat_at is not None else 0.0
        self._amend(action.operation_id, action.reason, drain_mark=mark)

    def _stop(self, action: Stop, turn: Turn) -> None:
        intent = self._journal.intent(action.operation_id)
        if action.drained and not self._is_still_drained(intent):
            return
        if intent.state is S.BOOTING and self._has_registered(intent):
            return
        now = self._clock.now()
        again_at = now + self._policy.delete_retry_seconds
        with turn.writing():
            if intent.state is S.DELETING:
                intent = self._amend(intent.operation_id, action.reason, next_try_at=again_at)
            else:
                intent = self._move(intent.operation_id, S.DELETING, action.reason, next_try_at=again_at)
        if action.boot_failed:
            self._creator.boot_failed(intent, action.reason)
        try:
            answer = self._providers[intent.provider].delete(_ref(intent))
        except ProviderError as error:
            log.warning("delete of %s failed (%s): %s", intent.name, error.kind, error)
            words = f"{error.kind}: {error}"
            again_after = backoff.delete_again_after(intent.changed_at, now, error.retry_after)
            self._amend(intent.operation_id, words, next_try_at=now + again_after)
            self._journal.back_off(backoff.failed_delete(intent.pool, now=now, reason=f"{intent.name}: {words}"))
            return
        if answer is Deleted.GONE:
            self._move(intent.operation_id, S.GONE, "the provider no longer has it")

    def _is_still_drained(self, intent: Intent) -> bool:
        """Close the node once more and look: until now, work may have come in, or an operator may have opened it."""
        if intent.node_id is None:
            return True
        try:
            record = self._gateway.drain(intent.node_id, draining=True)
        except GatewayError as error:
            if error.code is ErrorCode.NODE_NOT_FOUND:
                return True
            raise
        return record.sandboxes == 0

    def _has_registered(self, intent: Intent) -> bool:
        """Return whether the order has become a node after all, which may have work since its first heartbeat."""
        return any(
            node.instance == intent.name
            and node.operation_id in (None, intent.operation_id)
            and node.heartbeat_at is not None
            for node in self._gateway.nodes()
        )

    def _sweep(self, action: Sweep) -> None:
        now, key = self._clock.now(), backoff.sweep_key(action.provider, action.instance_id)
        self._journal.record(now, action.instance_id, "sweep", action.reason)
        words = "its delete was accepted"
        try:
            if self._providers[action.provider].delete(Ref(id=action.instance_id)) is Deleted.GONE:
                self._journal.clear_backoffs([key])
                return
        except ProviderError as error:
            log.warning("sweep of %s failed (%s): %s", action.instance_id, error.kind, error)
            words = f"{error.kind}: {error}"
        known = self._journal.backoffs().get(key)
        self._journal.back_off(backoff.grown(known, key, bounds=backoff.SWEEP_BOUNDS, now=now, reason=words))

    # -- rows ---------------------------------------------------------------------------------------------------------

    def _move(self, operation_id: str, to: IntentState, reason: str, **changes: object) -> Intent:
        intent = self._journal.move(operation_id, to, now=self._clock.now(), reason=reason, **changes)
        log.info("%s is %s%s", intent.name, to, f": {reason}" if reason else "")
        return intent

    def _amend(self, operation_id: str, reason: str, **changes: object) -> Intent:
        return self._journal.amend(operation_id, now=self._clock.now(), reason=reason, **changes)


def _ref(intent: Intent) -> Ref:
    """Name what the order has made: one without an id may have a namesake of another order."""
    return Ref(id=intent.instance_id, name=intent.name, operation_id=intent.operation_id)


def _run_lane(steps: Sequence[Step], turn: Turn) -> None:
    for step in steps:
        if turn.is_over():
            return
        step()
