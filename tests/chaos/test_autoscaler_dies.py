"""The autoscaler's own process is killed at any moment, over each emulated cloud, while demand comes and goes.

What there is is asked of the emulator itself: no operation ever has two machines, each has its row, and when nothing is
wanted any more nothing is left and nothing is paid for.
"""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Final

import pytest
import requests

from gateway.wire.resources import Shape
from tests.chaos.light_nodes import LightNodes
from tests.fakes.booting import Booter
from tests.integration.emulated_clouds import SPEED, Cloud, hetzner_cloud, ucloud_cloud
from tests.integration.emulated_fleet import ROOT, Fleet, Pool, fleet_of
from tests.waiting import wait_until

SEED: Final = int(os.environ.get("CHAOS_SEED", "20262"))
MOST: Final = 3
NODE: Final = Shape(cpus=8, memory_mb=2048, disk_mb=4096, slots=20)
UNIT_MB: Final = 1500
"""MiB of one unit of demand: a node holds one."""
LONGEST_LIFE: Final = 3.0
"""Seconds; with more than that the autoscaler would do all that there is to do in one life."""
REST_SECONDS: Final = 90.0
Clouds = Callable[[Booter], AbstractContextManager[Cloud]]


class Mortal:
    """The daemon, which is started again and again."""

    def __init__(self, config: Path, environ: dict[str, str], log: Path) -> None:
        self._words = json.dumps(["autoscaler", "run", "--config", str(config), "--execute"])
        self._log = log.open("ab")
        self._parent = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.forked", str(SPEED)],
            cwd=ROOT,
            env={**os.environ, **environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self._pid = 0

    def start(self) -> None:
        assert self._parent.stdin is not None
        self._parent.stdin.write(self._words + "\n")
        self._parent.stdin.flush()
        self._pid = int(self._line())

    def catches(self, number: signal.Signals) -> bool:
        """Tell whether it has a handler for that signal by now; see SigCgt in proc_pid_status(5)."""
        status = Path(f"/proc/{self._pid}/status").read_text()
        caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
        return bool(int(caught, 16) >> (number - 1) & 1)

    def end(self, number: signal.Signals) -> int:
        """Its exit code, once it is dead."""
        os.kill(self._pid, number)
        return int(self._line())

    def close(self) -> None:
        assert self._parent.stdin is not None
        self._parent.stdin.close()
        self._parent.wait(30)
        assert self._parent.stdout is not None
        self._parent.stdout.close()
        self._log.close()

    def _line(self) -> str:
        assert self._parent.stdout is not None
        return self._parent.stdout.readline()


class Rows(threading.Thread):
    """Looks into the journal all the time: there are never more rows than there may be instances."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self._path = path
        self._over = threading.Event()
        self.most = 0

    def run(self) -> None:
        while not self._over.wait(0.02):
            self.most = max(self.most, len(self.open()))

    def open(self) -> dict[str, str]:
        """States by operation."""
        if not self._path.exists():
            return {}
        try:
            with closing(sqlite3.connect(f"file:{self._path}?mode=ro", uri=True, timeout=10)) as connection:
                query = "SELECT operation_id, state FROM intent WHERE state != 'gone'"
                return dict(connection.execute(query).fetchall())
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):  # the first life has not come so far
                return {}
            raise

    def stamp(self) -> int:
        """Changes with each commit."""
        wal = self._path.with_name(f"{self._path.name}-wal")
        return wal.stat().st_mtime_ns if wal.exists() else 0

    def stop(self) -> None:
        self._over.set()
        self.join()


class Deaths:
    """One run: lives of the autoscaler under a demand that comes and goes."""

    def __init__(self, fleet: Fleet, cloud: Cloud, directory: Path) -> None:
        self.fleet = fleet
        self.cloud = cloud
        self.rows = Rows(directory / "as" / "journal.db")
        self.daemon = Mortal(directory / "autoscaler.toml", dict(cloud.environ), directory / "as.log")
        self.found: Counter[str] = Counter()
        """States of the rows at the moments of death."""
        self._chance = random.Random(SEED)
        self._wanted = 0

    def want(self, units: int) -> None:
        """Demand: that many nodes."""
        if units:
            answer = self.fleet.post(
                "/v1/capacity/prepare", id="burst", count=units, memory_mb=UNIT_MB, disk_mb=64, cpus=0.1
            )
        elif self._wanted:
            url = f"{self.fleet.client.url}/v1/capacity/prepare/burst"
            answer = requests.delete(url, headers={"Authorization": f"Bearer {self.fleet.operator}"}, timeout=60)
        else:
            return
        assert answer.ok, answer.text
        self._wanted = units

    def life(self) -> None:
        """It lives for a time, or until it has written some rows, and is killed."""
        if self._chance.random() < 0.5:
            self.want(0 if self._wanted else self._chance.randint(1, MOST))
        if self._chance.random() < 0.2:
            self.cloud.lose_answer()
        self.daemon.start()
        if self._chance.random() < 0.3:
            time.sleep(self._chance.uniform(0.0, LONGEST_LIFE / 2))  # not awaited: the moment of death is to be any
        else:
            self._until_commits(self._chance.randint(1, 12))
        assert self.daemon.end(signal.SIGKILL) == -signal.SIGKILL, self.fleet.log()
        self.look()

    def _until_commits(self, count: int) -> None:
        """Returns right after a commit, which is when something is called."""
        end, stamp = time.monotonic() + LONGEST_LIFE, self.rows.stamp()
        while count and time.monotonic() < end:
            now = self.rows.stamp()
            count -= now != stamp
            stamp = now
            time.sleep(0.001)

    def look(self) -> None:
        """What must hold while nobody lives who could be at it."""
        here, rows = self.cloud.here(), self.rows.open()
        self.found.update(rows.values())
        assert max(Counter(here).values(), default=0) <= 1, f"two machines of one operation: {here}"
        assert {*here} <= {*rows}, f"forgotten: { ({*here} - {*rows}) }; {self.fleet.log()}"
        assert len(rows) <= MOST

    def rest(self) -> None:
        """Nobody wants anything; the last one that lives puts everything away."""
        self.want(0)
        self.daemon.start()
        try:
            wait_until(lambda: not self.cloud.here() and not self.rows.open(), REST_SECONDS)
            wait_until(lambda: not self.fleet.client.nodes(), REST_SECONDS)
        except AssertionError:
            pytest.fail(f"no rest: {self.cloud.here()} {self.rows.open()}\n{self.fleet.log()}")
        wait_until(lambda: self.daemon.catches(signal.SIGTERM), REST_SECONDS)  # there may have been nothing to put away
        assert self.daemon.end(signal.SIGTERM) == 0, self.fleet.log()


def hurry(config: Path) -> None:
    """More happens in a short life."""
    kept = [line for line in config.read_text().splitlines() if not line.startswith(("tick_", "heartbeat_"))]
    quick = ["tick_seconds = 0.1", "heartbeat_seconds = 0.1", "creates_per_tick = 3", "stops_per_tick = 3"]
    config.write_text("\n".join([*quick, *kept]))


@pytest.fixture(params=[hetzner_cloud, ucloud_cloud], ids=["hetzner", "ucloud"])
def deaths(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Deaths]:
    nodes, clouds = LightNodes(NODE), request.param
    with clouds(nodes) as cloud:
        settings = {"max": MOST, "max_in_flight": MOST, "idle_seconds": 0.3, "hold_seconds": 0.0, "drain_share": 1.0}
        with fleet_of(tmp_path, [Pool(cloud, settings=settings)]) as fleet:
            made = Deaths(fleet, cloud, tmp_path)
            made.rows.start()
            try:
                yield made
            finally:
                made.daemon.close()
                made.rows.stop()
    assert nodes.running() == []


def storm(deaths: Deaths, lives: int) -> None:
    began = time.monotonic()
    for _ in range(lives):
        deaths.life()
    died = time.monotonic()
    deaths.rest()
    ever, cost = deaths.cloud.ever(), deaths.cloud.cost()
    print(
        f"seed {SEED}: {lives} deaths in {died - began:.0f} s, at rest after {time.monotonic() - died:.0f} s more,"
        f" {len(ever)} machines, rows at death: {dict(deaths.found)}"
    )
    assert max(Counter(ever).values()) == 1, "an operation had two machines"
    assert Counter(ever) == Counter(deaths.cloud.ever("cpu")), "a machine without our labels"
    assert deaths.rows.most <= MOST
    assert ever
    deaths.cloud.later()
    assert deaths.cloud.cost() == cost > 0


@pytest.mark.timeout(300)
def test_it_dies_again_and_again(deaths: Deaths) -> None:
    storm(deaths, 15)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_it_dies_some_hundred_times(deaths: Deaths) -> None:
    storm(deaths, 300)
    assert len(deaths.found) > 2, "it died in few states only"
