"""The figures of a run."""

from simulator.metrics import percentile


def test_percentiles_are_of_the_nearest_rank() -> None:
    values = [float(value) for value in range(1, 101)]
    assert [percentile(values, share) for share in (0.5, 0.95, 0.99, 1.0)] == [50, 95, 99, 100]
    assert percentile([], 0.5) == 0
