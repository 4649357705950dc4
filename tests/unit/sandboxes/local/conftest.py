"""Fixtures for the commands that work on this machine."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def short() -> Iterator[Path]:
    """Return a directory with a short path; pytest's own are too long for a state directory."""
    with tempfile.TemporaryDirectory(prefix="sb-", dir="/tmp") as made:
        yield Path(made)
