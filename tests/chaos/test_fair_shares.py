"""Two tenants work while a third fills every bounded pool: no call of theirs fails, and they hardly notice."""

import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
import requests

from tests.engines.images import import_images
from tests.stack import Up, running

VICTIMS: Final = ("left", "right")
MOST_TIMES: Final = 3.0


@pytest.fixture
def up(engines: None) -> Iterator[Up]:
    with running() as made:
        yield made


def token(up: Up, tenant: str) -> str:
    """Make a token of that tenant."""
    headers = {"Authorization": f"Bearer {(up.directory.tokens / 'operator').read_text().strip()}"}
    request = {"name": tenant, "scope": "client", "tenant": tenant}
    answer = requests.post(f"{up.url}/v1/tokens", json=request, headers=headers, timeout=30)
    assert answer.status_code == 201, answer.text
    secret: str = answer.json()["token"]
    return secret


@dataclass
class Victim:
    """A tenant with one sandbox that runs ``true`` over and over."""

    url: str
    session: requests.Session
    times: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def create(self, image: str) -> None:
        """Bring its sandbox up, with memory for the many processes that it will have started."""
        spec: dict[str, Any] = {"id": "box", "image": image, "cpus": 0.2, "memory_mb": 512, "disk_mb": 64}
        answer = self.session.post(f"{self.url}/v1/sandboxes", json=spec, timeout=60)
        assert answer.status_code == 201, answer.text

    def work(self, until: float) -> None:
        """Run ``true`` until that moment of monotonic time."""
        while time.monotonic() < until:
            began = time.monotonic()
            call = f"{self.url}/v1/sandboxes/box/exec?wait_seconds=20"
            answer = self.session.post(call, json={"command": ["true"]}, timeout=60)
            self.times.append(1000 * (time.monotonic() - began))
            body = answer.json()
            if answer.status_code != 201 or body["session"].get("exit_code") != 0:
                self.failed.append(answer.text)


def p95(victims: list[Victim], seconds: float) -> float:
    """Let all work for so long; return the 95th percentile of their calls (ms)."""
    for victim in victims:
        victim.times.clear()
    until = time.monotonic() + seconds
    threads = [threading.Thread(target=victim.work, args=(until,)) for victim in victims]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    times = [one for victim in victims for one in victim.times]
    assert len(times) > 1
    highest = statistics.quantiles(times, n=20)[-1]
    print(f"{len(times)} execs, median {statistics.median(times):.1f} ms, p95 {highest:.1f} ms")
    return highest


def together(up: Up, seconds: float) -> tuple[float, list[str]]:
    """Measure the victims quiet and beside the greedy one; return the ratio of their p95 and what failed."""
    image = import_images(up.engine()).busybox
    victims = []
    for tenant in VICTIMS:
        session = requests.Session()
        session.headers["Authorization"] = f"Bearer {token(up, tenant)}"
        victims.append(Victim(up.url, session))
        victims[-1].create(image)
    p95(victims, 2.0)  # the first calls are slower, and are not compared
    quiet = p95(victims, seconds)
    command = [sys.executable, "-m", "tests.chaos.greedy", up.url, token(up, "greedy"), image]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as greedy:
        assert greedy.stdout is not None
        assert greedy.stdout.readline() == "filled\n"
        beside = p95(victims, seconds)
        answers, _ = greedy.communicate(timeout=60)
    for victim in victims:
        victim.session.close()
    print(f"the greedy tenant's answers: {answers.strip()}")
    print(f"p95 beside the greedy tenant: {beside / quiet:.2f} times quiet")
    return beside / quiet, [text for victim in victims for text in victim.failed]


@pytest.mark.engine
@pytest.mark.timeout(300)
def test_no_call_fails_beside_a_greedy_tenant(up: Up) -> None:
    _, failed = together(up, 4.0)

    assert failed == []


@pytest.mark.soak
@pytest.mark.engine
@pytest.mark.timeout(600)
def test_neighbours_of_a_greedy_tenant_hardly_notice(up: Up) -> None:
    times, failed = together(up, 20.0)

    assert failed == []
    assert times <= MOST_TIMES
