"""A gateway whose own disk is full while it serves: what exists goes on, what changes is refused, and it recovers."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from gateway.client import GatewayClient
from gateway.wire.nodes import JoinTokenRequest
from tests.fakes.gateway_process import gateway_process, new_token
from tests.fakes.node import served

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
