"""Parsers of what comes out of a sandbox: the answers of helpers, marks, and the sentry's JSON.

Whoever runs inside a sandbox can write into the pipes of every process of the same user, and so forge the answer of
each helper that the agent starts there.  Therefore each parser is total and bounded: any bytes, cut anywhere, give a
value or a `ForgedAnswerError`, in time and memory proportional to a bound that stands here.  How long an answer may
take is up to the caller, and each has a deadline.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

MAX_DIGITS: Final = 18
"""Of a number: what fits in 63 bits."""
MAX_ANSWER: Final = 16 * 1024 * 1024
"""Bytes of one JSON answer."""
MAX_DEPTH: Final = 64
"""Brackets that may be open in one JSON answer."""
MAX_BRACKETS: Final = 1_000_000
"""Brackets and strings in one JSON answer: a value takes far more memory than the bytes that it came as."""

_IN_STRING: Final = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_STRUCTURE: Final = re.compile(rb'["{}\[\]]')
_QUOTE: Final = ord('"')
_SPACE: Final = b" \t\r\n"


class ForgedAnswerError(Exception):
    """What came is not what the agent's own helper, or the engine, would have sent."""


def whole_number(text: bytes | str, most: int) -> int:
    """Return a number from 0 to ``most``, written in ASCII digits and nothing else.

    Raises:
        ForgedAnswerError: it is something else.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS) or int(text) > most:
        raise ForgedAnswerError(f"{text[: MAX_DIGITS + 2]!r} is not a whole number up to {most}")
    return int(text)


class NumberLine:
    """Reads one line that holds a number, from pieces cut anywhere.

    Args:
        most: the largest number.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = b""

    def feed(self, piece: bytes) -> tuple[int, bytes] | None:
        """Return the number and what follows its line; ``None`` while the line is not whole.

        Raises:
            ForgedAnswerError: no such line can begin like this.
        """
        end = piece.find(b"\n", 0, MAX_DIGITS + 1)
        line = self._held + piece[: MAX_DIGITS + 1 if end < 0 else end]
        if end < 0 and len(line) <= MAX_DIGITS:
            self._held = line
            return None
        return whole_number(line, self._most), piece[end + 1 :]


class JsonAnswer:
    """Reads one JSON object, from pieces cut anywhere.

    Its end is found by following strings and brackets, so each byte is looked at once and nothing is parsed in vain.
    """

    def __init__(self) -> None:
        self._received = bytearray()
        self._in_string = False
        self._escaped = False
        self._depth = 0
        self._seen = 0
        self._ended = False

    def feed(self, piece: bytes) -> Mapping[str, Any] | None:
        """Return the object once it is whole; ``None`` before.

        Raises:
            ForgedAnswerError: it is too large or too deep, not an object, or more than one.
        """
        self._received += piece
        if len(self._received) > MAX_ANSWER:
            raise ForgedAnswerError(f"the answer is longer than {MAX_ANSWER} bytes")
        at = 0
        while at < len(piece) and not self._ended:
            at = self._past_string(piece, at) if self._in_string else self._past_structure(piece, at)
        if not self._ended:
            return None
        try:
            answer = json.loads(self._received)  # also refuses what follows the end
        except ValueError as error:
            raise ForgedAnswerError(f"the answer is not JSON: {error}") from error
        if not isinstance(answer, dict):
            raise ForgedAnswerError("the answer is not a JSON object")
        return answer

    def _past_string(self, piece: bytes, at: int) -> int:
        """Go to the end of the string, or of the piece; return where that is."""
        if self._escaped:
            self._escaped = False
            return at + 1
        found = _IN_STRING.match(piece, at)
        end = found.end() if found else at
        if end < len(piece):
            self._escaped = piece[end] != _QUOTE  # a backslash that ends the piece
            self._in_string = self._escaped
        return end + 1

    def _past_structure(self, piece: bytes, at: int) -> int:
        """Go past the next bracket or quote, or to the end of the piece; return where that is."""
        found = _STRUCTURE.search(piece, at)
        if self._depth == 0 and piece[at : found.start() if found else len(piece)].strip(_SPACE):
            raise ForgedAnswerError("the answer is not a JSON object")
        if found is None:
            return len(piece)
        self._seen += 1
        character = found.group()
        if character == b'"':
            self._in_string = True
        else:
            self._depth += 1 if character in b"{[" else -1
            self._ended = self._depth <= 0
        if self._depth > MAX_DEPTH or self._seen > MAX_BRACKETS:
            raise ForgedAnswerError("the answer is nested too deeply, or holds too many values")
        return found.end()
