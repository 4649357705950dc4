"""What people read of a plan: sentences with units, and names in place of operation ids."""

from decimal import Decimal

import pytest

from autoscaler import describe
from autoscaler.core.actions import (
    Action,
    Boot,
    BootExtended,
    BootStarted,
    CancelDrain,
    Drain,
    Finding,
    Forget,
    Learn,
    Move,
    Retry,
    Stop,
    Sweep,
)
from autoscaler.core.pools import OfferKey
from autoscaler.core.states import IntentState
from gateway.wire.resources import Shape

NAMES = {"op1": "fleet-cpu-op1"}
PLAIN = OfferKey("plain", "attic")


@pytest.mark.parametrize(
    ("action", "said"),
    [
        (
            Boot("cpu", "drawer", PLAIN, 300.0, "why", price=Decimal("0.0200")),
            "boot a node of pool cpu: plain@attic of drawer, 0.02 €/h, 300 s to run",
        ),
        (
            Boot("cpu", "drawer", PLAIN, 300.0, "why"),
            "boot a node of pool cpu: plain@attic of drawer, price unknown, 300 s to run",
        ),
        (Retry("op1", "why"), "order fleet-cpu-op1 under its name"),
        (Drain("op1", "n1", "why"), "close node n1 of fleet-cpu-op1 to new sandboxes"),
        (CancelDrain("op1", "n1", "why"), "open node n1 of fleet-cpu-op1 again"),
        (Stop("op1", "why"), "delete instance fleet-cpu-op1"),
        (Stop("op2", "why"), "delete instance op2"),
        (Sweep("drawer", "17", "why"), "delete 17 at drawer"),
        (Forget("n1", "why"), "forget node n1"),
    ],
)
def test_an_action_is_a_sentence(action: Action, said: str) -> None:
    assert describe.action(action, NAMES) == said


@pytest.mark.parametrize(
    ("finding", "said"),
    [
        (Move("op1", IntentState.READY, "why"), "instance fleet-cpu-op1 is ready"),
        (BootStarted("op1", 0.0, "why"), "instance fleet-cpu-op1 runs; its node must register by 1970-01-01 00:00:00Z"),
        (BootExtended("op1", 0.0, "why"), "instance fleet-cpu-op1 goes on booting; it has until 1970-01-01 00:00:00Z"),
        (
            Learn("cpu", "plain", "", Shape(cpus=4.0, memory_mb=8192, disk_mb=40_000)),
            "a node of pool cpu on plain has 4 CPUs, 8192 MiB, 40000 MiB disk",
        ),
    ],
)
def test_a_finding_is_a_sentence(finding: Finding, said: str) -> None:
    assert describe.finding(finding, NAMES) == said
