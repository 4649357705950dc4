"""Carries a plan out: the row first, then the call, then what came of it.

A crash at any point leaves a row from which the next tick goes on.  A create whose outcome is unknown is sent again
under the same name, which cannot make a second instance; one that was given up is never sent again.
"""

import base64
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from autoscaler.clock import Clock
from autoscaler.core import backoff, naming
from autoscaler.core.lifecycle import IntentState
from autoscaler.core.model import (
    Action,
    Boot,
    CancelDrain,
    Drain,
    FleetPolicy,
    Forget,
    Intent,
    Plan,
    Retry,
    Stop,
    Sweep,
)
from autoscaler.observe import Gateway
from autoscaler.store.journal import Journal
from gateway.client import GatewayError, GatewayUnreachableError
from gateway.wire.errors import ErrorCode
from gateway.wire.nodes import JoinTokenRequest
from providers.base import Applied, ComputeProvider, Create, Deleted, ProviderError, Ref, Scope

log = logging.getLogger(__name__)

S = IntentState
TOKEN_MOST = 86_400
TOKEN_LEAST = 60


@dataclass(frozen=True)
class Preparation:
    """How the instances of one pool are made ready to become nodes."""

    image: str
    user_data: Callable[[str, str], str]
    """From the instance's name and its join token."""


def new_operation_id() -> str:
    """60 random bits in the letters that every cloud allows in names."""
    return base64.b32encode(secrets.token_bytes(8)).decode().lower()[: naming.OPERATION_LENGTH]


class Executor:
    """The only place that changes anything outside."""

    def __init__(
        self,
        journal: Journal,
        providers: Mapping[str, ComputeProvider],
        gateway: Gateway,
        policy: FleetPolicy,
        preparations: Mapping[str, Preparation],
        clock: Clock,
        new_id: Callable[[], str] = new_operation_id,
    ) -> None:
        self._journal = journal
        self._providers = providers
        self._gateway = gateway
        self._policy = policy
        self._pools = {pool.name: pool for pool in policy.pools}
        self._preparations = preparations
        self._clock = clock
        self._new_id = new_id

    def carry_out(self, plan: Plan, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """Does every action, in order; one that fails does not stop the others.

        Args:
            plan: what to do.
            is_stopping: asked before each action; the rest is left to the next start.
        """
        booted = iter(self._write([action for action in plan.actions if isinstance(action, Boot)]))
        for action in plan.actions:
            if is_stopping():
                return
            try:
                if isinstance(action, Boot):
                    self._create(next(booted))
                else:
                    self._do(action)
            except (GatewayError, GatewayUnreachableError) as error:
                level = logging.DEBUG if isinstance(action, Forget) else logging.WARNING
                log.log(level, "%s waits for the gateway: %s", type(action).__name__, error)
            except Exception:
                # One broken action must not hold up the deletes behind it; its row says where it stands.
                log.exception("%s failed", action)

    def _write(self, boots: Sequence[Boot]) -> list[Intent]:
        """All intents of this plan in one transaction: limits hold from here on, whatever happens next."""
        now = self._clock.now()
        intents: list[Intent] = []
        for boot in boots:
            operation = self._new_id()
            intents.append(
                Intent(
                    operation_id=operation,
                    pool=boot.pool,
                    provider=boot.provider,
                    name=naming.instance_name(self._policy.deployment, boot.pool, operation),
                    type=boot.offer.type,
                    location=boot.offer.location,
                    state=S.PLANNED,
                    created_at=now,
                    changed_at=now,
                    deadline=now + boot.boot_seconds,
                    detail=boot.reason,
                )
            )
        self._journal.add(intents)
        return intents

    def _do(self, action: Action) -> None:
        match action:
            case Retry():
                self._create(self._journal.intent(action.operation_id))
            case Drain():
                self._drain(action)
            case CancelDrain():
                # The call first: if its answer is lost, the row still says that the node is to be stopped.
                self._gateway.drain(action.node_id, draining=False)
                self._move(action.operation_id, S.READY, action.reason, drain_mark=None)
            case Stop():
                self._stop(action)
            case Sweep():
                self._journal.record(self._clock.now(), action.instance_id, "sweep", action.reason)
                self._providers[action.provider].delete(Ref(id=action.instance_id))
            case Forget():
                self._gateway.remove_node(action.node_id)
                self._journal.record(self._clock.now(), action.node_id, "forgotten", action.reason)

    # -- create -------------------------------------------------------------------------------------------------------

    def _create(self, intent: Intent) -> None:
        provider = self._providers[intent.provider]
        now = self._clock.now()
        tries = intent.attempts + 1
        again_at = now + backoff.retry_after(tries)
        if intent.attempts and self._is_there(provider, intent, again_at):
            return
        order = self._order(intent, now)
        if intent.state is S.PLANNED:
            intent = self._move(intent.operation_id, S.CALLING, "", attempts=tries, next_try_at=again_at)
        else:
            intent = self._amend(intent.operation_id, f"try {tries}", attempts=tries, next_try_at=again_at)
        try:
            instance = provider.create(order)
        except ProviderError as error:
            self._refused(intent, error)
            return
        found = "it was there already" if instance.adopted else "the provider makes it"
        self._move(intent.operation_id, S.BOOTING, found, instance_id=instance.id)
        self._journal.release(backoff.keys(intent.provider, intent.pool, intent.offer)[:-1])

    def _is_there(self, provider: ComputeProvider, intent: Intent, again_at: float) -> bool:
        """Whether an earlier try made it after all, or that cannot be known now.

        If it did, that try's token is in it, and a new one is not needed.
        """
        try:
            found = provider.get(Ref(name=intent.name))
        except ProviderError as error:
            self._amend(intent.operation_id, f"{error.kind}: {error}", next_try_at=again_at)
            return True
        if found is None or naming.operation_of(found) != intent.operation_id:
            return False
        self._move(intent.operation_id, S.BOOTING, "an earlier try had made it", instance_id=found.id)
        return True

    def _order(self, intent: Intent, now: float) -> Create:
        preparation = self._preparations[intent.pool]
        left = int(intent.deadline - now)
        request = JoinTokenRequest(
            instance=intent.name,
            pool=intent.pool,
            ttl_seconds=max(TOKEN_LEAST, min(TOKEN_MOST, left)),
            operation_id=intent.operation_id,
        )
        token = self._gateway.join_token(request).token
        role = self._pools[intent.pool].role
        return Create(
            name=intent.name,
            operation_id=intent.operation_id,
            deployment=self._policy.deployment,
            pool=intent.pool,
            type=intent.type,
            location=intent.location,
            image=preparation.image,
            user_data=preparation.user_data(intent.name, token),
            labels=naming.labels(self._policy.deployment, intent.pool, role, intent.operation_id),
        )

    def _refused(self, intent: Intent, error: ProviderError) -> None:
        log.warning("create of %s failed (%s, applied: %s): %s", intent.name, error.kind, error.applied, error)
        words = f"{error.kind}: {error}"
        # After an earlier try whose outcome is unknown, a refusal of this one proves nothing about that one.
        if error.applied is not Applied.NO or intent.attempts > 1:
            self._amend(intent.operation_id, words)
            return
        now = self._clock.now()
        self._move(intent.operation_id, S.GONE, words)
        key = backoff.key_of(error, intent.provider, intent.pool, intent.offer)
        scope = Scope.PROVIDER if key == intent.provider else error.scope
        least = error.retry_after or 0.0
        self._hold_back(key, scope, words, now, least)

    def _hold_back(self, key: str, scope: Scope, reason: str, now: float, least: float = 0.0) -> None:
        known = self._journal.backoffs().get(key)
        bounds = backoff.BOUNDS[scope]
        self._journal.hold_back(backoff.grown(known, key, bounds=bounds, now=now, reason=reason, least=least))

    # -- drain and stop -----------------------------------------------------------------------------------------------

    def _drain(self, action: Drain) -> None:
        if self._journal.intent(action.operation_id).state is S.READY:
            self._move(action.operation_id, S.DRAINING, action.reason, drain_mark=None)
        record = self._gateway.drain(action.node_id, draining=True)
        mark = record.heartbeat_at.timestamp() if record.heartbeat_at is not None else 0.0
        self._amend(action.operation_id, action.reason, drain_mark=mark)

    def _stop(self, action: Stop) -> None:
        intent = self._journal.intent(action.operation_id)
        if action.drained and not self._is_still_drained(intent):
            return
        now = self._clock.now()
        again_at = now + self._policy.delete_retry_seconds
        if intent.state is S.DELETING:
            intent = self._amend(intent.operation_id, action.reason, next_try_at=again_at)
        else:
            intent = self._move(intent.operation_id, S.DELETING, action.reason, next_try_at=again_at)
        if action.boot_failed:
            self._hold_back(backoff.pool_key(intent.pool), Scope.POOL, f"{intent.name}: {action.reason}", now)
        try:
            answer = self._providers[intent.provider].delete(Ref(id=intent.instance_id, name=intent.name))
        except ProviderError as error:
            log.warning("delete of %s failed (%s): %s", intent.name, error.kind, error)
            wait = error.retry_after if error.retry_after is not None else backoff.RETRY_FIRST
            self._amend(intent.operation_id, f"{error.kind}: {error}", next_try_at=now + wait)
            return
        if answer is Deleted.GONE:
            self._move(intent.operation_id, S.GONE, "the provider has it no more")

    def _is_still_drained(self, intent: Intent) -> bool:
        """Closes the node once more, and looks: the last moment at which work may have come in, or a person."""
        if intent.node_id is None:
            return True
        try:
            record = self._gateway.drain(intent.node_id, draining=True)
        except GatewayError as error:
            if error.code is ErrorCode.NODE_NOT_FOUND:
                return True
            raise
        return record.sandboxes == 0

    # -- rows ---------------------------------------------------------------------------------------------------------

    def _move(self, operation_id: str, to: IntentState, reason: str, **changes: object) -> Intent:
        intent = self._journal.move(operation_id, to, now=self._clock.now(), reason=reason, **changes)
        log.info("%s is %s%s", intent.name, to, f": {reason}" if reason else "")
        return intent

    def _amend(self, operation_id: str, reason: str, **changes: object) -> Intent:
        return self._journal.amend(operation_id, now=self._clock.now(), reason=reason, **changes)
