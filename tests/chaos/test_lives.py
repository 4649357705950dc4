"""Lives of sandboxes on a host that deals out the pids of those that just ended: nobody dies who was not killed.

Whoever ends a sandbox by numbers that it read a moment before hits a neighbour here within seconds.  Some sandboxes are
killed on purpose; an exec in one of them never looks as if it had ended by itself with what it was to say.
"""

import contextlib
import hashlib
import itertools
import os
import random
import shutil
import signal
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from gateway.wire.states import DeathReason
from node_agent.errors import RuntimeFailure
from node_agent.host.cgroup import Cgroup
from node_agent.runtime.base import EngineState
from node_agent.runtime.runsc.runtime import RunscRuntime
from tests.contract.runtime.lab import Box, Lab
from tests.engines import leftovers
from tests.engines.dockerd import Daemon
from tests.engines.images import TestImages

LIVES: Final = int(os.environ.get("SANDBOXES_SOAK_LIVES", "500"))
AT_ONCE: Final = 8
KILLED: Final = 0.1  # of all lives
_LAST_PID: Final = Path("/proc/sys/kernel/ns_last_pid")


@pytest.fixture
def lab(docker_daemon: Daemon, test_images: TestImages) -> Iterator[Lab]:
    root = Path(tempfile.mkdtemp(prefix="sfn-", dir="/tmp"))
    tag = hashlib.sha256(str(root).encode()).hexdigest()[:8]
    runtime = RunscRuntime(root, tag=tag, base_url=docker_daemon.url)
    runtime.probe()
    yield Lab(runtime, lambda: runtime, root, tag, test_images, {"runtime": "runsc", "isolation": "gvisor"})
    runtime.sweep()
    runtime.close()
    assert leftovers.of_node(root, tag) == []
    shutil.rmtree(root)


class PidDealer(threading.Thread):
    """Has the kernel deal out pids of sandboxes that are about to end, as soon as they are free."""

    def __init__(self, tag: str) -> None:
        super().__init__(daemon=True)
        self._tag = tag
        self._over = threading.Event()
        self.ending: set[str] = set()

    def run(self) -> None:
        while not self._over.wait(0.002):
            for name in list(self.ending):
                if pids := Cgroup(self._tag, name).pids():
                    with contextlib.suppress(OSError):
                        _LAST_PID.write_text(str(min(pids) - 1))

    def stop(self) -> None:
        self._over.set()
        self.join()


class Lives:
    """Lives one life after another, on several threads at once."""

    def __init__(self, lab: Lab, dealer: PidDealer) -> None:
        self._lab = lab
        self._dealer = dealer
        self._numbers = itertools.count()
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []

    def work(self) -> None:
        while (number := next(self._numbers)) < LIVES and len(self.wrong) < 10:
            order = self._lab.order(id=f"life-{number}", memory_mb=64, disk_mb=32)
            box = Box(self._lab, order)
            try:
                self._lab.runtime.create(order)
                if random.random() < KILLED:
                    self._killed(box)
                else:
                    self._lived(box)
            except RuntimeFailure as failure:
                self.wrong.append(f"{box.id}: {failure.code}: {failure.message}; {self._lab.found(box.id)}")
            finally:
                self._dealer.ending.add(box.id)
                self._lab.runtime.delete(box.id)
                self._dealer.ending.discard(box.id)

    def _lived(self, box: Box) -> None:
        for _ in range(3):
            result = box.run("echo", "hello")
            if (result.code, result.stdout) != (0, b"hello\n"):
                self.wrong.append(f"{box.id}: {result}; {self._lab.found(box.id)}")
        found = self._lab.found(box.id)
        if found is None or found.state is not EngineState.RUNNING:
            self.wrong.append(f"{box.id}: {found}")
        self.done["lived"] += 1

    def _killed(self, box: Box) -> None:
        killer = threading.Timer(random.uniform(0, 0.05), self._kill, (box,))
        killer.start()
        try:
            while True:
                result = box.run("echo", "hello")
                if result.code == 0 and result.stdout != b"hello\n":
                    self.wrong.append(f"{box.id} was killed: {result}")
                if result.code != 0:
                    break
        except RuntimeFailure:
            self.done["exec refused or lost"] += 1
        killer.join()
        death = self._lab.runtime.wait(box.id)
        if death.reason is not DeathReason.EVICTED or "was killed on the node" not in death.detail:
            self.wrong.append(f"{box.id} was killed: {death}")
        self.done["killed"] += 1

    def _kill(self, box: Box) -> None:
        for pid in Cgroup(self._lab.tag, box.id).pids():
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"runsc-sandbox"):
                    os.kill(pid, signal.SIGKILL)


@pytest.mark.soak
@pytest.mark.engine
@pytest.mark.timeout(7200)
def test_nobody_dies_who_was_not_killed(lab: Lab) -> None:
    dealer = PidDealer(lab.tag)
    lives = Lives(lab, dealer)
    dealer.start()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for done in [pool.submit(lives.work) for _ in range(AT_ONCE)]:
            done.result()
    dealer.stop()
    print(dict(lives.done), f"load {os.getloadavg()[0]:.1f}")
    assert lives.wrong == []
