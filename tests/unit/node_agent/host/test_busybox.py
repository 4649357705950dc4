"""The programs that are bound into sandboxes."""

import sys
from pathlib import Path

import pytest

from node_agent.host import busybox, reaper


@pytest.mark.engine
def test_static_programs_are_copied_once(tmp_path: Path) -> None:
    for provided in (busybox.provide(tmp_path), reaper.provide(tmp_path)):
        assert provided is not None
        assert busybox.is_static(provided)
    first = (tmp_path / "busybox").stat().st_ino

    busybox.provide(tmp_path)

    assert (tmp_path / "busybox").stat().st_ino == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["busybox", "init"]


def test_program_with_a_dynamic_linker_is_not_static() -> None:
    assert not busybox.is_static(Path(sys.executable).resolve())


def test_file_that_is_no_program_is_not_static(tmp_path: Path) -> None:
    (tmp_path / "script").write_text("#!/bin/sh\n")

    assert not busybox.is_static(tmp_path / "script")
