"""Sizes as people read them."""

import pytest

from sandboxes import output


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "0M"), (1023, "1023M"), (1024, "1G"), (1536, "1.5G"), (2048 * 1024, "2048G"), (1_234_567, "1205.6G")],
)
def test_sizes(amount: int, text: str) -> None:
    assert output.mebibytes(amount) == text
