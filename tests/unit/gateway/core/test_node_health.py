"""Node states by the age of the last heartbeat."""

from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise

import pytest

from gateway.core import node_health
from gateway.core.model import Node
from gateway.core.node_health import HeartbeatLimits
from gateway.wire.resources import Shape
from gateway.wire.states import NODE_TRANSITIONS, NodeState

N = NodeState
LIMITS = HeartbeatLimits(unreachable_after=20, lost_after=300)


@pytest.mark.parametrize(
    ("silences", "nobody"),
    [([], False), ([9000], False), ([9000, 0], False), ([9000, 159], False), ([160, 160], True), ([9000, 300], True)],
)
def test_a_gateway_that_hears_nobody_is_the_one_that_is_cut_off(silences: list[float], nobody: bool) -> None:
    assert node_health.hears_nobody(silences, LIMITS) is nobody


NODE = Node(
    id="n", instance="vm", pool="p", state=N.READY, node_url="http://n", agent_version="1", total=Shape(), runtimes=(),
    registered_at=datetime(2026, 1, 1, tzinfo=UTC),
)  # fmt: skip


@pytest.mark.parametrize(
    ("state", "age", "expected"),
    [
        (N.READY, 0, N.READY),
        (N.READY, 19.9, N.READY),
        (N.READY, 20, N.UNREACHABLE),
        (N.DRAINING, 20, N.UNREACHABLE),
        (N.READY, 1000, N.UNREACHABLE),
        (N.UNREACHABLE, 299, N.UNREACHABLE),
        (N.UNREACHABLE, 300, N.LOST),
        (N.LOST, 10_000, N.LOST),
        (N.GONE, 10_000, N.GONE),
    ],
)
def test_state_by_age_of_the_last_heartbeat(state: NodeState, age: float, expected: NodeState) -> None:
    assert node_health.state_at_age(state, age, LIMITS) is expected


@pytest.mark.parametrize("state", list(N))
def test_the_next_check_is_due_when_the_state_changes(state: NodeState) -> None:
    age = node_health.next_check(state, LIMITS)
    if age is None:
        assert node_health.state_at_age(state, 1e9, LIMITS) is state
    else:
        assert node_health.state_at_age(state, age - 0.001, LIMITS) is state
        assert node_health.state_at_age(state, age, LIMITS) is not state


def test_a_silent_node_takes_one_legal_step_at_a_time() -> None:
    steps = [N.READY]
    while (after := node_health.state_at_age(steps[-1], 1e9, LIMITS)) is not steps[-1]:
        steps.append(after)
    assert steps == [N.READY, N.UNREACHABLE, N.LOST]
    assert all(later in NODE_TRANSITIONS[earlier] for earlier, later in pairwise(steps))


@pytest.mark.parametrize("state", [N.UNREACHABLE, N.LOST])
def test_a_node_drained_while_silent_is_draining_once_it_reports(state: NodeState) -> None:
    drained = node_health.drained(replace(NODE, state=state), True)
    assert drained.state is state
    assert node_health.opened(drained).state is N.DRAINING
