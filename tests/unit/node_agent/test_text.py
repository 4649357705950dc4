"""Cutting bytes between characters."""

from hypothesis import given
from hypothesis import strategies as st

from node_agent.exec.spool import CharacterGate, cut, incomplete_tail, pieces

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
