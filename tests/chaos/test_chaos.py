"""Gateway, node agent and autoscaler die at random moments; no sandbox is lost, doubled or left behind."""

import itertools
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from tests.chaos.clients import Record, cycle
from tests.chaos.killer import DAEMONS, Killer
from tests.engines.images import import_images
from tests.stack import Up, assert_nothing_left, marks, pids_of, running, until

SEED: Final = int(os.environ.get("CHAOS_SEED", "20261"))
SOAK: Final = int(os.environ.get("SANDBOXES_SOAK_CYCLES", "200"))
CLIENTS: Final = 8


@pytest.fixture
def up(engines: None) -> Iterator[Up]:
    with running() as made:
        yield made


class Twins(threading.Thread):
    """Watches the engine itself for a sandbox that runs twice: two kernels of one sandbox, seen two times in a row.

    A kernel that is just being started shows for a moment as two processes of the same words.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(daemon=True)
        self._root = root
        self._over = threading.Event()
        self.seen: set[str] = set()

    def run(self) -> None:
        before: dict[str, set[int]] = {}
        while not self._over.wait(0.5):
            now = sentries(self._root)
            self.seen |= {name for name, pids in now.items() if len(pids & before.get(name, set())) > 1}
            before = now

    def stop(self) -> None:
        self._over.set()
        self.join()


def sentries(root: Path) -> dict[str, set[int]]:
    """The processes of gVisor's kernels, by sandbox, for all sandboxes of this service."""
    found: dict[str, set[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if "boot" in words and any(str(root) in word for word in words):
            found.setdefault([word for word in words if word][-1], set()).add(int(entry.name))
    return found


def storm(up: Up, cycles: int, *, times: int, pause: tuple[float, float]) -> tuple[Record, Killer]:
    """All cycles by `CLIENTS` clients at once, while the daemons are killed."""
    image = import_images(up.engine()).busybox
    client, record = up.client(), Record()
    killer, twins = Killer(up, SEED, times=times, pause=pause), Twins(up.directory.root)
    killer.start()
    twins.start()
    numbers, over = itertools.count(), threading.Event()

    def work() -> None:
        # Storms are long enough for every daemon to die in them.
        while not over.is_set() and ((number := next(numbers)) < cycles or not killer.has_killed_each):
            cycle(client, f"chaos-{number}", image, record)

    with ThreadPoolExecutor(CLIENTS) as pool:
        try:
            for done in [pool.submit(work) for _ in range(CLIENTS)]:
                done.result()
        finally:
            over.set()
    killer.stop()
    twins.stop()
    record.wrong += [f"{name} ran twice at once" for name in twins.seen]
    return record, killer


def recovered(up: Up) -> bool:
    """Whether all three daemons are back and the node holds nothing."""
    if any(up.pid(daemon) is None for daemon in DAEMONS):
        return False
    nodes = [node for node in up.operator().nodes() if node.state == "ready"]
    return bool(nodes) and all(node.sandboxes == 0 for node in nodes) and not sentries(up.directory.root)


def weather(up: Up, cycles: int, *, times: int, pause: tuple[float, float]) -> None:
    record, killer = storm(up, cycles, times=times, pause=pause)
    print(f"seed {SEED}: {dict(killer.killed)} killed, {len(record.done)} cycles done, {record.retries} retries")
    assert record.wrong == []
    assert len(record.done) >= cycles
    until(lambda: recovered(up), "all daemons are back, and the node is empty", 120)
    looked_for = marks(up.directory)
    assert up.end() == 0, up.words
    for daemon in DAEMONS:
        assert pids_of(up.directory.root, daemon) == []
    assert_nothing_left(looked_for)


@pytest.mark.engine
@pytest.mark.timeout(300)
def test_a_short_storm(up: Up) -> None:
    weather(up, cycles=24, times=2, pause=(0.2, 2.0))


@pytest.mark.soak
@pytest.mark.engine
@pytest.mark.timeout(3600)
def test_a_long_storm(up: Up) -> None:
    weather(up, cycles=SOAK, times=8, pause=(1.0, 8.0))
