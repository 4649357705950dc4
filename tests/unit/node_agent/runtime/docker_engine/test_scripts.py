"""Marks between the bytes of an output."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.runtime.docker_engine.scripts import ENDED, STARTED, Mark, MarkScanner, new_prefix

PREFIX = "0123456789abcdef"


def mark(kind: str, value: str) -> bytes:
    return f"\x1e{PREFIX}{kind}{value};".encode()


def joined(items: list[bytes | Mark]) -> list[bytes | Mark]:
    """Join neighbouring pieces of output."""
    merged: list[bytes | Mark] = []
    for item in items:
        if isinstance(item, bytes) and merged and isinstance(merged[-1], bytes):
            merged[-1] += item
        else:
            merged.append(item)
    return merged


def test_output_and_marks_keep_their_order() -> None:
    data = mark(STARTED, "17") + b"hello" + mark(ENDED, "0") + b"later"

    assert MarkScanner(PREFIX).feed(data) == [Mark(STARTED, "17"), b"hello", Mark(ENDED, "0"), b"later"]


@given(st.lists(st.sampled_from([b"text", b"\x1e", b"\x1e0123", b";", mark(ENDED, "3"), b"\x00\xff"])), st.data())
def test_any_cut_gives_the_same(pieces: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    scanner, items = MarkScanner(PREFIX), []
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        items += scanner.feed(whole[start:end])
    items.append(scanner.rest())
    expected = MarkScanner(PREFIX)

    assert joined([item for item in items if item != b""]) == joined(
        [item for item in [*expected.feed(whole), expected.rest()] if item != b""]
    )


@pytest.mark.parametrize("tail", [b"\x1e", b"\x1e0123456", mark(ENDED, "1")[:-1]])
def test_the_start_of_a_mark_is_held_back_and_given_at_the_end(tail: bytes) -> None:
    scanner = MarkScanner(PREFIX)

    assert scanner.feed(b"text" + tail) == [b"text"]
    assert scanner.rest() == tail


def test_ordinary_output_is_never_held_back() -> None:
    assert MarkScanner(PREFIX).feed(b"prompt> ") == [b"prompt> "]


def test_what_only_looks_like_a_mark_is_output() -> None:
    data = b"\x1e" + PREFIX.encode() + b"x" * 500

    assert joined(MarkScanner(PREFIX).feed(data)) == [data]


def test_prefixes_differ() -> None:
    assert new_prefix() != new_prefix()
