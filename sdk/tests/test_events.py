"""The event stream cut into lines."""

import pytest

from ucloud_sandboxes_sdk.events import LineSplitter, LineTooLongError


def test_lines_are_whole_however_the_bytes_arrive() -> None:
    splitter = LineSplitter(100)
    text = "eins\nzwei €\n\ndrei\n".encode()
    lines = [line for byte in text for line in splitter.feed(bytes([byte]))]
    assert lines == [b"eins", "zwei €".encode(), b"drei"]
    assert list(LineSplitter(100).feed(text)) == lines


def test_line_without_end_is_refused() -> None:
    splitter = LineSplitter(10)
    assert list(splitter.feed(b"12345")) == []
    with pytest.raises(LineTooLongError):
        list(splitter.feed(b"1234567"))
