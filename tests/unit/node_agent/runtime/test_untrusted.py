"""Parsers of what a sandbox says, fuzzed: any bytes, cut anywhere, give a value or `ForgedAnswerError`."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.runtime import untrusted
from node_agent.runtime.untrusted import ForgedAnswerError, JsonAnswer, NumberLine, whole_number

MOST = 2**40
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
NEAR_JSON = st.lists(st.sampled_from([b"{", b"}", b"[", b"]", b'"', b"\\", b'\\"', b":", b",", b"1", b" ", b"\xff"]))


def cut(whole: bytes, cuts: list[int]) -> list[bytes]:
    """Return ``whole`` in pieces."""
    ends = [*sorted(at % (len(whole) + 1) for at in cuts), len(whole)]
    return [whole[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]


@given(st.binary() | st.from_regex(rb"[0-9]{1,25}\n?.{0,5}"), st.lists(st.integers(0, 100), max_size=4))
def test_a_number_line_is_read_the_same_however_it_is_cut(whole: bytes, cuts: list[int]) -> None:
    line, newline, rest = whole.partition(b"\n")
    reader, found, after = NumberLine(MOST), None, b""
    try:
        for piece in cut(whole, cuts):
            if found is not None:
                after += piece
            elif (number := reader.feed(piece)) is not None:
                found, after = number
    except ForgedAnswerError:
        assert len(line) > untrusted.MAX_DIGITS or not line.isdigit() or int(line) > MOST
        return
    assert (found, after) == ((int(line), rest) if newline else (None, b""))


@given(VALUES, st.text(), st.lists(st.integers(0, 1000), max_size=6), st.sampled_from([b"", b"\n", b" "]))
def test_a_json_answer_is_read_the_same_however_it_is_cut(
    value: object, key: str, cuts: list[int], space: bytes
) -> None:
    whole = json.dumps({key: value}).encode()
    reader = JsonAnswer()
    answers = [reader.feed(piece) for piece in cut(space + whole, cuts)]

    assert answers[-1] == {key: value}


@given(st.binary() | NEAR_JSON.map(b"".join), st.lists(st.integers(0, 100), max_size=4))
def test_any_bytes_are_an_object_or_refused_or_not_whole(whole: bytes, cuts: list[int]) -> None:
    reader = JsonAnswer()
    try:
        answers = [reader.feed(piece) for piece in cut(whole, cuts)]
    except ForgedAnswerError:
        return
    assert all(answer is None or isinstance(answer, dict) for answer in answers)


@pytest.mark.parametrize("text", ["", "-1", "+1", "1_0", "٣", "1 ", "1e3", "9" * 4000, str(MOST + 1)])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(ForgedAnswerError):
        whole_number(text, MOST)


@pytest.mark.parametrize("piece", [b"{" * 65536, b'{"a":"' + b"}" * 65530, b'{"a":[' + b'"",' * 20000])
def test_an_answer_without_end_is_given_up(piece: bytes) -> None:
    reader = JsonAnswer()

    with pytest.raises(ForgedAnswerError):
        for number in range(untrusted.MAX_ANSWER // len(piece) + 2):
            reader.feed(piece if number == 0 else piece[6:])
