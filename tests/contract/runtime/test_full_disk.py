"""A node whose own disk is full: what cannot be done says so and leaves nothing, and works once there is room."""

import contextlib
import errno
import hashlib
import os
import queue
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from gateway.wire.errors import ErrorCode
from gateway.wire.limits import MIB
from gateway.wire.resources import Shape
from gateway.wire.sandboxes import RuntimeName
from gateway.wire.states import DeathReason, SandboxState
from node_agent.errors import RuntimeFailure
from node_agent.host.image_budget import ImageBudget
from node_agent.runtime.base import EngineState, SandboxRuntime
from node_agent.runtime.docker_engine.runtime import DockerRuntime
from node_agent.runtime.runsc.runtime import RunscRuntime
from node_agent.sandboxes.disk_guard import DiskGuard
from node_agent.sandboxes.manager import SandboxManager
from node_agent.startup import NodeStartError, hold_root
from tests.contract.runtime.lab import Lab
from tests.engines import leftovers
from tests.engines.dockerd import Daemon
from tests.engines.images import TestImages

DISK_MIB = 96


@dataclass(frozen=True)
class SmallNode:
    """A runtime over a small file system of its own."""

    lab: Lab
    disk: Path

    @contextlib.contextmanager
    def full(self, leave: int = 0) -> Iterator[None]:
        """Take all but ``leave`` bytes of the disk."""
        status = os.statvfs(self.disk)
        ballast = self.disk / "ballast"
        with ballast.open("wb") as file:
            free = status.f_bavail * status.f_frsize - leave
            with contextlib.suppress(OSError):
                os.posix_fallocate(file.fileno(), 0, max(1, free - MIB))
            with contextlib.suppress(OSError):
                while leave == 0 or os.statvfs(self.disk).f_bavail * status.f_frsize > leave:
                    os.write(file.fileno(), bytes(4096))
        try:
            yield
        finally:
            ballast.unlink()

    def files(self) -> set[str]:
        """Return all that lies below the node's root."""
        return {str(path.relative_to(self.lab.root)) for path in self.lab.root.rglob("*")}


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=60)


@pytest.fixture
def node(docker_daemon: Daemon, test_images: TestImages) -> Iterator[SmallNode]:
    """Open runsc over a disk of `DISK_MIB`."""
    with _node("runsc", docker_daemon, test_images) as opened:
        yield opened


@pytest.fixture(params=["runsc", "docker"])
def either(request: pytest.FixtureRequest, docker_daemon: Daemon, test_images: TestImages) -> Iterator[SmallNode]:
    """Open each engine over a disk of `DISK_MIB`."""
    with _node(request.param, docker_daemon, test_images) as opened:
        yield opened


def _open(name: RuntimeName, root: Path, tag: str, url: str) -> SandboxRuntime:
    return (RunscRuntime if name == "runsc" else DockerRuntime)(root, tag=tag, base_url=url)


@contextlib.contextmanager
def _node(name: RuntimeName, docker_daemon: Daemon, test_images: TestImages) -> Iterator[SmallNode]:
    home = Path(tempfile.mkdtemp(prefix="sff-", dir="/tmp"))
    image, disk = home / "disk.ext4", home / "d"
    with image.open("wb") as file:
        file.truncate(DISK_MIB * MIB)
    disk.mkdir()
    _run("mkfs.ext4", "-q", "-F", "-m", "0", str(image))
    _run("mount", "-o", "loop", str(image), str(disk))
    root = disk / "node"
    root.mkdir()
    tag = hashlib.sha256(str(root).encode()).hexdigest()[:8]
    runtime = _open(name, root, tag, docker_daemon.url)
    try:
        runtime.probe()
        fields = {"runtime": name, "isolation": "gvisor"}
        lab = Lab(runtime, lambda: _open(name, root, tag, docker_daemon.url), root, tag, test_images, fields)
        yield SmallNode(lab, disk)
        lab.delete_all()
        runtime.sweep()
        runtime.close()
        assert leftovers.of_node(root, tag) == []
    finally:
        _run("umount", str(disk))
        shutil.rmtree(home)


def refused(node: SmallNode) -> RuntimeFailure:
    with pytest.raises(RuntimeFailure) as caught:
        node.lab.create()
    return caught.value


def test_an_image_that_finds_no_room(node: SmallNode) -> None:
    before = node.files()
    with node.full(leave=512 * 1024):
        failure = refused(node)
        assert failure.code is ErrorCode.DISK_FULL, failure.message
        assert "disk is full" in failure.message
        assert {path for path in node.files() - before if "partial" in path} == set()
    with node.lab.sandbox() as box:
        assert box.text("echo hi") == "hi"


def test_a_sandbox_that_finds_too_little_room_leaves_nothing(node: SmallNode) -> None:
    with node.lab.sandbox(disk_mb=16):
        pass  # its image is unpacked from here on
    before = node.files()
    refusals = []
    for kib in (0, 8, 16, 32, 64, 128, 192, 256, 384, 512, 768):
        with node.full(leave=kib * 1024):
            try:
                box = node.lab.create()
            except RuntimeFailure as failure:
                assert failure.code is ErrorCode.DISK_FULL, (kib, failure.message)
                refusals.append(kib)
            else:
                node.lab.runtime.delete(box.id)
            assert node.lab.runtime.found() == []
            left = node.files() - before
            assert all(path.endswith("64.ext4") for path in left if path != "ballast"), (kib, left)
    assert 0 in refusals
    assert len(refusals) > 2
    with node.lab.sandbox() as box:
        assert box.text("echo hi") == "hi"


def test_what_runs_can_be_used_and_deleted_on_a_full_disk(node: SmallNode) -> None:
    with node.lab.sandbox() as box:
        with node.full():
            assert box.text("echo hi") == "hi"
            box.lab.runtime.delete(box.id)
            assert node.lab.found(box.id) is None
        assert node.lab.runtime.found() == []


def test_a_death_on_a_full_disk_is_reported(node: SmallNode) -> None:
    with node.lab.sandbox(command=["sh", "-c", "while [ ! -e /workspace/go ]; do sleep 0.05; done; exit 7"]) as box:
        box.text("touch /workspace/go.tmp && sync")
        with node.full():
            # In the background: the sandbox must not end before this exec is seen to.
            box.sh("(sleep 0.3; mv /workspace/go.tmp /workspace/go) >/dev/null 2>&1 &")
            assert node.lab.runtime.wait(box.id).exit_code == 7


def forget_pages(path: Path) -> None:
    """Let the host read a file from its disk the next time."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def test_what_is_written_while_the_host_is_full_is_there(either: SmallNode) -> None:
    data = secrets.token_bytes(8 * MIB)
    with either.lab.sandbox(disk_mb=32) as box:
        with either.full():
            assert box.run("sh", "-c", "cat >/workspace/file; sync", stdin=data).code == 0
        volume = next(either.lab.root.rglob("volume.ext4"))
        forget_pages(volume.parent / "volume" / "workspace" / "file")
        forget_pages(volume)
        assert box.text("sha256sum </workspace/file").split()[0] == hashlib.sha256(data).hexdigest()


def test_an_agent_starts_on_a_full_disk_where_sandboxes_are(node: SmallNode) -> None:
    with node.full(), pytest.raises(NodeStartError), hold_root(node.lab.root):
        pass
    with node.lab.sandbox(), node.full(), hold_root(node.lab.root):
        pass


def test_a_pause_that_cannot_be_written_down_leaves_the_sandbox_running(
    node: SmallNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_args: object, **_given: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with node.lab.sandbox() as box:
        with monkeypatch.context() as patch, pytest.raises(RuntimeFailure) as caught:
            patch.setattr("node_agent.runtime.record.write_atomically", full)
            node.lab.runtime.pause(box.id)
        assert caught.value.code is ErrorCode.DISK_FULL
        assert box.text("echo usable") == "usable"
        node.lab.runtime.pause(box.id)
        node.lab.runtime.resume(box.id)
        assert box.text("echo usable") == "usable"


def give_back(image: Path, size: int) -> None:
    """Give the last ``size`` bytes of a volume back to the host, as if its file system had set nothing aside."""
    offset = image.stat().st_size - size
    _run("fallocate", "--punch-hole", "--offset", str(offset), "--length", str(size), str(image))


def test_a_sandbox_ends_that_lost_a_write(either: SmallNode) -> None:
    lab = either.lab
    with lab.sandbox(disk_mb=32) as broken, lab.sandbox(disk_mb=16) as whole, ThreadPoolExecutor(2) as pool:
        manager = SandboxManager({lab.runtime.name: lab.runtime}, Shape, lambda _: None, pool, pool)
        ends = queue.SimpleQueue[str]()
        manager.listen(lambda: None, lambda sandbox_id, _generation, **_: ends.put(sandbox_id), lambda _: None)
        manager.adopt()
        guard = DiskGuard(lab.root, manager, least_mb=0)
        guard.look_at_volumes()
        assert manager.find(broken.id, None).state is SandboxState.RUNNING
        volume = manager.volume_of(broken.id)
        assert volume is not None
        give_back(volume.image, 24 * MIB)
        with either.full():
            broken.run("sh", "-c", "cat >/workspace/file", stdin=secrets.token_bytes(26 * MIB))
            guard.look_at_volumes()
        guard.look_at_volumes()  # on a full disk its end cannot be written down

        assert ends.get(timeout=30) == broken.id
        death = manager.find(broken.id, None).death
        assert death is not None
        assert death.reason is DeathReason.DISK_FULL
        assert manager.find(whole.id, None).state is SandboxState.RUNNING


def test_what_was_written_outlives_full_disks_and_agents(either: SmallNode) -> None:
    lab = either.lab
    with lab.sandbox(disk_mb=16) as box:
        digests = []
        for number in range(3):
            victim = lab.create(disk_mb=16)
            with either.full():
                data = secrets.token_bytes(3 * MIB)
                if box.run("sh", "-c", f"cat >/workspace/{number} && sync", stdin=data).code == 0:
                    digests.append((number, hashlib.sha256(data).hexdigest()))
                again = lab.reopen()
                assert {found.state for found in again.found()} == {EngineState.RUNNING}
                again.sweep()
                again.delete(victim.id)
                again.close()
            for path in lab.root.rglob("volume.ext4"):
                forget_pages(path)
        assert [(n, box.text(f"sha256sum </workspace/{n}").split()[0]) for n, _ in digests] == digests
        assert len(digests) == 3


def test_unpacked_images_make_room_unless_a_sandbox_uses_them(docker_daemon: Daemon, test_images: TestImages) -> None:
    with _node("runsc", docker_daemon, test_images) as node:
        budget = ImageBudget(node.lab.root / "images", recent=0)
        runtime = RunscRuntime(node.lab.root, tag=node.lab.tag, base_url=docker_daemon.url, budget=budget)
        runtime.probe()
        lab = Lab(runtime, node.lab.reopen, node.lab.root, node.lab.tag, test_images, node.lab.fields)
        with lab.sandbox() as box:
            budget.limit_mb = budget.used_mb()
            with pytest.raises(RuntimeFailure) as caught:
                lab.create(image=test_images.bare, command=[])
            assert caught.value.code is ErrorCode.NODE_REFUSED
            assert box.text("cat /data/readme") == "from the image"
        with lab.sandbox(image=test_images.bare, command=[]):
            assert len(budget.stored()) == 1
            assert len(list((lab.root / "runsc" / "images").iterdir())) == 1
        with lab.sandbox() as box:
            assert box.text("cat /data/readme") == "from the image"
        runtime.close()
