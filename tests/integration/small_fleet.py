"""A gateway process and one node agent over the fake runtime, for tests of the whole path of a call."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from gateway.client import GatewayClient
from gateway.wire.nodes import JoinTokenRequest
from node_agent.membership import Connect
from tests.fakes.node import NodeUnderTest, served
from tests.gateway_process import GatewayProcess, gateway_process, new_token

SMALL = {"image": "fake", "memory_mb": 64, "disk_mb": 64, "cpus": 0.1}


@dataclass(frozen=True)
class SmallFleet:
    """One gateway and one node."""

    gateway: GatewayProcess
    node: NodeUnderTest
    operator: GatewayClient
    client_token: str
    operator_token: str
    session: requests.Session

    def call(self, method: str, path: str, **options: Any) -> requests.Response:
        """Send one call of a client."""
        return self.session.request(method, self.gateway.url + path, timeout=30, **options)

    def create(self, sandbox_id: str, **spec: Any) -> requests.Response:
        """Create a small sandbox."""
        return self.call("POST", "/v1/sandboxes", json={"id": sandbox_id, **SMALL, **spec})


@contextlib.contextmanager
def small_fleet(
    directory: Path,
    *,
    state_dir: Path | None = None,
    environ: Mapping[str, str] | None = None,
    connect: Connect = GatewayClient,
) -> Iterator[SmallFleet]:
    """Run a gateway and a node below ``directory`` until the block ends; it leaves no sandbox behind.

    Args:
        directory: a directory of the test.
        state_dir: the gateway's state, if it is not to lie below ``directory``.
        environ: added to the gateway's environment.
        connect: makes the node's client of the gateway.
    """
    state, root = state_dir or directory / "gateway", directory / "node"
    root.mkdir()
    operator_token, client_token = new_token(state, "operator"), new_token(state, "client")
    with gateway_process(state, environ=environ) as gateway:
        operator = GatewayClient(gateway.url, operator_token)
        (root / "join-token").write_text(operator.join_token(JoinTokenRequest(instance="test", pool="cpu")).token)
        with (
            served(root, connect=connect, given={"gateway_url": gateway.url}) as node,
            requests.Session() as session,
        ):
            session.headers["X-UCloud-Sandbox-Token"] = client_token
            try:
                yield SmallFleet(gateway, node, operator, client_token, operator_token, session)
            finally:
                node.remove_all()
