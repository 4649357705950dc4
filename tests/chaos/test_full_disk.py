"""The disk of the whole service runs full and gets free again while daemons die: what was acknowledged is there."""

import contextlib
import hashlib
import os
import random
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from sandboxes.local import dockerd
from sandboxes.local.demo import free_port
from sandboxes.local.state_dir import StateDir
from tests.chaos.clients import MAYBE_RUN, Record, patiently
from tests.chaos.killer import DAEMONS
from tests.engines.images import import_images
from tests.stack import Up, assert_nothing_left, marks, release, start
from ucloud_sandboxes_sdk import Image, SandboxApiError, SandboxHandle, SandboxSpec

ROUNDS: Final = int(os.environ.get("SANDBOXES_SOAK_FULL_DISKS", "50"))
SEED: Final = int(os.environ.get("CHAOS_SEED", "20261"))
DISK_MIB: Final = 4096
MIB: Final = 1024 * 1024
RUNTIMES: Final = ("runsc", "docker")
CLIENTS: Final = 4
FULL_SECONDS: Final = (0.5, 4.0)


@contextlib.contextmanager
def small_disk() -> Iterator[Path]:
    """Mount a file system of `DISK_MIB` that costs the machine only what is written to it."""
    home = Path(tempfile.mkdtemp(prefix="sbf-", dir="/var/tmp"))
    image, place = home / "disk.ext4", home / "d"
    with image.open("wb") as file:
        file.truncate(DISK_MIB * MIB)
    place.mkdir()
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", str(image)], check=True, timeout=60)
    subprocess.run(["mount", "-o", "loop,discard", str(image), str(place)], check=True, timeout=60)
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True, timeout=60)
        shutil.rmtree(home)


@contextlib.contextmanager
def filled(disk: Path) -> Iterator[None]:
    """Take all that is free on the disk."""
    file = disk / "filler"
    with file.open("wb") as opened:
        size = 0
        for step in (1024 * MIB, 64 * MIB, MIB, 4096):
            with contextlib.suppress(OSError):
                while True:
                    os.posix_fallocate(opened.fileno(), size, step)
                    size += step
    try:
        yield
    finally:
        file.unlink()


@dataclass
class Box:
    """A sandbox, and what it acknowledged.

    Attributes:
        handle: by which it is used.
        runtime: of the sandbox.
        files: digests of what was acknowledged, by path.
    """

    handle: SandboxHandle
    runtime: str
    files: dict[str, str] = field(default_factory=dict)


class Service:
    """The service on its small disk, and the sandboxes of the run."""

    def __init__(self, up: Up, disk: Path, seed: int) -> None:
        self.up = up
        self.record = Record()
        self.acknowledged = 0
        self.ends: list[str] = []
        self.killed: Counter[str] = Counter()
        self._disk = disk
        self._random = random.Random(seed)
        self._image = import_images(up.engine()).busybox
        self._client = up.client()
        self._numbers = iter(range(1_000_000))
        self._boxes: list[Box] = []

    def fill_up_sandboxes(self) -> None:
        """Create sandboxes until there are two of each runtime."""
        held = [box.runtime for box in self._boxes]
        for runtime in RUNTIMES:
            for _ in range(2 - held.count(runtime)):
                spec = SandboxSpec(
                    id=f"disk-{next(self._numbers)}",
                    image=Image.from_registry(self._image),
                    command=["sleep", "86400"],
                    cpus=0.2,
                    memory_mb=256,  # pages of its files count as its memory in Docker
                    disk_mb=128,
                    runtime=runtime,
                )
                handle = patiently(partial(self._client.create_sandbox, spec), self.record)
                self._boxes.append(Box(handle, runtime))

    def round(self) -> None:
        """Fill the disk, write, kill, delete, free it, and look for what was acknowledged."""
        self.fill_up_sandboxes()
        with ThreadPoolExecutor(CLIENTS + 1) as pool:
            with filled(self._disk):
                writers = [pool.submit(self._write, box) for box in self._boxes]
                victim = self._random.choice(self._boxes)
                over = threading.Event()
                killer = threading.Timer(self._random.uniform(0, 1), self._kill)
                killer.start()
                over.wait(self._random.uniform(*FULL_SECONDS))
                deleting = pool.submit(patiently, victim.handle.delete, self.record)
                over.wait(0.5)
            for writer in writers:
                writer.result()
            deleting.result()
            killer.join()
        self._boxes.remove(victim)
        self._look()

    def delete_all(self) -> None:
        """Delete what is left."""
        for box in self._boxes:
            patiently(box.handle.delete, self.record)
        self._boxes.clear()

    def _write(self, box: Box) -> None:
        """Upload files and let execs write some; refusals are no concern here, only what is acknowledged."""
        for _ in range(3):
            path = f"/workspace/{next(self._numbers)}"
            data = self._random.randbytes(self._random.randrange(1, 3 * MIB))
            with contextlib.suppress(SandboxApiError):
                box.handle.upload_file(path, data)
                box.files[path] = hashlib.sha256(data).hexdigest()
            path = f"/workspace/{next(self._numbers)}"
            script = f"head -c 1000000 /dev/urandom >{path} && sync && sha256sum <{path}"
            with contextlib.suppress(SandboxApiError):
                done = box.handle.exec(["sh", "-c", script], timeout_seconds=30)
                if done.exit_code == 0:
                    box.files[path] = done.stdout.split()[0]

    def _kill(self) -> None:
        """Kill a daemon or the Docker engine, or nobody."""
        victim = self._random.choice((*DAEMONS, "engine", None, None))
        if victim == "engine":
            pid = dockerd.pid_of(self.up.directory.docker / "dockerd.pid")
        else:
            pid = None if victim is None else self.up.pid(victim)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self.killed[str(victim)] += 1

    def _look(self) -> None:
        """Note what was acknowledged and is not there, unless the sandbox itself says why."""
        Path("/proc/sys/vm/drop_caches").write_text("1")
        for box in list(self._boxes):
            info = patiently(box.handle.refresh, self.record)
            if info["state"] != "running":
                self.ends.append(f"{info['id']}: {info['state']}, {info.get('reason')}, {info.get('detail')}")
                if info.get("reason") != "disk_full":
                    self.record.wrong.append(self.ends[-1])
                self._boxes.remove(box)
                patiently(box.handle.delete, self.record)
                continue
            for path, digest in box.files.items():
                self.acknowledged += 1
                if patiently(partial(_digest, box, path), self.record, unknown=MAYBE_RUN) != digest:
                    self.record.wrong.append(f"{path} of {info['id']} is not what was acknowledged")


def _digest(box: Box, path: str) -> str:
    return hashlib.sha256(box.handle.download_file(path)).hexdigest()


def weather(rounds: int) -> None:
    with small_disk() as disk:
        directory = StateDir(disk / "s")
        up = start(directory, free_port())
        try:
            service = Service(up, disk, SEED)
            for number in range(rounds):
                began = time.monotonic()
                service.round()
                print(f"round {number}: {time.monotonic() - began:.1f} s, {service.killed}", flush=True)
                assert service.record.wrong == [], number
            print(f"seed {SEED}: {rounds} rounds, {service.acknowledged} files read, {service.record.retries} retries")
            print("ended by the disk:", service.ends)
            _deleted_while_full(service, disk)
            _ends_and_starts(up, directory, disk)
        finally:
            if up.process.poll() is None:
                up.end()
            release(directory)


def _deleted_while_full(service: Service, disk: Path) -> None:
    service.fill_up_sandboxes()
    with filled(disk):
        threading.Event().wait(1.0)
        service.delete_all()


def _ends_and_starts(up: Up, directory: StateDir, disk: Path) -> None:
    """End the service on a full disk, and start it again after."""
    looked_for = marks(directory)
    with filled(disk):
        assert up.end() == 0, up.words
    again = start(directory, free_port())
    try:
        looked_for += marks(directory)[1:]
    finally:
        assert again.end() == 0, again.words
    assert_nothing_left(looked_for)


@pytest.mark.soak
@pytest.mark.engine
@pytest.mark.timeout(7200)
def test_a_disk_that_is_full_fifty_times(engines: None) -> None:
    weather(ROUNDS)
