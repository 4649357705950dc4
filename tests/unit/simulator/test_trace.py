"""Traces: what is written is read back, drawn alike every time, and refused in words."""

import re
from pathlib import Path

import pytest

from simulator import generate, tracefile
from simulator.trace import Batch, Spread, Trace, earliest
from simulator.tracefile import TraceError

HEAD = '{"trace":"t","seed":1}'
GOOD = '{"seconds":{"median":1}}'


def written(directory: Path, *lines: str) -> Path:
    path = directory / "t.jsonl"
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize("name", sorted(generate.SHIPPED))
def test_the_shipped_traces_are_those_that_the_program_writes(name: str) -> None:
    made = generate.SHIPPED[name]()
    path = tracefile.find(name, tracefile.SUFFIX)
    assert path.read_text() == tracefile.dump(made), "run: python -m simulator.generate"
    assert tracefile.load(path) == made
    assert tracefile.find(name, ".toml").is_file()


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
        ([], 'is empty; its first line is {"trace": NAME, "seed": NUMBER}'),
        (["", " "], "is empty"),
        (["[]"], "line 1"),
        (['{"trace":"t"}'], "line 1: the key 'seed' is missing"),
        (['{"trace":"t","seed":1,"sed":2}'], "line 1: the key 'sed' is unknown; there are trace, seed"),
        ([HEAD], "has a first line and no jobs"),
        ([HEAD, '{"seconds":{"median":1},"cpu":1}'], "line 2: the key 'cpu' is unknown; there are at, count, over"),
        (
            [HEAD, '{"seconds":{"mean":1}}'],
            "line 2: the key 'seconds.median' is missing; the key 'seconds.mean' is unknown",
        ),
        ([HEAD, "", '{"seconds":{"median":0}}'], "line 3: seconds.median: Input should be greater than 0"),
        ([HEAD, GOOD, '{"seconds":'], "line 3: Invalid JSON"),
        ([HEAD, '{"at":NaN,"seconds":{"median":1}}'], "line 2: at: Input should be a finite number"),
        (
            [HEAD, '{"seconds":{"median":1,"least":9,"most":3}}'],
            "line 2: seconds: Value error, 'least' is 9, more than",
        ),
        ([HEAD, GOOD, '{"seconds":{"median":1},"after":"b"}'], "line 3: no build is named 'b'"),
        ([HEAD, '{"seconds":{"median":1},"name":"b"}'], "line 2: Value error, only a single build has a name"),
        (
            [HEAD, *['{"seconds":{"median":1},"kind":"build","name":"b"}'] * 2],
            "line 3: the build 'b' stands there twice, first in line 2",
        ),
        (
            [HEAD, '{"seconds":{"median":1},"kind":"build","name":"b","after":"b"}'],
            "line 2: it never comes: the build 'b' waits for itself",
        ),
        (
            [HEAD, GOOD, '{"at":4e6,"seconds":{"median":1}}'],
            "line 3: a job runs until day 46 of the trace; at most 31 days",
        ),
        ([HEAD, '{"seconds":{"median":1e18}}'], "line 2: a job runs until day"),
        ([HEAD, *['{"count":999999,"seconds":{"median":1}}'] * 2], "it has 1999998 jobs; at most 1000000"),
    ],
)
def test_what_cannot_be_played_is_refused_in_words(tmp_path: Path, lines: list[str], words: str) -> None:
    with pytest.raises(TraceError, match=re.escape(words)):
        tracefile.load(written(tmp_path, *lines))


def test_jobs_start_after_all_the_builds_before_them() -> None:
    build = Spread(median=100)
    batches = (
        Batch(after="second", at=3, seconds=build),
        Batch(at=10, seconds=build, kind="build", name="first"),
        Batch(after="first", at=5, seconds=build, kind="build", name="second"),
        Batch(at=7, seconds=build),
    )
    assert earliest(Trace("t", 1, batches).jobs()) == [(218.0, 2), (10.0, 0), (115.0, 1), (7.0, 0)]


def test_a_name_that_is_nowhere_is_answered_with_those_that_are() -> None:
    with pytest.raises(TraceError, match="agents-day, eval-sweep, rl-bursts"):
        tracefile.find("nothing", tracefile.SUFFIX)
