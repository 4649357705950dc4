"""Files written whole or not at all."""

from pathlib import Path

import pytest

from node_agent.host.disk import write_atomically


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_atomically(tmp_path / "target", b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["target"]
