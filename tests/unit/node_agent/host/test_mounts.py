"""Mounts below a directory."""

from pathlib import Path

from node_agent.host import mounts


def test_mounts_below_a_directory_are_found(tmp_path: Path) -> None:
    (tmp_path / "mountinfo").write_text("1 2 3:4 / /a/b rw\n1 2 3:4 / /ab rw\n1 2 3:4 / /a rw\n")
    assert mounts.mounts_inside(Path("/a"), tmp_path / "mountinfo") == ["/a/b"]
