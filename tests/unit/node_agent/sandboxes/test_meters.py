"""Meters over counters that the test sets, on a clock that it moves, through ends and restarts of the agent."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from gateway.wire.sandboxes import RuntimeName
from gateway.wire.states import SandboxState
from gateway.wire.usage import REPORT_INTERVAL, UsageReport
from node_agent.runtime.base import SandboxRuntime
from node_agent.runtime.counters import Counters, OnEnding
from node_agent.sandboxes import meters
from node_agent.sandboxes.meters import Meters
from node_agent.sandboxes.table import NodeSandbox


@dataclass
class Files:
    """The counters of one incarnation, as the test sets them."""

    generation: int = 1
    counters: Counters = field(default_factory=lambda: Counters(0.0, 100.0, 0, 10.0))

    def read(self) -> Counters:
        return self.counters


@dataclass
class Sandbox:
    state: SandboxState = SandboxState.RUNNING
    id: str = "acme..one"
    generation: int = 1
    runtime: RuntimeName = "runsc"


@dataclass
class Node:
    """An agent's meters, its only engine, and the machine's clock."""

    path: Path
    now: float = 1000.0
    files: Files | None = field(default_factory=Files)
    sandboxes: list[Sandbox] = field(default_factory=lambda: [Sandbox()])

    def start(self) -> None:
        """Start an agent, the first or one after a SIGKILL."""
        engines = cast("Mapping[RuntimeName, SandboxRuntime]", {"runsc": self})
        self.meters = Meters(self.path, engines)

    def listen_endings(self, ending: OnEnding) -> None:
        self.ending: Any = ending

    def counter_files(self, _sandbox_id: str) -> Files | None:
        return self.files

    def read(self) -> None:
        self.meters.read_all(cast("list[NodeSandbox]", self.sandboxes))

    def heartbeat(self) -> list[UsageReport]:
        self.read()
        return self.meters.reports()

    def after(self, seconds: float, **counters: Any) -> None:
        """Let time pass, after which the kernel has counted this."""
        self.now += seconds
        if self.files is not None:
            self.files.counters = Counters(**{**vars(self.files.counters), **counters})


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    node = Node(tmp_path / "meters.json")
    monkeypatch.setattr(meters, "_now", lambda: node.now)
    node.start()
    return node


def test_memory_and_disk_are_summed_up_over_time_and_counters_by_their_growth(node: Node) -> None:
    node.heartbeat()
    node.after(REPORT_INTERVAL, cpu_seconds=5.0, memory_mb=200.0, egress_bytes=700, disk_mb=30.0)
    (report,) = node.heartbeat()
    assert report.total.model_dump() == {
        "cpu_seconds": 5.0,
        "memory_mb_seconds": 150.0 * REPORT_INTERVAL,
        "paused_memory_mb_seconds": 0.0,
        "disk_mb_seconds": 20.0 * REPORT_INTERVAL,
        "egress_bytes": 700.0,
    }
    assert (report.span_seconds, report.age_seconds, report.final) == (REPORT_INTERVAL, 0.0, False)


def test_memory_is_counted_apart_while_it_is_paused(node: Node) -> None:
    node.read()
    for state, seconds in ((SandboxState.PAUSED, 2), (SandboxState.RUNNING, 5)):
        node.now += seconds
        node.sandboxes = [Sandbox(state)]
        node.meters.read(cast("NodeSandbox", node.sandboxes[0]))
    node.now += 1
    node.sandboxes, node.files = [], None
    (report,) = node.heartbeat()
    assert (report.total.memory_mb_seconds, report.total.paused_memory_mb_seconds) == (200.0, 500.0)


def test_sigkill_neither_loses_nor_doubles(node: Node) -> None:
    for cpu in (1.0, 2.0, 3.0):
        node.after(1, cpu_seconds=cpu, egress_bytes=int(cpu))
        node.heartbeat()
        node.start()
    (report,) = node.heartbeat()
    assert (report.total.cpu_seconds, report.total.egress_bytes) == (3.0, 3.0)
    assert report.total.memory_mb_seconds == 200.0


def test_the_end_is_counted_once_and_kept_until_the_gateway_has_it(node: Node) -> None:
    node.read()
    assert node.files is not None
    node.after(2, cpu_seconds=2.0, memory_mb=0.0)
    for _ in range(2):  # a crash in between makes the engine say it again
        node.ending("acme..one", node.files)
        node.start()
    node.sandboxes = [Sandbox(SandboxState.EXITED)]
    node.after(3, cpu_seconds=None, memory_mb=None, egress_bytes=None)
    (running,) = node.heartbeat()
    assert not running.final
    node.sandboxes, node.files = [], None
    node.start()
    reports = [node.heartbeat()[0] for _ in range(3)]
    assert reports[0] == reports[1] == reports[2]
    assert reports[0].final
    assert reports[0].total.model_dump(include={"cpu_seconds", "memory_mb_seconds", "disk_mb_seconds"}) == {
        "cpu_seconds": 2.0,
        "memory_mb_seconds": 200.0,
        "disk_mb_seconds": 50.0,
    }
    node.meters.acknowledge(["0" * 32])
    assert node.heartbeat() != []
    node.meters.acknowledge([reports[0].meter_id])
    assert node.heartbeat() == []


def test_a_restart_begins_a_new_meter_and_the_old_one_waits_for_its_end(node: Node) -> None:
    (first,) = node.heartbeat()
    assert node.files is not None
    node.sandboxes = [Sandbox(SandboxState.CREATING, generation=2)]
    assert node.heartbeat() == []
    node.after(1, cpu_seconds=4.0)
    node.ending("acme..one", node.files)
    node.files = Files(generation=2, counters=Counters(cpu_seconds=0.5, memory_mb=1.0))
    node.sandboxes = [Sandbox(generation=2)]
    old, new = node.heartbeat()
    assert (old.meter_id, old.final, old.total.cpu_seconds) == (first.meter_id, True, 4.0)
    assert (new.generation, new.final, new.total.cpu_seconds) == (2, False, 0.5)


def test_nothing_is_reported_that_is_not_in_the_file(node: Node) -> None:
    node.path.parent.rename(node.path.parent.with_name("away"))
    assert node.heartbeat() == []
    node.path.parent.with_name("away").rename(node.path.parent)
    assert len(node.heartbeat()) == 1


def test_a_new_start_of_the_host_ends_what_ran(node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node.after(0, cpu_seconds=3.0)
    node.read()
    (tmp_path / "boot").write_text("another")
    monkeypatch.setattr(meters, "_BOOT_ID", tmp_path / "boot")
    node.now = 20.0
    node.start()
    node.after(10, cpu_seconds=1.0)
    (report,) = node.heartbeat()
    assert (report.total.cpu_seconds, report.total.memory_mb_seconds) == (3.0, 0.0)
