"""The kernel's mount table."""

from pathlib import Path

import pytest

from sandboxes.local import mounts

TABLE = rb"""22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/vda1 rw,errors=remount-ro
90 22 0:49 /a\040b /mnt/a\134b\040c\011d\012e rw,nosuid - tmpfs none\040such rw,size=64k
91 22 0:50 / /mnt/empty rw master:3 propagate_from:2 - tmpfs  rw
"""


def test_fields_are_read_without_the_kernels_escapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "mountinfo"
    table.write_bytes(TABLE)
    monkeypatch.setattr(mounts, "TABLE", table)
    root, odd, empty = mounts.mounts()
    assert (root.target, root.source) == (Path("/"), "/dev/vda1")
    assert "errors=remount-ro" in root.options and "relatime" in root.options
    assert (odd.target, odd.root, odd.source) == (Path("/mnt/a\\b c\td\ne"), "/a b", "none such")
    assert (empty.target, empty.source) == (Path("/mnt/empty"), "")
    assert mounts.is_mounted(Path("/mnt/empty"))
    assert not mounts.is_mounted(Path("/mnt"))


def test_the_real_table_has_the_root_and_proc() -> None:
    assert {Path("/"), Path("/proc")} <= {mount.target for mount in mounts.mounts()}
