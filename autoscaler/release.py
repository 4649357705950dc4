"""Gives the whole fleet up: every instance of this deployment is deleted, whatever runs on it."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

from autoscaler.clock import Clock
from autoscaler.core.lifecycle import GIVING_UP, IntentState
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
) -> list[str]:
    """Deletes all instances and waits until they are gone.

    Args:
        journal: its rows end as gone where that is proved.
        providers: all of the fleet, by name.
        clock: for rows and the deadline.
        within: seconds for everything.
        sleep: waits that many seconds.

    Returns:
        A sentence for each instance or provider that is left; calling again goes on.
    """
    _give_up(journal, clock)
    deadline = clock.monotonic() + within
    asked: dict[tuple[str, str], float] = {}
    while True:
        left: list[str] = []
        for name, provider in providers.items():
            left += _round(journal, name, provider, clock, asked)
        if not left or clock.monotonic() >= deadline:
            return left
        sleep(STEP_SECONDS)


def _give_up(journal: Journal, clock: Clock) -> None:
    for intent in journal.open_intents():
        for state in GIVING_UP[intent.state]:
            journal.move(intent.operation_id, state, now=clock.now(), reason="the fleet is given up")


def _round(
    journal: Journal, name: str, provider: ComputeProvider, clock: Clock, asked: dict[tuple[str, str], float]
) -> list[str]:
    """One look at one provider: deletes what is there, and closes the rows of what is not."""
    try:
        listed = {i.name: i for i in provider.list().instances if i.phase is not Phase.GONE}
        rows = {intent.name: intent for intent in journal.open_intents() if intent.provider == name}
        for instance_name in {*listed, *rows}:
            since = clock.monotonic() - asked.get((name, instance_name), float("-inf"))
            if instance_name in listed and since < AGAIN_SECONDS:
                continue
            asked[name, instance_name] = clock.monotonic()
            answer = provider.delete(Ref(name=instance_name))
            if answer is Deleted.GONE and instance_name in rows:
                row = rows[instance_name]
                journal.move(row.operation_id, IntentState.GONE, now=clock.now(), reason="the provider has it no more")
    except ProviderError as error:
        return [f"provider {name}: {error}"]
    rest = {*listed} | {intent.name for intent in journal.open_intents() if intent.provider == name}
    return [f"{instance_name} is still there" for instance_name in sorted(rest)]


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
            gateway.remove_node(node.id)
        except (GatewayError, GatewayUnreachableError) as error:
            problems.append(f"node {node.id}: {error}")
    return problems
