"""The journal's file belongs to its owner alone, wherever it lies."""

import os
from pathlib import Path

from autoscaler.store.db import open_engine


def test_nobody_else_reads_it_or_its_side_files(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "journal.db"
    path.parent.mkdir()
    path.touch(mode=0o644)  # of an earlier version
    before = os.umask(0o022)
    try:
        engine = open_engine(f"sqlite:///{path}")
        with engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE t (a)")
            made = sorted(path.parent.iterdir())
            assert {each.stat().st_mode & 0o777 for each in made} == {0o600}, made
        engine.dispose()
    finally:
        os.umask(before)
    assert len(made) == 3
