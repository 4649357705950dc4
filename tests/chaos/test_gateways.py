"""Two gateways and two autoscalers on one PostgreSQL, while daemons and database die, freeze and lose one another.

Nothing is lost, nothing runs twice, nothing is deleted while it is used, and no call is answered with 500.
"""

import itertools
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest
import requests

from tests.chaos.clients import MAYBE_RUN, Record, patiently
from tests.chaos.gateways import REST_SECONDS, Service, Weather, service
from tests.engines.own_network import own_network
from tests.waiting import wait_until
from ucloud_sandboxes_sdk import Image, SandboxApiError, SandboxClient, SandboxSpec

SEED: Final = int(os.environ.get("CHAOS_SEED", "20263"))
SECONDS: Final = float(os.environ.get("SANDBOXES_SOAK_DATABASE_SECONDS", "1800"))
CLIENTS: Final = 4
IDLE_SECONDS: Final = 20
BUILDERS: Final = 2
SHORT: Final = (
    "a gateway is killed",
    "backends are terminated",
    "a gateway is frozen in a transaction",
    "the database is out of reach",
    "an autoscaler is killed",
    "the database is restarted",
)


class Watch(threading.Thread):
    """Looks for sandboxes that two nodes have, twice in a row: one that moves on is on both for a moment."""

    def __init__(self, running: Service) -> None:
        super().__init__(daemon=True)
        self._service = running
        self._over = threading.Event()
        self.doubled: set[str] = set()

    def run(self) -> None:
        before: set[str] = set()
        while not self._over.wait(1.0):
            one, two = self._service.held()
            both = one & two
            self.doubled |= both & before
            before = both

    def stop(self) -> None:
        self._over.set()
        self.join(20)


def live(client: SandboxClient, name: str, record: Record, rounds: Iterable[object]) -> None:
    """Create a sandbox, use it in each round, and delete it; it is never lost, taken for idle, or another's."""
    spec = SandboxSpec(
        id=name,
        image=Image.from_registry("fake"),
        command=["sleep", "3600"],
        cpus=0.1,
        memory_mb=64,
        disk_mb=64,
        idle_seconds=IDLE_SECONDS,
    )
    try:
        sandbox = patiently(lambda: client.create_sandbox(spec), record)
        for _ in rounds:
            said = patiently(lambda: sandbox.exec(["echo", name], timeout_seconds=20).stdout, record, unknown=MAYBE_RUN)
            if said != f"{name}\n":
                record.wrong.append(f"{name} said {said!r}")
        patiently(sandbox.delete, record)
        left = patiently(lambda: client.get_sandbox(name), record)
        if left is not None and left["state"] != "deleting":
            record.wrong.append(f"{name} is {left['state']} after its delete")
    except SandboxApiError as error:
        record.wrong.append(f"{name}: {type(error).__name__} {error.status_code}: {error}")
        return
    record.done.append(name)


def until(over: threading.Event) -> Iterator[None]:
    """Yield every now and then until it is over."""
    while not over.wait(IDLE_SECONDS / 6):
        yield


class Demand(threading.Thread):
    """Asks for builders and takes that back, again and again."""

    def __init__(self, running: Service) -> None:
        super().__init__(daemon=True)
        self._service = running
        self._over = threading.Event()
        self.codes: Counter[int] = Counter()

    def run(self) -> None:
        wanted = False
        while not self._over.wait(3.0):
            wanted = self._want(not wanted)
        while self._want(False) is not False:
            time.sleep(0.5)

    def stop(self) -> None:
        self._over.set()
        self.join(REST_SECONDS)

    def _want(self, wanted: bool) -> bool | None:
        """Return what is wanted now; ``None``: nobody knows."""
        url, headers = self._service.balancer.url, {"Authorization": f"Bearer {self._service.operator}"}
        try:
            if wanted:
                body = {"id": "burst", "count": BUILDERS}
                answer = requests.post(f"{url}/v1/builders/prepare", json=body, headers=headers, timeout=40)
            else:
                answer = requests.delete(f"{url}/v1/builders/prepare/burst", headers=headers, timeout=40)
        except requests.RequestException:
            return None
        self.codes[answer.status_code] += 1
        return wanted if answer.ok else None


def storm(running: Service, weather: Weather, next_kind: Callable[[], str | None], pause: float) -> Record:
    """Let clients work while one thing after the other happens; return what came of it."""
    record, over = Record(), threading.Event()
    client = SandboxClient(base_url=running.balancer.url, api_token=running.operator)
    watch, demand = Watch(running), Demand(running)
    numbers = itertools.count()

    def work() -> None:
        while not over.is_set():
            live(client, f"short-{next(numbers)}", record, range(2))

    watch.start()
    demand.start()
    with ThreadPoolExecutor(2 * CLIENTS) as pool:
        calls = [pool.submit(work) for _ in range(CLIENTS)]
        calls += [pool.submit(live, client, f"used-{n}", record, until(over)) for n in range(CLIENTS)]
        try:
            while (kind := next_kind()) is not None:
                weather.strike(kind)
                try:
                    running.rest()
                except AssertionError:
                    record.wrong.append(f"after this the gateways were not ready for {REST_SECONDS} s: {kind}")
                time.sleep(pause)
        finally:
            over.set()
        for call in calls:
            call.result()
    demand.stop()
    watch.stop()
    record.wrong += [f"{name} was on two nodes" for name in watch.doubled]
    record.wrong += [
        f"{count} calls for builders were answered with {code}"
        for code, count in demand.codes.items()
        if code >= 500 and code != 503
    ]
    return record


def judge(running: Service, record: Record, weather: Weather) -> None:
    print(f"seed {SEED}: {dict(weather.happened)}; {len(record.done)} lives, {record.retries} retries")
    record.wrong += [f"/readyz was {status}" for status in running.balancer.answers - {"200", "503"}]
    for daemon in running.gateways:
        said = daemon.said()
        record.wrong += [
            f"{daemon.name}: {line}" for line in said.splitlines() if "Traceback" in line or "] 500 " in line
        ]
    print("\n".join(record.wrong[:100]))
    assert record.wrong == []
    assert len(record.done) > CLIENTS
    wait_until(lambda: not any(running.held()), REST_SECONDS)
    wait_until(lambda: not running.cloud.here(), REST_SECONDS)
    assert running.machines.running() == []
    assert max(Counter(running.cloud.ever()).values(), default=0) <= 1, "an operation had two machines"


@pytest.mark.engine
@pytest.mark.timeout(300)
@own_network
def test_a_short_time_of_trouble(engines: None, tmp_path: Path) -> None:
    with service(tmp_path) as running:
        weather = Weather(running, SEED, away=1.0, frozen=1.0, stopped=1.0)
        kinds = iter(SHORT)
        judge(running, storm(running, weather, lambda: next(kinds, None), pause=0.0), weather)


@pytest.mark.soak
@pytest.mark.engine
@pytest.mark.timeout(3 * 3600)
@own_network
def test_a_long_time_of_trouble(engines: None, tmp_path: Path) -> None:
    with service(tmp_path) as running:
        weather, end = Weather(running, SEED, away=15.0, frozen=15.0, stopped=60.0), time.monotonic() + SECONDS
        kinds = itertools.chain.from_iterable(weather.order() for _ in itertools.count())
        judge(running, storm(running, weather, lambda: next(kinds) if time.monotonic() < end else None, 5.0), weather)
