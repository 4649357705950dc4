"""The arithmetic of the bench."""

import pytest

from tests.bench.figures import Measure, Summary


def test_median_and_95th_percentile() -> None:
    assert Summary.of([5.0]) == Summary(5.0, 5.0, 1)
    assert Summary.of([float(n) for n in range(100, 0, -1)]) == Summary(50.5, 95.0, 100)
    assert Summary.of([1.0, 2.0, 30.0]).p95 == 30.0


def test_a_ratio_needs_both() -> None:
    measure = Measure("exec", "ms", {"service": Summary.of([3.0]), "runsc": Summary.of([2.0])})
    assert measure.ratio("runsc") == pytest.approx(1.5)
    assert measure.ratio("docker") is None
    assert measure.as_json()["service_over"] == {"runsc": pytest.approx(1.5)}
