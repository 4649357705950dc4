"""Creating instances: the row first, then the call, then its outcome, and another offer when it was refused."""

import base64
import logging
import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from autoscaler.clock import DaemonClock
from autoscaler.core import backoff, naming
from autoscaler.core.actions import Boot
from autoscaler.core.plan import fallback
from autoscaler.core.pools import FleetPolicy
from autoscaler.core.states import IntentState
from autoscaler.core.world import Intent, World
from autoscaler.lanes import Turn
from autoscaler.observe import GatewayPort
from autoscaler.store.journal import Journal
from autoscaler.user_data import LaunchTemplate
from gateway.wire.nodes import JoinTokenRequest
from providers.base import Applied, ComputeProvider, Create, ErrorKind, ProviderError, Ref

log = logging.getLogger(__name__)

S = IntentState
MAX_TOKEN_SECONDS: Final = 86_400
MIN_TOKEN_SECONDS: Final = 60


def new_operation_id() -> str:
    """Return 60 random bits in the letters that every cloud allows in names."""
    return base64.b32encode(secrets.token_bytes(8)).decode().lower()[: naming.OPERATION_LENGTH]


@dataclass(frozen=True)
class Randomness:
    """Where random values come from; tests bring their own."""

    new_id: Callable[[], str] = new_operation_id
    """Returns a new operation id."""
    jitter: Callable[[], float] = random.random
    """Returns a number below 1, by which a back-off is shortened."""


class InstanceCreator:
    """Writes intents and creates their instances."""

    def __init__(
        self,
        journal: Journal,
        providers: Mapping[str, ComputeProvider],
        gateway: GatewayPort,
        policy: FleetPolicy,
        templates: Mapping[str, LaunchTemplate],
        clock: DaemonClock,
        randomness: Randomness,
    ) -> None:
        self._journal = journal
        self._providers = providers
        self._gateway = gateway
        self._policy = policy
        self._pools = {pool.name: pool for pool in policy.pools}
        self._templates = templates
        self._clock = clock
        self._randomness = randomness

    def write(self, boots: Sequence[Boot]) -> list[Intent]:
        """Write all intents of one plan in one transaction: limits hold from here on, whatever happens next."""
        now = self._clock.now()
        intents: list[Intent] = []
        for boot in boots:
            operation = self._randomness.new_id()
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
                    deadline=now + boot.seconds,
                    detail=boot.reason,
                    price=boot.price,
                    spec=boot.spec,
                    cause=boot.cause,
                )
            )
        self._journal.add(intents)
        return intents

    def boot(self, boot: Boot, intent: Intent, world: World, turn: Turn) -> None:
        """Create the instance of a new intent; where its offer has no capacity, one of the next offer that fits.

        Each refusal backs its offer off, so this ends with the offers.  A try whose outcome is unknown ends it too: it
        may have created something.
        """
        while (error := self.create(intent, turn)) is not None:
            if error.kind is not ErrorKind.CAPACITY:
                return
            substitute = self._substitute(boot, world, turn)
            if substitute is None:
                return
            boot, intent = substitute

    def _substitute(self, refused: Boot, world: World, turn: Turn) -> tuple[Boot, Intent] | None:
        """Plan and write down the boot that stands in for one that was refused; ``None`` when nothing can."""
        # What is left of the limits is in the journal, not in the plan; other lanes use it up, too.
        with turn.writing():
            now, intents = self._clock.now(), self._journal.open_intents()
            # What is spent after the rows: one that ends in between counts twice, and not never.
            spent, backoffs = self._journal.spent(now), self._journal.backoffs()
            world = replace(world, intents=intents, spent=spent, backoffs=backoffs)
            plan = fallback(world, self._policy, now, refused)
            for wait in plan.waits:
                log.info("%s: %s", wait.subject, wait.reason)
            boots = [action for action in plan.actions if isinstance(action, Boot)]
            return (boots[0], self.write(boots)[0]) if boots else None

    def create(self, intent: Intent, turn: Turn) -> ProviderError | None:
        """Send the create of an intent, for the first time or again.

        Returns:
            The refusal, if nothing was created for certain.

        Raises:
            TurnOverError: it is too late to begin; nothing was sent.
        """
        provider = self._providers[intent.provider]
        now = self._clock.now()
        tries = intent.attempts + 1
        # Written before the call, so that it holds after a crash, too.
        again_at = now + max(backoff.retry_after(tries), provider.caps.settle_seconds)
        if intent.attempts and self._exists(provider, intent, again_at):
            return None
        if intent.state is S.PLANNED:
            # The time to start begins with the first call: between plan and call no process may have run.
            intent = replace(intent, deadline=now + self._pools[intent.pool].start_seconds)
        order = self._order(intent, now)
        with turn.writing():
            if intent.state is S.PLANNED:
                changes = {"attempts": tries, "next_try_at": again_at, "deadline": intent.deadline}
                intent = self._move(intent, S.CALLING, "", **changes)
            else:
                intent = self._amend(intent, f"try {tries}", attempts=tries, next_try_at=again_at)
        try:
            instance = provider.create(order)
        except ProviderError as error:
            return self._refused(intent, error)
        outcome = "it existed already" if instance.adopted else "the provider accepted it"
        self._move(intent, S.BOOTING, outcome, instance_id=instance.id)
        self._journal.clear_backoffs(backoff.offer_keys(intent.provider, intent.offer))
        return None

    def _exists(self, provider: ComputeProvider, intent: Intent, again_at: float) -> bool:
        """Return whether an earlier try has created it after all, or that cannot be known now.

        If it has, the instance holds that try's token, and needs no new one.
        """
        try:
            found = provider.get(Ref(name=intent.name, operation_id=intent.operation_id))
        except ProviderError as error:
            self._amend(intent, f"{error.kind}: {error}", next_try_at=again_at)
            return True
        if found is None:
            return False
        self._move(intent, S.BOOTING, "an earlier try had created it", instance_id=found.id)
        return True

    def _order(self, intent: Intent, now: float) -> Create:
        template, pool = self._templates[intent.pool], self._pools[intent.pool]
        left = int(intent.deadline + pool.boot_seconds + pool.extend_seconds - now)
        request = JoinTokenRequest(
            instance=intent.name,
            pool=intent.pool,
            role=pool.role,
            ttl_seconds=max(MIN_TOKEN_SECONDS, min(MAX_TOKEN_SECONDS, left)),
            operation_id=intent.operation_id,
        )
        token = self._gateway.join_token(request).token
        own = naming.labels(self._policy.deployment, intent.pool, pool.role, intent.operation_id, intent.spec)
        return Create(
            name=intent.name,
            operation_id=intent.operation_id,
            deployment=self._policy.deployment,
            pool=intent.pool,
            type=intent.type,
            location=intent.location,
            image=template.image,
            user_data=template.user_data(intent.name, token),
            labels={**pool.labels, **own},
        )

    def _refused(self, intent: Intent, error: ProviderError) -> ProviderError | None:
        log.warning("create of %s failed (%s, applied: %s): %s", intent.name, error.kind, error.applied, error)
        words = f"{error.kind}: {error}"
        # After an earlier try whose outcome is unknown, a refusal of this one proves nothing about that one.
        if error.applied is not Applied.NO or intent.attempts > 1:
            self._amend(intent, words)
            return None
        self._move(intent, S.GONE, words)
        key = backoff.key_of(error, intent.provider, intent.pool, intent.offer)
        least = error.retry_after or 0.0
        if error.kind is ErrorKind.DEPRECATED:
            least = max(least, backoff.DEPRECATED_SECONDS)
        known = self._journal.backoffs().get(key)
        bounds, now = backoff.bounds_of(error, key), self._clock.now()
        held = backoff.grown(
            known, key, bounds=bounds, now=now, reason=words, least=least, chance=self._randomness.jitter()
        )
        self._journal.back_off(held)
        return error

    def boot_failed(self, intent: Intent, reason: str) -> None:
        """Back the pool off after an instance that did not become a node."""
        known = self._journal.backoffs().get(backoff.pool_key(intent.pool))
        now, words = self._clock.now(), f"{intent.name}: {reason}"
        self._journal.back_off(
            backoff.failed_boot(known, intent.pool, now=now, reason=words, chance=self._randomness.jitter())
        )

    def _move(self, intent: Intent, to: IntentState, reason: str, **changes: object) -> Intent:
        after = self._journal.move(intent.operation_id, to, now=self._clock.now(), reason=reason, **changes)
        log.info("%s is %s%s", intent.name, to, f": {reason}" if reason else "")
        return after

    def _amend(self, intent: Intent, reason: str, **changes: object) -> Intent:
        return self._journal.amend(intent.operation_id, now=self._clock.now(), reason=reason, **changes)
