"""The programs that sandboxes share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from node_agent.host import mounts, tools

pytestmark = pytest.mark.engine


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "tools"
    tools.release(tmp_path / "tools")


def test_programs_are_mounted_once_however_often_they_are_asked_for(directory: Path) -> None:
    first = tools.provide(directory)

    assert tools.provide(directory) == first
    assert mounts.mounted_below(directory) == [first.path]


def test_programs_cannot_be_truncated_even_by_the_host(directory: Path) -> None:
    program = tools.provide(directory).path / "busybox"
    before = program.read_bytes()

    with pytest.raises(OSError, match="Read-only"):
        program.write_bytes(b"")

    assert program.read_bytes() == before


def test_release_says_whether_there_was_a_mount(directory: Path) -> None:
    tools.provide(directory)

    assert tools.release(directory)
    assert not tools.release(directory)
    assert mounts.mounted_below(directory) == []
