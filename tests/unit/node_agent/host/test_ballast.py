"""Room that is kept for a full disk, on a small file system of its own."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from node_agent.host.ballast import Ballast

pytestmark = pytest.mark.engine
MIB = 1024 * 1024


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(place)], check=True)
    yield place
    subprocess.run(["umount", str(place)], check=True)


def fill(file: Path) -> None:
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as opened:
        while True:
            opened.write(bytes(65536))


def test_a_full_disk_gets_the_room_that_was_kept_for_it(disk: Path) -> None:
    ballast = Ballast(disk)
    ballast.keep()
    assert ballast.free() <= 38 * MIB
    fill(disk / "filler")
    assert ballast.free() == 0

    ballast.keep()
    assert ballast.free() == 2 * MIB
    ballast.keep()
    assert ballast.free() == 2 * MIB

    (disk / "filler").unlink()
    ballast.keep()
    assert ballast.free() <= 38 * MIB


def test_a_ballast_that_finds_no_room_takes_none(disk: Path) -> None:
    fill(disk / "filler")
    Ballast(disk).keep()
    assert list(disk.iterdir()) == [disk / "filler"]
