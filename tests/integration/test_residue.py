"""Every kind of residue is found on the real machine, by its mark and by nothing else."""

import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxes.local import residue

pytestmark = pytest.mark.engine


def run(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=30).stdout


@pytest.fixture
def mark(engines: None) -> str:
    return uuid.uuid4().hex[:8]


@pytest.fixture
def root(mark: str, tmp_path: Path) -> Iterator[Path]:
    made = Path(f"/var/tmp/sb-{mark}")
    made.mkdir()
    yield made
    run("rm", "-r", str(made))


def test_nothing_is_found_where_nothing_is_left(mark: str) -> None:
    found = residue.find((mark,))
    assert set(found) == set(residue.KINDS)
    assert not any(found.values())


def test_process_is_found_by_command_line_or_environment(mark: str) -> None:
    with (
        subprocess.Popen(
            ["tail", "-f", "/dev/null", f"--pid={os.getpid()}", f"/nowhere/{mark}"], stderr=subprocess.DEVNULL
        ) as named,
        subprocess.Popen(["sleep", "60"], env={**os.environ, "PLACE": f"/x/{mark}"}) as given,
    ):
        found = {line.split()[0] for line in residue.processes((mark,))}
        named.kill()
        given.kill()
    assert {str(named.pid), str(given.pid)} <= found


def test_mount_and_loop_device(root: Path, mark: str) -> None:
    image, point = root / "image", root / "a\\b c\td\xe9"
    point.mkdir()
    with image.open("wb") as file:
        file.truncate(8 * 2**20)
    run("mkfs.ext4", "-q", "-F", str(image))
    run("mount", "-o", "loop", str(image), str(point))
    try:
        assert list(residue.mount_points((mark,))) == [str(point)]
        (device,) = residue.loop_devices((mark,))
        assert device.endswith(f"over {image}")
    finally:
        run("umount", str(point))
    # A mount namespace that a neighbour made meanwhile holds a copy of the mount for as long as it lives.
    assert list(residue.mount_points((mark,))) == []


def test_namespace_interface_and_table(mark: str) -> None:
    run("ip", "link", "add", f"sb{mark}", "type", "veth", "peer", "name", f"pe{mark}")
    run("ip", "netns", "add", f"sb{mark}")
    run("nft", "add", "table", "inet", f"sb{mark}")
    try:
        assert list(residue.network_namespaces((mark,))) == [f"sb{mark}"]
        assert list(residue.interfaces((mark,))) == [f"pe{mark}", f"sb{mark}"]
        assert list(residue.firewall_tables((mark,))) == [f"sb{mark}"]
    finally:
        run("nft", "delete", "table", "inet", f"sb{mark}")
        run("ip", "link", "del", f"sb{mark}")
        run("ip", "netns", "del", f"sb{mark}")


def test_control_group(mark: str) -> None:
    base = Path("/sys/fs/cgroup")
    group = (base if (base / "cgroup.controllers").exists() else base / "pids") / f"sb-{mark}"
    group.mkdir()
    try:
        assert list(residue.cgroups((mark,))) == [str(group)]
    finally:
        group.rmdir()


def test_files_by_path_and_by_name(root: Path, mark: str) -> None:
    assert list(residue.files((str(root),))) == [str(root)]
    assert list(residue.files((mark,))) == [str(root)]
