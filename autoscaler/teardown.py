"""Gives the whole fleet up: every instance of this deployment is deleted, whatever runs on it."""

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import wait
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from autoscaler.clock import Clock
from autoscaler.core.states import TEARDOWN, IntentState
from autoscaler.core.world import Intent
from autoscaler.lanes import Lanes, Serial
from autoscaler.observe import Gateway
from autoscaler.store.journal import Journal
from gateway.client import GatewayError, GatewayUnreachableError
from providers.base import ComputeProvider, Deleted, Phase, ProviderError, Ref

log = logging.getLogger(__name__)

STEP_SECONDS: Final = 0.25
"""Between two listings: no cloud tells when a delete is done."""
AGAIN_SECONDS: Final = 10.0
"""After this a delete that has shown nothing is sent again."""


def release(
    journal: Journal,
    providers: Mapping[str, ComputeProvider],
    *,
    clock: Clock,
    within: float,
    sleep: Callable[[float], None] = time.sleep,
    lanes: Lanes = Serial(),
) -> list[str]:
    """Deletes all instances and waits until they are gone.

    Args:
        journal: its rows end as gone where that is proved.
        providers: all of the fleet, by name.
        clock: for rows and the deadline.
        within: seconds for everything.
        sleep: waits that many seconds.
        lanes: where providers are called; one that hangs does not hold up the others.

    Returns:
        A sentence for each instance or provider that is left; calling again goes on.
    """
    _give_up(journal, clock)
    deadline = clock.monotonic() + within
    begun = {
        name: lanes.start(name, partial(_Provider(journal, name, provider, clock).release, deadline, sleep))
        for name, provider in providers.items()
    }
    wait([future for future in begun.values() if future is not None], within + STEP_SECONDS)
    left: list[str] = []
    for name, future in begun.items():
        if future is not None and future.done():
            left += future.result()
        else:
            left.append(f"provider {name}: it has not answered in time")
    return left


def _give_up(journal: Journal, clock: Clock) -> None:
    for intent in journal.open_intents():
        for state in TEARDOWN[intent.state]:
            journal.move(intent.operation_id, state, now=clock.now(), reason="the fleet is given up")


@dataclass(frozen=True)
class _Provider:
    journal: Journal
    name: str
    provider: ComputeProvider
    clock: Clock
    asked: dict[str, float] = field(default_factory=dict)
    """When each delete was sent last."""

    def release(self, deadline: float, sleep: Callable[[float], None]) -> list[str]:
        """What is left at the deadline."""
        while (left := self._round()) and self.clock.monotonic() < deadline:
            sleep(STEP_SECONDS)
        return left

    def _round(self) -> list[str]:
        """One look: deletes what is there, and closes the rows of what is not."""
        try:
            listed = {i.name: i for i in self.provider.list().instances if i.phase is not Phase.GONE}
            rows = self._rows()
            for name in {*listed, *rows}:
                since = self.clock.monotonic() - self.asked.get(name, float("-inf"))
                if name in listed and since < AGAIN_SECONDS:
                    continue
                self.asked[name] = self.clock.monotonic()
                if self.provider.delete(Ref(name=name)) is Deleted.GONE and name in rows:
                    reason = "the provider has it no more"
                    self.journal.move(rows[name].operation_id, IntentState.GONE, now=self.clock.now(), reason=reason)
        except ProviderError as error:
            return [f"provider {self.name}: {error}"]
        except Exception as error:  # noqa: BLE001 - what the others have left is told all the same
            return [f"provider {self.name} broke: {type(error).__name__}: {error}"]
        return [f"{name} is still there" for name in sorted({*listed, *self._rows()})]

    def _rows(self) -> dict[str, Intent]:
        return {intent.name: intent for intent in self.journal.open_intents() if intent.provider == self.name}


def forget(gateway: Gateway, names: frozenset[str]) -> list[str]:
    """Tells the gateway that the nodes of these instances are no more.

    Returns:
        A sentence for each that it still keeps: it declares them lost by itself.
    """
    problems: list[str] = []
    try:
        gone = [node for node in gateway.nodes() if node.instance in names]
    except (GatewayError, GatewayUnreachableError) as error:
        return [f"the gateway was not told: {error}"]
    for node in gone:
        try:
            gateway.remove_node(node.id, machine_gone=True)
        except (GatewayError, GatewayUnreachableError) as error:
            problems.append(f"node {node.id}: {error}")
    return problems
