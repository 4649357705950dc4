"""The history of a session on disk."""

import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.wire import limits
from gateway.wire.exec import Stream as Kind
from node_agent.exec.history import History, OutputTotals
from node_agent.exec.spool import Spool, SpoolRecord
from node_agent.runtime.base import Chunk, Stream

ALL = 10**9
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["stdout", "stderr"]), st.binary(min_size=1, max_size=50)),
        st.tuples(st.just("read"), st.just(b"")),
    ),
    max_size=60,
)


def unbounded(_size: int) -> bool:
    return True


def used_up(_size: int) -> bool:
    return False


def content(records: list[SpoolRecord], kind: Kind) -> bytes:
    return b"".join(record.data for record in records if record.stream == kind)


@given(OPERATIONS)
@settings(max_examples=60, deadline=None)
def test_a_reader_that_follows_and_one_that_replays_see_the_same(
    tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[Kind, bytes]]
) -> None:
    spool = Spool(tmp_path_factory.mktemp("spool") / "events")
    followed: list[SpoolRecord] = []
    for kind, data in operations:
        if kind == "read":  # type: ignore[comparison-overlap]
            followed += spool.read(len(followed), ALL, ALL)
        else:
            spool.append(kind, data, 1.0)
    followed += spool.read(len(followed), ALL, ALL)
    assert [record.sequence for record in followed] == list(range(1, len(followed) + 1))
    assert followed == spool.read(0, ALL, ALL)
    for kind in ("stdout", "stderr"):
        assert content(followed, kind) == b"".join(data for name, data in operations if name == kind)
    spool.close()


def test_reading_starts_anywhere_also_when_the_index_has_thinned_out(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "events")
    for number in range(5000):
        spool.append("error", str(number).encode(), 1.0)
    for after in (0, 1, 1023, 1024, 2049, 4998, 4999):
        (record,) = spool.read(after, 1, ALL)
        assert (record.sequence, record.data) == (after + 1, str(after).encode())
    assert spool.read(5000, ALL, ALL) == []
    spool.close()


def test_output_that_nobody_has_read_grows_into_large_events(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "events")
    for _ in range(3000):
        spool.append("stdout", b"x" * 100, 1.0)
    sizes = [len(record.data) for record in spool.read(0, ALL, ALL)]
    assert sum(sizes) == 300_000
    assert len(sizes) == 5
    assert max(sizes) <= limits.EXEC_CHUNK
    spool.close()


def test_a_read_is_bounded_in_events_and_bytes(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "events")
    for kind in ("stdout", "stderr") * 10:
        spool.append(kind, b"x" * 1000, 1.0)  # type: ignore[arg-type]
    assert len(spool.read(0, 3, ALL)) == 3
    assert len(spool.read(0, ALL, 2500)) == 3
    assert len(spool.read(0, ALL, 1)) == 1
    spool.close()


def test_a_history_cut_by_a_crash_is_whole_up_to_its_last_record(tmp_path: Path) -> None:
    path = tmp_path / "events"
    spool = Spool(path)
    spool.append("stdout", b"one", 1.0)
    spool.append("stderr", b"two", 1.0)
    spool.close()
    path.write_bytes(path.read_bytes()[:-1])
    again = Spool(path)
    assert [record.data for record in again.read(0, ALL, ALL)] == [b"one"]
    again.append("exit", b"", 2.0, -1)
    assert [(record.sequence, record.stream) for record in again.read(0, ALL, ALL)] == [(1, "stdout"), (2, "exit")]
    again.close()


def test_the_bound_on_output_is_told_once_with_what_is_stored(tmp_path: Path) -> None:
    history = History(tmp_path / "events", 5, unbounded)
    history.output(Chunk(Stream.STDOUT, b"abc"), 1.0)
    history.output(Chunk(Stream.STDERR, "€€".encode()), 1.0)
    history.output(Chunk(Stream.STDOUT, b"more"), 1.0)
    history.flush(1.0)
    records = history.read(0, ALL, ALL)
    assert [record.stream for record in records] == ["stdout", "truncated"]
    assert b"stdout 3 bytes, stderr 0 bytes" in records[1].data
    assert (history.totals.stdout, history.totals.stderr, history.totals.truncated) == (7, 6, True)
    history.close()


def test_output_of_exactly_the_bound_is_not_truncated(tmp_path: Path) -> None:
    history = History(tmp_path / "events", 6, unbounded)
    history.output(Chunk(Stream.STDOUT, b"abcdef"), 1.0)
    history.flush(1.0)
    assert not history.totals.truncated
    history.close()


def test_a_full_spool_truncates_and_says_so(tmp_path: Path) -> None:
    history = History(tmp_path / "events", ALL, used_up)
    history.output(Chunk(Stream.STDOUT, b"abc"), 1.0)
    (record,) = history.read(0, ALL, ALL)
    assert record.stream == "truncated"
    assert b"spool is full" in record.data
    history.close()


def test_a_full_disk_costs_events_and_never_raises(tmp_path: Path) -> None:
    path = tmp_path / "events"
    path.symlink_to("/dev/full")
    history = History(path, 1000, unbounded)
    history.note("status", "started", 1.0)
    history.output(Chunk(Stream.STDOUT, b"lost"), 2.0)
    history.flush(3.0)
    history.note("exit", "", 3.0)
    assert history.totals == OutputTotals(4, 0, truncated=True)
    assert history.last_sequence == 0
    history.close()


def test_the_rest_of_a_character_that_never_comes_is_kept_at_the_end(tmp_path: Path) -> None:
    history = History(tmp_path / "events", ALL, unbounded)
    history.output(Chunk(Stream.STDOUT, b"a\xe2\x82"), 1.0)
    assert [record.data for record in history.read(0, ALL, ALL)] == [b"a"]
    history.flush(1.0)
    (event,) = [record.event() for record in history.read(1, ALL, ALL)]
    assert event.to_bytes() == b"\xe2\x82"
    history.close()


def test_a_hundred_megabytes_do_not_grow_memory(tmp_path: Path) -> None:
    history = History(tmp_path / "events", ALL, unbounded)
    chunk = Chunk(Stream.STDOUT, b"x" * limits.EXEC_CHUNK)
    tracemalloc.start()
    for _ in range(100 * limits.MIB // limits.EXEC_CHUNK):
        history.output(chunk, 1.0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert history.totals.stdout == 100 * limits.MIB
    assert peak < limits.MIB
    history.close()
