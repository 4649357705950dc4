"""Cuts a stream of bytes into lines, with a bound on their length.  Pure: fed bytes, gives lines."""

from collections.abc import Iterator


class LineTooLongError(ValueError):
    """A line grew past the bound before it ended."""


class LineSplitter:
    """Holds the beginning of a line until its end arrives."""

    def __init__(self, max_line: int) -> None:
        self._max_line = max_line
        self._parts: list[bytes] = []
        self._held = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The lines that ``data`` completes, without their newline; empty lines are left out.

        Raises:
            LineTooLongError: a line is longer than the bound.
        """
        *ends, rest = data.split(b"\n")
        for end in ends:
            line = b"".join((*self._parts, end))
            self._parts, self._held = [], 0
            if line:
                yield line
        if rest:
            self._parts.append(rest)
            self._held += len(rest)
        if self._held > self._max_line:
            raise LineTooLongError(f"a line of the stream is longer than {self._max_line} bytes")
