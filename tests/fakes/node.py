"""A node agent over the fake runtime, served for real on loopback by a thread of the test's process."""

import asyncio
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import requests

from gateway.client import GatewayClient
from gateway.wire.sandboxes import RuntimeName
from gateway.wire.tenants import own_id
from node_agent.main import NodeAgent, serve
from node_agent.membership import Connect
from node_agent.settings import NodeSettings
from node_agent.startup import Factory, listen, node_url, probe_engines
from tests.fakes.gateway import CONTROL_TOKEN, Gateway
from tests.fakes.runtime import FakeRuntime


@dataclass
class NodeUnderTest:
    """A served node, and the calls that a gateway would make."""

    url: str
    node: NodeAgent
    runtime: FakeRuntime
    gateway: Gateway
    session: requests.Session

    def call(self, method: str, path: str, **options: object) -> requests.Response:
        """Make one call with the control token."""
        return self.session.request(method, self.url + path, timeout=40, **options)  # type: ignore[arg-type]

    def create(
        self, sandbox_id: str, *, generation: int = 1, runtime: str = "runsc", **spec: object
    ) -> requests.Response:
        """Order a sandbox."""
        order = {
            "generation": generation,
            "operation_id": f"op-{generation}",
            "runtime": runtime,
            "spec": {"id": own_id(sandbox_id), "image": "fake", "memory_mb": 64, "disk_mb": 64, "cpus": 0.1} | spec,
        }
        return self.call("PUT", f"/v1/sandboxes/{sandbox_id}", json=order)

    def delete(self, sandbox_id: str, generation: int = 1) -> requests.Response:
        """Delete a sandbox."""
        return self.call("DELETE", f"/v1/sandboxes/{sandbox_id}?generation={generation}")

    def exec(
        self, sandbox_id: str, command: list[str], *, wait: float = 20, generation: int = 1, **wish: object
    ) -> requests.Response:
        """Start a session."""
        session = f"exec-{uuid4().hex}.{generation}.{sandbox_id}"
        order = {"session_id": session, "generation": generation, "exec": {"command": command} | wish}
        return self.call("POST", f"/v1/sandboxes/{sandbox_id}/exec", params={"wait_seconds": wait}, json=order)

    def remove_all(self) -> None:
        """Leave no process of a fake sandbox behind."""
        for sandbox in self.runtime.found():
            self.runtime.delete(sandbox.order.sandbox_id)

    def events(self, session: str, after: int = 0, *, wait: float = 20, limit: int = 1000) -> dict[str, object]:
        """Return one read of events."""
        query = {"after": after, "wait_seconds": wait, "limit": limit}
        answer = self.call("GET", f"/v1/exec/{session}/events", params=query)
        assert answer.status_code == 200, answer.text
        body: dict[str, object] = answer.json()
        return body


@contextmanager
def served(
    root: Path,
    *,
    runtime: FakeRuntime | None = None,
    gateway: Gateway | None = None,
    connect: Connect = GatewayClient,
    factories: Mapping[RuntimeName, Factory] | None = None,
    given: Mapping[str, object] | None = None,
) -> Iterator[NodeUnderTest]:
    """Serve a node that ends, and leaves its sandboxes, at the end of the block.

    Args:
        root: the node's directory.
        runtime: its engine; ``None`` is a new one below ``root``.
        gateway: a running fake; ``None`` starts one, and waits for the first heartbeat.
        connect: makes the node's client of the gateway.
        factories: its engines, instead of ``runtime``.
        given: settings; with a ``gateway_url`` among them the node's gateway is that one.
    """
    root.mkdir(parents=True, exist_ok=True)
    if runtime is None:
        runtime = FakeRuntime(root / "fake")
    with ExitStack() as stack:
        gateway = gateway or stack.enter_context(Gateway())
        settings = node_settings(root, **({"gateway_url": gateway.url} | dict(given or {})))
        listener = stack.enter_context(listen(settings.host, settings.port))
        engines = probe_engines(settings, factories or {"runsc": lambda _: runtime})
        url = node_url(settings, listener)
        node = NodeAgent(settings, engines, url, connect)
        stack.enter_context(_running(node, settings, listener))
        session = stack.enter_context(requests.Session())
        session.headers["Authorization"] = f"Bearer {CONTROL_TOKEN}"
        if settings.gateway_url == gateway.url and not gateway.node_failures:
            gateway.wait_for("the first heartbeat", lambda: gateway.heartbeats)
        yield NodeUnderTest(url, node, runtime, gateway, session)


@contextmanager
def _running(node: NodeAgent, settings: NodeSettings, listener: socket.socket) -> Iterator[None]:
    loop, stop = asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(node, settings, listener, stop),))
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def node_settings(root: Path, **given: object) -> NodeSettings:
    """Return settings of a node for tests, below ``root``."""
    token = root / "join-token"
    if not token.exists():
        token.write_text("join-1\n")
        token.chmod(0o600)
    values = {
        "gateway_url": "http://127.0.0.1:1",
        "join_token_file": token,
        "root": root,
        "port": 0,
        "instance": "test",
        "runtimes": ("runsc",),
        "disk_mb": 10_000,
        "memory_mb": 10_000,
    }
    return NodeSettings.load(None, {}, **(values | given))
