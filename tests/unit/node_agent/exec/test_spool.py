"""Events on disk, and cutting bytes between characters."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.wire import limits
from gateway.wire.exec import Stream as Kind
from node_agent.exec.spool import CharacterGate, Spool, SpoolRecord, cut, incomplete_tail, pieces

ALL = 10**9


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["stdout", "stderr"]), st.binary(min_size=1, max_size=50)),
        st.tuples(st.just("read"), st.just(b"")),
    ),
    max_size=60,
)


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


CUTS = st.lists(st.integers(min_value=1, max_value=7), min_size=1, max_size=20)


def split(data: bytes, sizes: list[int]) -> list[bytes]:
    """``data`` in pieces of the given sizes, over and over."""
    parts, start, turn = [], 0, 0
    while start < len(data):
        size = sizes[turn % len(sizes)]
        parts.append(data[start : start + size])
        start, turn = start + size, turn + 1
    return parts


def through(parts: list[bytes]) -> list[bytes]:
    gate = CharacterGate()
    return [gate.feed(part) for part in parts] + [gate.flush()]


@given(st.binary(max_size=200), CUTS)
def test_no_byte_is_lost_or_added(data: bytes, sizes: list[int]) -> None:
    assert b"".join(through(split(data, sizes))) == data


@given(st.text(max_size=100), CUTS)
def test_text_is_never_split_within_a_character(text: str, sizes: list[int]) -> None:
    out = through(split(text.encode(), sizes))
    assert "".join(part.decode() for part in out) == text


@given(st.binary(max_size=200), CUTS)
def test_at_most_three_bytes_are_held_back(data: bytes, sizes: list[int]) -> None:
    gate, given_, got = CharacterGate(), 0, 0
    for part in split(data, sizes):
        given_ += len(part)
        got += len(gate.feed(part))
        assert given_ - got <= 3


@given(st.text(max_size=200), st.integers(min_value=4, max_value=40))
def test_pieces_are_whole_text_within_the_limit(text: str, limit: int) -> None:
    parts = list(pieces(text.encode(), limit))
    assert all(0 < len(part) <= limit for part in parts)
    assert "".join(part.decode() for part in parts) == text


@given(st.binary(max_size=200), st.integers(min_value=4, max_value=40))
def test_pieces_lose_nothing_of_what_is_not_text(data: bytes, limit: int) -> None:
    assert b"".join(pieces(data, limit)) == data


def test_an_impossible_start_of_a_character_is_not_waited_for() -> None:
    assert incomplete_tail(b"a\xe0\x80") == 0  # an overlong form
    assert incomplete_tail(b"a\xc0") == 0
    assert incomplete_tail(b"a\xe2\x82") == 2
    assert incomplete_tail("€".encode()) == 0


def test_a_cut_ends_before_a_character_that_does_not_fit() -> None:
    assert cut("a€".encode(), 3) == b"a"
    assert cut("€".encode(), 2) == b""
