"""Directories for journals that are opened, written and thrown away by the hundred."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """In memory where there is such a place: these tests are about order, and thousands of fsyncs take minutes."""
    if not MEMORY.is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
        yield Path(directory)
