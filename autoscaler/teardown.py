"""Teardown of the whole fleet: every instance of this deployment is deleted, whatever runs on it."""

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import wait
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from autoscaler.clock import DaemonClock
from autoscaler.core.states import TEARDOWN, IntentState
from autoscaler.core.world import Intent
from autoscaler.lanes import Lanes, SerialLanes
from autoscaler.observe import GatewayPort
from autoscaler.store.journal import Journal
from gateway.client import GatewayError, GatewayUnreachableError
from providers.base import ComputeProvider, Deleted, Phase, ProviderError, Ref

log = logging.getLogger(__name__)

STEP_SECONDS: Final = 0.25
"""Between two listings: no cloud says when a delete is done."""
RESEND_SECONDS: Final = 10.0
"""A delete that has shown no effect by then is sent again."""


@dataclass(frozen=True)
class Remaining:
    """An instance or a provider that a teardown could not finish."""

    subject: str
    """The instance's or the provider's name."""
    reason: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.reason}"


def release(
    journal: Journal,
    providers: Mapping[str, ComputeProvider],
    *,
    clock: DaemonClock,
    within: float,
    sleep: Callable[[float], None] = time.sleep,
    lanes: Lanes = SerialLanes(),
) -> list[Remaining]:
    """Delete all instances and wait until they are gone.

    Args:
        journal: a row ends as gone once that is proved.
        providers: all of the fleet, by name.
        clock: for rows and the deadline.
        within: seconds for everything.
        sleep: waits so many seconds.
        lanes: where providers are called; one that hangs does not hold up the others.

    Returns:
        Each instance and provider that is left; calling again goes on.
    """
    _abandon_rows(journal, clock)
    deadline = clock.monotonic() + within
    begun = {
        name: lanes.start(name, partial(_ProviderTeardown(journal, name, provider, clock).release, deadline, sleep))
        for name, provider in providers.items()
    }
    wait([future for future in begun.values() if future is not None], within + STEP_SECONDS)
    left: list[Remaining] = []
    for name, future in begun.items():
        if future is not None and future.done():
            left += future.result()
        else:
            left.append(Remaining(name, "no answer in time"))
    return left


def _abandon_rows(journal: Journal, clock: DaemonClock) -> None:
    for intent in journal.open_intents():
        for state in TEARDOWN[intent.state]:
            journal.move(intent.operation_id, state, now=clock.now(), reason="the fleet is torn down")


@dataclass(frozen=True)
class _ProviderTeardown:
    journal: Journal
    name: str
    provider: ComputeProvider
    clock: DaemonClock
    sent_at: dict[str, float] = field(default_factory=dict)
    """When each delete was last sent."""

    def release(self, deadline: float, sleep: Callable[[float], None]) -> list[Remaining]:
        """Delete until nothing is left or the deadline has passed; return what is left then."""
        while (left := self._round()) and self.clock.monotonic() < deadline:
            sleep(STEP_SECONDS)
        return left

    def _round(self) -> list[Remaining]:
        """Delete what is listed and close the rows of what is not; return what is left."""
        try:
            listed = {i.name: i for i in self.provider.list().instances if i.phase is not Phase.GONE}
            rows = self._rows()
            for name in {*listed, *rows}:
                since = self.clock.monotonic() - self.sent_at.get(name, float("-inf"))
                if name in listed and since < RESEND_SECONDS:
                    continue
                self.sent_at[name] = self.clock.monotonic()
                if self.provider.delete(Ref(name=name)) is Deleted.GONE and name in rows:
                    reason = "the provider no longer has it"
                    self.journal.move(rows[name].operation_id, IntentState.GONE, now=self.clock.now(), reason=reason)
        except ProviderError as error:
            return [Remaining(self.name, f"{error.kind}: {error}")]
        except Exception as error:  # noqa: BLE001 - what the other providers have left is reported all the same
            return [Remaining(self.name, f"{type(error).__name__}: {error}")]
        return [Remaining(name, "not deleted yet") for name in sorted({*listed, *self._rows()})]

    def _rows(self) -> dict[str, Intent]:
        return {intent.name: intent for intent in self.journal.open_intents() if intent.provider == self.name}


def forget_nodes(gateway: GatewayPort, names: frozenset[str]) -> list[str]:
    """Remove the nodes of these instances from the gateway.

    Returns:
        A sentence for each that it still keeps; it declares those lost by itself.
    """
    kept: list[str] = []
    try:
        gone = [node for node in gateway.nodes() if node.instance in names]
    except (GatewayError, GatewayUnreachableError) as error:
        return [f"the gateway keeps its nodes: {error}"]
    for node in gone:
        try:
            gateway.remove_node(node.id, machine_gone=True)
        except (GatewayError, GatewayUnreachableError) as error:
            kept.append(f"node {node.id}: {error}")
    return kept
