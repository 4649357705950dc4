"""A gateway whose own disk is full: sandboxes keep running, nothing new is made, and what makes room always works."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from gateway.client import GatewayClient, GatewayError
from gateway.store.audit_files import AuditFiles
from gateway.wire import limits
from gateway.wire.audit import AuditQuery
from gateway.wire.nodes import Heartbeat, HeartbeatAnswer
from gateway.wire.tokens import TokenRequest, TokenScope
from tests.gateway_process import gateway_process
from tests.integration.small_fleet import SMALL, SmallFleet, small_fleet
from tests.waiting import wait_until

pytestmark = pytest.mark.engine  # a mount needs root, as the engines do


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """A state directory on a file system of 6 MiB, one of which is the gateway's reserve."""
    if os.geteuid() != 0:
        pytest.skip("mounting a file system needs root")
    directory = tmp_path / "state"
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(directory)], check=True, timeout=20)
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
            assert fleet.call("DELETE", "/v1/sandboxes/leaving").status_code == 200
        assert state_of(fleet, "there") == "running"
        wait_until(lambda: fleet.create("again").status_code == 201)
        assert fleet.call("DELETE", "/v1/sandboxes/again").status_code == 200
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


def refused_for_room(answer: requests.Response) -> bool:
    body = answer.json()
    return (answer.status_code, body["code"], body["retryable"]) == (507, "disk_full", True) and bool(
        answer.headers["Retry-After"]
    )


def test_on_a_full_disk_whatever_makes_room_works_and_nothing_new_is_made(state: Path, tmp_path: Path) -> None:
    """More than the log of the database holds: dozens of deletes, pauses and revocations, one after the other."""
    many = [f"box-{number}" for number in range(6)]
    with small_fleet(tmp_path, state_dir=state) as fleet:
        for name in many:
            assert fleet.create(name, env={"PAD": "x" * 5_000}).status_code == 201
        tokens = [fleet.operator.create_token(TokenRequest(name="x", scope=TokenScope.CLIENT)) for _ in range(6)]
        batch = fleet.call(
            "POST", "/v1/capacity/prepare", json={"count": 1, "cpus": 0.1, "memory_mb": 64, "disk_mb": 64}
        )
        assert batch.status_code == 201, batch.text
        with full(state):
            for name, token in zip(many, tokens, strict=True):
                for order in ("pause", "resume", "pause"):
                    answer = fleet.call("POST", f"/v1/sandboxes/{name}/{order}")
                    assert answer.status_code == 200, answer.text
                fleet.operator.revoke_token(token.record.id)
                with pytest.raises(GatewayError) as caught:
                    GatewayClient(fleet.gateway.url, token.token).sandbox(name)
                assert caught.value.status == 401
            assert refused_for_room(fleet.create("new"))
            prepared = fleet.call("DELETE", f"/v1/capacity/prepare/{batch.json()['prepare']['prepare_id']}")
            assert prepared.status_code == 200, prepared.text
            for name in many:
                deleted = fleet.call("DELETE", f"/v1/sandboxes/{name}")
                assert (deleted.status_code, deleted.json()["deleted"]["state"]) == (200, "deleted")
            assert fleet.node.runtime.found() == []
            assert refused_for_room(fleet.create("new"))
        wait_until(lambda: fleet.create("new").status_code == 201)
        assert reserve(state) == limits.MIB
        assert fleet.gateway.end() == 0


def reserve(state: Path) -> int:
    """Return how many bytes of real blocks the reserve has."""
    return (state / "gateway.db.reserve").stat().st_blocks * 512


def test_a_gateway_that_starts_on_a_full_disk_lets_everything_be_deleted(state: Path, tmp_path: Path) -> None:
    with small_fleet(tmp_path, state_dir=state) as fleet:
        assert fleet.create("there").status_code == 201
        fleet.gateway.end(signal.SIGKILL)
        with full(state), gateway_process(state) as again, requests.Session() as session:
            session.headers["X-UCloud-Sandbox-Token"] = fleet.client_token
            url = f"{again.url}/v1/sandboxes"
            assert refused_for_room(session.post(url, json={"id": "new", **SMALL}, timeout=30))
            assert session.delete(f"{url}/there", timeout=30).status_code in {200, 202}
