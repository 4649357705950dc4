"""Traces: what is written is read back, drawn alike every time, and refused in words."""

from pathlib import Path

import pytest

from autoscaler.simulator import generate, trace
from autoscaler.simulator.trace import Batch, Spread, Trace, TraceError


def written(directory: Path, *lines: str) -> Path:
    path = directory / "t.jsonl"
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize("name", sorted(generate.SHIPPED))
def test_the_shipped_traces_are_those_that_the_program_writes(name: str) -> None:
    made = generate.SHIPPED[name]()
    path = trace.find(name, trace.SUFFIX)
    assert path.read_text() == trace.dump(made), "run: python -m autoscaler.simulator.generate"
    assert trace.load(path) == made
    assert trace.find(name, ".toml").is_file()


def test_jobs_are_drawn_alike_every_time_and_within_their_bounds() -> None:
    seconds = Spread(median=100, sigma=0.5, least=50, most=150)
    made = Trace("t", 3, (Batch(at=10, count=500, over=60, seconds=seconds, cpus=2, memory_mb=512),))
    jobs = made.jobs()
    assert jobs == made.jobs()
    assert all(10 <= job.at <= 70 and 50 <= job.seconds <= 150 for job in jobs)
    assert 90 < sorted(job.seconds for job in jobs)[250] < 110
    assert len({job.id for job in jobs}) == 500
    assert jobs[0].shape.model_dump() == {"cpus": 2.0, "memory_mb": 512, "disk_mb": 4096, "gpus": 0, "slots": 1}


def test_another_seed_draws_other_jobs() -> None:
    batch = Batch(count=10, seconds=Spread(median=100, sigma=0.5))
    assert Trace("t", 1, (batch,)).jobs() != Trace("t", 2, (batch,)).jobs()


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "is empty"),
        (["[]"], "line 1"),
        (['{"trace":"t","seed":1}'], "it has 0 jobs"),
        (['{"trace":"t","seed":1}', '{"seconds":{"median":1},"cpu":1}'], "line 2: cpu"),
        (['{"trace":"t","seed":1}', '{"seconds":{"median":1},"after":"b"}'], "no build is named 'b'"),
        (['{"trace":"t","seed":1}', '{"seconds":{"median":1},"name":"b"}'], "only a single build has a name"),
        (
            ['{"trace":"t","seed":1}', *['{"seconds":{"median":1},"kind":"build","name":"b"}'] * 2],
            "'b' stands there twice",
        ),
    ],
)
def test_what_cannot_be_played_is_refused_in_words(tmp_path: Path, lines: list[str], words: str) -> None:
    with pytest.raises(TraceError, match=words):
        trace.load(written(tmp_path, *lines))


def test_a_name_that_is_nowhere_is_answered_with_those_that_are() -> None:
    with pytest.raises(TraceError, match="agents-day, eval-sweep, rl-bursts"):
        trace.find("nothing", trace.SUFFIX)
