"""The goals, on each trace that ships with the package."""

import pytest

from autoscaler.simulator import cli, tracefile


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", tracefile.shipped())
def test_cost_and_waiting_are_near_what_is_possible(name: str) -> None:
    summary, _ = cli.play(name, name)
    assert summary.is_reached, cli.lines(summary)
