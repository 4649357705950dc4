"""Volumes, mounts and loop devices on the real kernel."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.wire.errors import ErrorCode
from node_agent.errors import RuntimeFailure
from node_agent.host import mounts
from node_agent.host.volume import Volume, Volumes, remove_tree

pytestmark = pytest.mark.engine
MIB = 1024 * 1024


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    remove_tree(tmp_path / "v")
    assert mounts.mounted_below(tmp_path) == []
    assert mounts.detach_loop_devices(tmp_path) == []


@pytest.fixture
def volumes(tmp_path: Path) -> Volumes:
    return Volumes(tmp_path / "templates")


def _fill(path: Path) -> None:
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * MIB)


def test_volume_is_bounded_and_knows_when_it_is_full(volumes: Volumes, place: Path) -> None:
    volume = volumes.ensure(place / "v", 32)
    assert not volume.full()

    _fill(volume.path / "big")

    assert volume.full()
    assert 25 < volume.used_mb() <= 32
    (volume.path / "big").unlink()
    assert not volume.full()


def _own(volume: Volume) -> int:
    return volume.image.stat().st_blocks * 512


def test_all_blocks_of_a_volume_are_its_own(volumes: Volumes, place: Path) -> None:
    volume = volumes.ensure(place / "v", 512)

    assert volume.image.stat().st_size == 512 * MIB
    assert _own(volume) >= 512 * MIB


def test_a_volume_keeps_the_blocks_of_deleted_files(volumes: Volumes, place: Path) -> None:
    volume = volumes.ensure(place / "v", 32)
    _fill(volume.path / "big")
    os.sync()
    (volume.path / "big").unlink()
    os.sync()

    assert _own(volume) >= 32 * MIB


def test_a_volume_gets_blocks_back_that_the_host_trimmed(volumes: Volumes, place: Path) -> None:
    volume = volumes.ensure(place / "v", 32)
    subprocess.run(["fstrim", str(volume.path)], check=False)  # some loop devices refuse

    volumes.ensure(place / "v", 32)

    assert _own(volume) >= 32 * MIB


def test_volumes_of_one_template_are_apart(volumes: Volumes, place: Path) -> None:
    one, other = volumes.ensure(place / "v" / "1", 16), volumes.ensure(place / "v" / "2", 16)
    (one.path / "file").write_text("one")

    assert not (other.path / "file").exists()


def test_content_outlives_the_mount(volumes: Volumes, place: Path) -> None:
    volume = volumes.ensure(place / "v", 16)
    (volume.path / "file").write_text("kept")
    volume.unmount()
    assert not volume.mounted

    assert (volumes.ensure(place / "v", 16).path / "file").read_text() == "kept"


@pytest.mark.parametrize("size", [16, 64])
def test_other_size_is_refused(volumes: Volumes, place: Path, size: int) -> None:
    volumes.ensure(place / "v", 32)

    with pytest.raises(RuntimeFailure) as failure:
        volumes.ensure(place / "v", size)

    assert failure.value.code is ErrorCode.CONFLICT


def test_mount_held_in_another_namespace_is_joined_not_doubled(volumes: Volumes, place: Path) -> None:
    volume = volumes.ensure(place / "v", 16)
    (volume.path / "file").write_text("kept")
    holder = subprocess.Popen(["unshare", "-m", "--propagation", "private", "cat"], stdin=subprocess.PIPE)
    try:
        while Path(f"/proc/{holder.pid}/ns/mnt").readlink() == Path("/proc/self/ns/mnt").readlink():
            pass
        volume.unmount()
        volumes.ensure(place / "v", 16)

        assert [device for device, file in mounts.loop_devices() if file == volume.image] == [
            mounts.loop_device_of(volume.image)
        ]
        assert (volume.path / "file").read_text() == "kept"
    finally:
        holder.communicate()


def test_removed_tree_takes_its_volume_along(volumes: Volumes, place: Path) -> None:
    volume = volumes.ensure(place / "v", 16)

    remove_tree(volume.directory)
    remove_tree(volume.directory)

    assert not volume.directory.exists()
    assert [file for _, file in mounts.loop_devices() if file == volume.image] == []


def test_few_templates_are_kept(volumes: Volumes, place: Path) -> None:
    for size in range(16, 28):
        volumes.ensure(place / "v", size)
        remove_tree(place / "v")

    assert len(list((place / "templates").iterdir())) == 8


def test_mount_point_with_a_blank_is_found(volumes: Volumes, place: Path) -> None:
    volume = volumes.ensure(place / "v" / "a b\\c", 16)

    assert mounts.mounted_below(place) == [volume.path]
    assert Volume(volume.directory).mounted


def test_overlay_keeps_the_lower_directory_as_it_is(volumes: Volumes, place: Path) -> None:
    lower = place / "low,er:1"
    lower.mkdir()
    (lower / "file").write_text("image")
    volume = volumes.ensure(place / "v", 16)
    for name in ("upper", "work"):
        (volume.path / name).mkdir()
    target = place / "v" / "root"
    target.mkdir()
    mounts.overlay(lower, volume.path / "upper", volume.path / "work", target)

    (target / "file").write_text("sandbox")

    assert (lower / "file").read_text() == "image"
    assert (volume.path / "upper" / "file").read_text() == "sandbox"
