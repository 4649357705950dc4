"""A gateway whose own disk is full while it serves: sandboxes keep running, changes are refused, and it recovers."""

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.client import GatewayClient, GatewayError
from gateway.store.audit_files import AuditFiles
from gateway.wire.audit import AuditQuery
from gateway.wire.nodes import Heartbeat, HeartbeatAnswer
from tests.integration.small_fleet import SmallFleet, small_fleet
from tests.waiting import wait_until

pytestmark = pytest.mark.engine  # a mount needs root, as the engines do


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """A state directory on a file system of 2 MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a file system needs root")
    directory = tmp_path / "state"
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(directory)], check=True, timeout=20)
    yield directory
    subprocess.run(["umount", str(directory)], check=True, timeout=20)


@contextlib.contextmanager
def full(directory: Path) -> Iterator[None]:
    """Leave no byte free in the block."""
    ballast = directory / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    yield
    ballast.unlink()


SILENCE = {
    "SANDBOXES_GATEWAY_HEARTBEAT_INTERVAL": "0.2",
    "SANDBOXES_GATEWAY_UNREACHABLE_AFTER": "1",
    "SANDBOXES_GATEWAY_LOST_AFTER": "2",
}


class RefusedBeats:
    """Heartbeats that a gateway refused, as time and HTTP status."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._refused: list[tuple[float, int]] = []

    def connect(self, url: str, token: str) -> GatewayClient:
        return _NotingClient(self, url, token)

    def refused(self, status: int) -> None:
        with self._condition:
            self._refused.append((time.monotonic(), status))
            self._condition.notify_all()

    def lasting(self, seconds: float) -> set[int]:
        """Wait until heartbeats have been refused for ``seconds``, and return their statuses."""

        def lasted() -> bool:
            return len(self._refused) > 1 and self._refused[-1][0] - self._refused[0][0] > seconds

        with self._condition:
            assert self._condition.wait_for(lasted, 30)
            return {status for _, status in self._refused}


class _NotingClient(GatewayClient):
    def __init__(self, beats: RefusedBeats, url: str, token: str) -> None:
        super().__init__(url, token)
        self._beats = beats

    def heartbeat(self, node_id: str, heartbeat: Heartbeat) -> HeartbeatAnswer:
        try:
            return super().heartbeat(node_id, heartbeat)
        except GatewayError as error:
            self._beats.refused(error.status or 0)
            raise


def state_of(fleet: SmallFleet, sandbox_id: str) -> object:
    return fleet.call("GET", f"/v1/sandboxes/{sandbox_id}").json()["sandbox"]["state"]


def runs_commands(fleet: SmallFleet, sandbox_id: str) -> bool:
    path = f"/v1/sandboxes/{sandbox_id}/exec?wait_seconds=10"
    return bool(fleet.call("POST", path, json={"command": ["echo", "hi"]}).json()["session"]["exit_code"] == 0)


def test_a_disk_that_stays_full_past_the_silence_limit_loses_no_sandbox(state: Path, tmp_path: Path) -> None:
    beats = RefusedBeats()
    with small_fleet(tmp_path, state_dir=state, environ=SILENCE, connect=beats.connect) as fleet:
        assert fleet.create("there").status_code == 201
        assert fleet.create("leaving").status_code == 201
        with full(state):
            assert beats.lasting(5) == {507}, "longer than it takes to be lost"
            assert runs_commands(fleet, "there"), "what exists keeps running"
            assert state_of(fleet, "there") == "running"
            refused = fleet.call("DELETE", "/v1/sandboxes/leaving")
            assert (refused.status_code, refused.json()["retryable"]) == (507, True)
        assert fleet.call("DELETE", "/v1/sandboxes/leaving").status_code == 200, "it recovers by itself"
        assert state_of(fleet, "there") == "running"
        assert [known.state for known in fleet.operator.nodes()] == ["ready"]
        assert [found.order.sandbox_id for found in fleet.node.runtime.found()] == ["there"]
        assert fleet.gateway.end() == 0
    assert not any("lost" in line for line in fleet.gateway.log)


def test_a_full_disk_refuses_changes_and_no_more(state: Path, tmp_path: Path) -> None:
    with small_fleet(tmp_path, state_dir=state) as fleet:
        assert fleet.create("there").status_code == 201
        with full(state):
            # Large enough that no free page of the database holds it.
            refused = fleet.create("new", env={"PAD": "x" * 100_000})
            assert (refused.status_code, refused.json()["code"]) == (507, "disk_full")
            assert fleet.call("GET", "/v1/sandboxes/new").status_code == 404
            assert state_of(fleet, "there") == "running"
            assert runs_commands(fleet, "there")
        wait_until(lambda: fleet.create("new").status_code == 201, 20)  # once the lines are written that were held
        assert fleet.call("DELETE", "/v1/sandboxes/there").status_code == 200
        assert fleet.gateway.end() == 0
    # The lines of the calls that were let through, too, and each of them once.
    entries = AuditFiles(state / "audit", max_bytes=2**30, days=9).page(AuditQuery(limit=1000)).entries
    told = [(entry.method, entry.target.get("sandbox_id"), entry.status) for entry in entries if entry.token_name]
    assert told.count(("POST", "there", 201)) == 2, "the create, and the exec on the full disk"
    assert told.count(("POST", "new", 507)) >= told.count(("POST", "new", 201)) == 1
