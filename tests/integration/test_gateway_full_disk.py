"""A gateway whose own disk is full while it serves: what exists goes on, what changes is refused, and it recovers."""

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from gateway.client import GatewayClient, GatewayError
from gateway.wire.nodes import Heartbeat, HeartbeatAnswer, JoinTokenRequest
from tests.fakes.gateway_process import gateway_process, new_token
from tests.fakes.node import NodeUnderTest, served

pytestmark = pytest.mark.engine  # a mount needs root, as the engines do

SPEC = {"image": "fake", "memory_mb": 64, "disk_mb": 64, "cpus": 0.1}


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """A state directory on 2 MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a file system needs root")
    directory = tmp_path / "state"
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(directory)], check=True, timeout=20)
    yield directory
    subprocess.run(["umount", str(directory)], check=True, timeout=20)


@contextlib.contextmanager
def full(directory: Path) -> Iterator[None]:
    """No byte is left."""
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


class Beats:
    """Heartbeats that a gateway refused."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._refused: list[tuple[float, int]] = []

    def connect(self, url: str, token: str) -> GatewayClient:
        return _Told(self, url, token)

    def refused(self, status: int) -> None:
        with self._condition:
            self._refused.append((time.monotonic(), status))
            self._condition.notify_all()

    def for_longer_than(self, seconds: float) -> set[int]:
        """With which statuses, once that went on for so long."""

        def lasted() -> bool:
            return len(self._refused) > 1 and self._refused[-1][0] - self._refused[0][0] > seconds

        with self._condition:
            assert self._condition.wait_for(lasted, 30)
            return {status for _, status in self._refused}


class _Told(GatewayClient):
    def __init__(self, beats: Beats, url: str, token: str) -> None:
        super().__init__(url, token)
        self._beats = beats

    def heartbeat(self, node_id: str, heartbeat: Heartbeat) -> HeartbeatAnswer:
        try:
            return super().heartbeat(node_id, heartbeat)
        except GatewayError as error:
            self._beats.refused(error.status or 0)
            raise


def test_a_disk_that_stays_full_past_the_silence_limit_loses_no_sandbox(state: Path, tmp_path: Path) -> None:
    operator, client, beats = new_token(state, "operator"), new_token(state, "client"), Beats()
    root = tmp_path / "node"
    root.mkdir()
    with gateway_process(state, environ=SILENCE) as gateway, requests.Session() as session:
        session.headers["X-UCloud-Sandbox-Token"] = client
        fleet = GatewayClient(gateway.url, operator)
        (root / "join-token").write_text(fleet.join_token(JoinTokenRequest(instance="test", pool="cpu")).token)

        def call(method: str, path: str, body: object = None) -> requests.Response:
            return session.request(method, f"{gateway.url}/v1/sandboxes{path}", json=body, timeout=30)

        def run(node: NodeUnderTest) -> None:
            assert call("POST", "", {"id": "there", **SPEC}).status_code == 201
            assert call("POST", "", {"id": "leaving", **SPEC}).status_code == 201
            with full(state):
                assert beats.for_longer_than(5) == {507}, "longer than it takes to be lost"
                ran = call("POST", "/there/exec?wait_seconds=10", {"command": ["echo", "hi"]})
                assert ran.json()["session"]["exit_code"] == 0, "what exists goes on"
                assert call("GET", "/there").json()["sandbox"]["state"] == "running"
                refused = call("DELETE", "/leaving")
                assert (refused.status_code, refused.json()["retryable"]) == (507, True)
            assert call("DELETE", "/leaving").status_code == 200, "it goes on by itself"
            assert call("GET", "/there").json()["sandbox"]["state"] == "running"
            assert [known.state for known in fleet.nodes()] == ["ready"]
            assert [found.order.sandbox_id for found in node.runtime.found()] == ["there"]

        with served(root, connect=beats.connect, given={"gateway_url": gateway.url}) as node:
            try:
                run(node)
            finally:
                node.remove_all()
        assert gateway.end() == 0
    assert not any("lost" in line for line in gateway.log)


def test_a_full_disk_refuses_changes_and_no_more(state: Path, tmp_path: Path) -> None:
    operator, client = new_token(state, "operator"), new_token(state, "client")
    root = tmp_path / "node"
    root.mkdir()
    with gateway_process(state) as gateway:
        join = GatewayClient(gateway.url, operator).join_token(JoinTokenRequest(instance="test", pool="cpu"))
        (root / "join-token").write_text(join.token)
        with (
            served(root, connect=GatewayClient, given={"gateway_url": gateway.url}) as node,
            requests.Session() as session,
        ):
            session.headers["X-UCloud-Sandbox-Token"] = client

            def call(method: str, path: str, body: object = None) -> requests.Response:
                return session.request(method, f"{gateway.url}/v1/sandboxes{path}", json=body, timeout=30)

            assert call("POST", "", {"id": "there", **SPEC}).status_code == 201
            with full(state):
                # Large enough that no free page of the database holds it.
                refused = call("POST", "", {"id": "new", "env": {"PAD": "x" * 100_000}, **SPEC})
                assert (refused.status_code, refused.json()["code"]) == (507, "disk_full")
                assert call("GET", "/new").status_code == 404
                assert call("GET", "/there").json()["sandbox"]["state"] == "running"
                ran = call("POST", "/there/exec?wait_seconds=10", {"command": ["echo", "hi"]})
                assert ran.json()["session"]["exit_code"] == 0
            assert call("POST", "", {"id": "new", **SPEC}).status_code == 201
            assert call("DELETE", "/there").status_code == 200
            node.remove_all()
        assert gateway.end() == 0
