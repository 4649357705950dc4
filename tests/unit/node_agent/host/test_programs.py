"""The static programs that every sandbox sees."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from node_agent.host import mounts, programs


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "tools"
    programs.release(tmp_path / "tools")


@pytest.mark.engine
def test_programs_are_mounted_once_however_often_they_are_asked_for(directory: Path) -> None:
    first = programs.provide(directory)

    assert programs.provide(directory) == first
    assert mounts.mounted_below(directory) == [first.path]


@pytest.mark.engine
def test_programs_cannot_be_truncated_even_by_the_host(directory: Path) -> None:
    program = programs.provide(directory).busybox
    before = program.read_bytes()

    with pytest.raises(OSError, match="Read-only"):
        program.write_bytes(b"")

    assert program.read_bytes() == before


@pytest.mark.engine
def test_release_returns_whether_there_was_a_mount(directory: Path) -> None:
    programs.provide(directory)

    assert programs.release(directory)
    assert not programs.release(directory)
    assert mounts.mounted_below(directory) == []


@pytest.mark.engine
def test_programs_are_static_and_copied_once(directory: Path) -> None:
    provided = programs.provide(directory)
    assert provided.init
    assert programs.is_static(provided.busybox)
    assert programs.is_static(provided.path / programs.INIT_NAME)
    first = provided.busybox.stat().st_ino

    assert programs.provide(directory).busybox.stat().st_ino == first
    assert sorted(path.name for path in provided.path.iterdir()) == ["busybox", "init"]


def test_program_with_a_dynamic_linker_is_not_static() -> None:
    assert not programs.is_static(Path(sys.executable).resolve())


def test_a_script_is_not_a_static_program(tmp_path: Path) -> None:
    (tmp_path / "script").write_text("#!/bin/sh\n")

    assert not programs.is_static(tmp_path / "script")
