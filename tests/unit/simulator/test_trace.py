"""Traces: what is written is read back, jobs are drawn alike every time, and malformed lines are refused."""

from pathlib import Path

import pytest

from simulator import generate, trace
from simulator.trace import JobBatch, Spread, Trace, TraceError, earliest_starts

HEAD = '{"trace":"t","seed":1}'
GOOD = '{"seconds":{"median":1}}'


def written(directory: Path, *lines: str) -> Path:
    path = directory / "t.jsonl"
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize("name", sorted(generate.SHIPPED))
def test_the_shipped_traces_are_those_that_the_program_writes(name: str) -> None:
    made = generate.SHIPPED[name]()
    path = trace.find(name)
    assert path.read_text() == trace.dump(made), "run: python -m simulator.generate"
    assert trace.load(path) == made
    assert trace.find(name, ".toml").is_file()


def test_jobs_are_drawn_alike_every_time_and_within_their_bounds() -> None:
    seconds = Spread(median=100, sigma=0.5, least=50, most=150)
    made = Trace("t", 3, (JobBatch(at=10, count=500, over=60, seconds=seconds, cpus=2, memory_mb=512),))
    jobs = made.jobs()
    assert jobs == made.jobs()
    assert all(10 <= job.at <= 70 and 50 <= job.seconds <= 150 for job in jobs)
    assert 90 < sorted(job.seconds for job in jobs)[250] < 110
    assert len({job.id for job in jobs}) == 500
    assert jobs[0].shape.model_dump() == {"cpus": 2.0, "memory_mb": 512, "disk_mb": 4096, "gpus": 0, "slots": 1}


def test_another_seed_draws_other_jobs() -> None:
    batch = JobBatch(count=10, seconds=Spread(median=100, sigma=0.5))
    assert Trace("t", 1, (batch,)).jobs() != Trace("t", 2, (batch,)).jobs()


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        ([], None),
        (["", " "], None),
        (["[]"], 1),
        (['{"trace":"t"}'], 1),
        (['{"trace":"t","seed":1,"sed":2}'], 1),
        ([HEAD], None),
        ([HEAD, '{"seconds":{"median":1},"cpu":1}'], 2),
        ([HEAD, '{"seconds":{"mean":1}}'], 2),
        ([HEAD, "", '{"seconds":{"median":0}}'], 3),
        ([HEAD, GOOD, '{"seconds":'], 3),
        ([HEAD, '{"at":NaN,"seconds":{"median":1}}'], 2),
        ([HEAD, '{"seconds":{"median":1,"least":9,"most":3}}'], 2),
        ([HEAD, GOOD, '{"seconds":{"median":1},"after":"b"}'], 3),
        ([HEAD, '{"seconds":{"median":1},"name":"b"}'], 2),
        ([HEAD, *['{"seconds":{"median":1},"kind":"build","name":"b"}'] * 2], 3),
        ([HEAD, '{"seconds":{"median":1},"kind":"build","name":"b","after":"b"}'], 2),
        ([HEAD, GOOD, '{"at":4e6,"seconds":{"median":1}}'], 3),
        ([HEAD, '{"seconds":{"median":1e18}}'], 2),
        ([HEAD, *['{"count":999999,"seconds":{"median":1}}'] * 2], None),
    ],
)
def test_a_malformed_trace_is_refused_by_the_line_at_fault(tmp_path: Path, lines: list[str], line: int | None) -> None:
    with pytest.raises(TraceError) as refused:
        trace.load(written(tmp_path, *lines))
    assert refused.value.line == line
    assert str(tmp_path / "t.jsonl") in str(refused.value)


def test_refusals_name_the_keys(tmp_path: Path) -> None:
    lines = [HEAD, '{"seconds":{"mean":1}}', '{"seconds":{"median":1},"cpu":1}']
    reasons = []
    for line in lines[1:]:
        with pytest.raises(TraceError) as refused:
            trace.load(written(tmp_path, HEAD, line))
        reasons.append(str(refused.value).partition("line 2: ")[2])
    assert reasons == [
        "the key 'seconds.median' is missing; the key 'seconds.mean' is unknown;"
        " valid keys: median, sigma, least, most",
        "the key 'cpu' is unknown; valid keys: at, count, over, seconds, kind, name, after, cpus, memory_mb, disk_mb,"
        " gpus, runtime, isolation, ahead",
    ]


def test_jobs_start_after_all_the_builds_before_them() -> None:
    build = Spread(median=100)
    batches = (
        JobBatch(after="second", at=3, seconds=build),
        JobBatch(at=10, seconds=build, kind="build", name="first"),
        JobBatch(after="first", at=5, seconds=build, kind="build", name="second"),
        JobBatch(at=7, seconds=build),
    )
    assert earliest_starts(Trace("t", 1, batches).jobs()) == [(218.0, 2), (10.0, 0), (115.0, 1), (7.0, 0)]


def test_an_unknown_name_is_answered_with_those_of_the_package() -> None:
    with pytest.raises(TraceError, match="agents-day, eval-sweep, rl-bursts"):
        trace.find("nothing")
