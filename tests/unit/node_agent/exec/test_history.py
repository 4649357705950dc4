"""The bounds of what a session keeps."""

import tracemalloc
from pathlib import Path

from gateway.wire import limits
from gateway.wire.shares import ShareOf
from node_agent.exec.history import History, OutputTotals
from node_agent.runtime.base import Chunk, Stream

ALL = 10**9


def unbounded(_size: int) -> None:
    return None


def used_up(_size: int) -> ShareOf:
    return ShareOf.SANDBOX


def test_the_bound_on_output_is_one_event_with_what_is_stored(tmp_path: Path) -> None:
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
    assert ShareOf.SANDBOX.value.encode() in record.data
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
