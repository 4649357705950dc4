"""The arithmetic of the bench."""

import json
from pathlib import Path

import pytest

from tests.bench import plan
from tests.bench.figures import Measure, PlanTime, Summary


def test_median_and_95th_percentile() -> None:
    assert Summary.of([5.0]) == Summary(5.0, 5.0, 1)
    assert Summary.of([float(n) for n in range(100, 0, -1)]) == Summary(50.5, 95.0, 100)
    assert Summary.of([1.0, 2.0, 30.0]).p95 == 30.0


def test_a_ratio_needs_both() -> None:
    measure = Measure("exec", "ms", {"service": Summary.of([3.0]), "runsc": Summary.of([2.0])})
    assert measure.ratio("runsc") == pytest.approx(1.5)
    assert measure.ratio("docker") is None
    assert measure.as_json()["service_over"] == {"runsc": pytest.approx(1.5)}


def test_growth_is_over_a_tenth_of_the_size() -> None:
    time = PlanTime("case", Summary.of([40.0]), Summary.of([30.0]), Summary.of([2.0]))
    assert time.growth == pytest.approx(15.0)


def test_the_bench_of_plans_prints_each_case_and_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "NODES", 20)
    monkeypatch.setattr(plan, "WAITING", 40)
    plan.main(["--rounds", "1", "--json", str(tmp_path / "plan.json")])
    printed = json.loads((tmp_path / "plan.json").read_text())
    assert [each["case"] for each in printed["plans"]] == list(plan.CASES)
    assert all(each["cpu"]["median"] > 0 and each["aim_ms"] == 50 for each in printed["plans"])
    assert set(printed) == {"machine", "measures", "plans", "resident_mib"}
