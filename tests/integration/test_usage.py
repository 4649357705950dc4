"""What the service says that a sandbox has used, against the kernel's own counters, over SIGKILL of its daemons."""

import os
import signal
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest

from gateway.client import GatewayUnreachableError
from gateway.wire.usage import UsageAmounts
from node_agent.host.cgroup import Cgroup
from node_agent.settings import tag_of
from tests.engines.images import import_images
from tests.engines.outside import PORT, PUBLIC
from tests.stack import Up, running, until
from ucloud_sandboxes_sdk import Image, SandboxHandle, SandboxSpec

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]
NEAR: Final = 0.02


@dataclass
class Kernel:
    """The kernel's counters of one gVisor sandbox, read all the time; use it as a context."""

    up: Up
    name: str
    doing: str = "runs"
    areas: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("runs", "changes", "paused"), 0.0))
    """MiB·s below its memory, by what it did: it ran, was about to be paused or resumed, or was paused."""
    ending: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        (home,) = self.up.directory.instances.iterdir()
        self.tag = tag_of(home / "node")
        self.group = Cgroup(self.tag, self.name)
        self.thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "Kernel":
        self.thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.ending.set()
        self.thread.join()

    def _watch(self) -> None:
        last = time.monotonic()
        while not self.ending.wait(0.01):
            now = time.monotonic()
            self.areas[self.doing] += self.group.memory_mb() * (now - last)
            last = now

    def sent(self) -> int:
        """Return the bytes that came in at the host's end of the only sandbox network."""
        lines = Path(f"/proc/{self.up.pid('node')}/net/dev").read_text().splitlines()
        (line,) = [line for line in lines if self.tag in line.partition(":")[0]]
        return int(line.partition(":")[2].split()[0])


def used(up: Up) -> UsageAmounts:
    """Return the sum of what is booked."""
    items = up.operator().usage(by="sandbox").items
    return items[0].amounts if items else UsageAmounts()


def kill(up: Up, daemon: str) -> None:
    """Kill a daemon and wait for the next one."""
    first = up.pid(daemon)
    assert first is not None
    os.kill(first, signal.SIGKILL)
    until(lambda: up.pid(daemon) not in {None, first}, f"another {daemon} runs")
    began = datetime.now(UTC)

    def reports() -> bool:
        try:
            last = up.operator().nodes()[0].heartbeat_at
        except GatewayUnreachableError:
            return False
        return last is not None and last > began

    until(reports, "the node reports again")


def sh(sandbox: SandboxHandle, script: str) -> None:
    """Run a script that succeeds."""
    done = sandbox.exec(["sh", "-c", script], timeout_seconds=60)
    assert done.exit_code == 0, done


def use(up: Up, sandbox: SandboxHandle, kernel: Kernel) -> None:
    """Burn processor time, send, hold memory, be paused for some seconds, while the daemons are killed."""
    sh(sandbox, "timeout 2 sh -c 'while :; do :; done' || true")
    sh(sandbox, f"head -c 4000000 /dev/zero | nc {PUBLIC} {PORT}")
    sandbox.pause()
    sandbox.resume()
    sh(sandbox, "head -c 60000000 /dev/zero > /dev/shm/held")
    kernel.doing = "changes"
    sandbox.pause()
    kernel.doing = "paused"
    kill(up, "node")
    kernel.doing = "changes"
    sandbox.resume()
    kernel.doing = "runs"
    kill(up, "gateway")


@pytest.mark.usefixtures("outside")
def test_figures_are_the_kernels_and_survive_sigkill(engines: None) -> None:
    with running() as up:
        image = Image.from_registry(import_images(up.engine()).busybox)
        spec = SandboxSpec(id="metered", image=image, command=["sleep", "600"], memory_mb=512, network="bridge")
        sandbox = up.client().create_sandbox(spec)
        with Kernel(up, "metered") as kernel:
            use(up, sandbox, kernel)
            cpu, sent = kernel.group.cpu_seconds(), kernel.sent()
        sandbox.delete()
        # The last reading comes with the next heartbeat; what was reported before is less.
        until(lambda: used(up).cpu_seconds >= cpu, "the last reading is booked", 30)
        found = used(up)
        assert found.cpu_seconds == pytest.approx(cpu, rel=NEAR)
        assert sent > 4_000_000
        assert found.egress_bytes == pytest.approx(sent, rel=NEAR)
        paused, between = kernel.areas["paused"], kernel.areas["changes"]
        assert paused * (1 - NEAR) <= found.paused_memory_mb_seconds <= (paused + between) * (1 + NEAR)
        together = found.memory_mb_seconds + found.paused_memory_mb_seconds
        assert together == pytest.approx(sum(kernel.areas.values()), rel=NEAR)
        assert up.end() == 0, up.words
