"""Cutting byte streams between characters.  Sans-io: bytes in, bytes out."""

from collections.abc import Iterator


def incomplete_tail(data: bytes) -> int:
    """How many bytes at the end of ``data`` begin a UTF-8 character that more bytes could finish: 0 to 3."""
    for size in range(1, min(3, len(data)) + 1):
        if data[-size] & 0b1100_0000 == 0b1000_0000:
            continue
        try:
            data[-size:].decode()
        except UnicodeDecodeError as error:
            return size if error.reason == "unexpected end of data" else 0
        return 0
    return 0


class CharacterGate:
    """Lets bytes through and holds back at most 3 of them: the start of a character whose rest has not come yet.

    What comes out, put together, is exactly what went in; bytes that are not UTF-8 pass as they are.
    """

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Everything that may go out now; may be empty."""
        data = self._held + data
        keep = incomplete_tail(data)
        self._held = data[len(data) - keep :]
        return data[: len(data) - keep] if keep else data

    def flush(self) -> bytes:
        """What is still held, at the end of the stream."""
        held, self._held = self._held, b""
        return held


def cut(data: bytes, limit: int) -> bytes:
    """The longest start of ``data`` within ``limit`` bytes that ends between two characters.

    Where even one character is longer than ``limit``, nothing is left.
    """
    if len(data) <= limit:
        return data
    piece = data[:limit]
    keep = incomplete_tail(piece)
    return piece[: len(piece) - keep]


def pieces(data: bytes, limit: int) -> Iterator[bytes]:
    """``data`` in pieces of at most ``limit`` bytes (at least 4) that end between two characters."""
    while data:
        piece = cut(data, limit)
        yield piece
        data = data[len(piece) :]
