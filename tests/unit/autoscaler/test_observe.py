"""Observation: what it remembers from one look to the next."""

from autoscaler.observe import Streaks


def test_a_break_restarts_the_count() -> None:
    lasting = Streaks()
    assert lasting.update("a", ["x"], 0.0) == {"x": 0.0}
    assert lasting.update("a", ["x", "y"], 5.0) == {"x": 5.0, "y": 0.0}
    assert lasting.update("a", ["y"], 6.0) == {"y": 1.0}
    assert lasting.update("a", ["x"], 7.0) == {"x": 0.0}
