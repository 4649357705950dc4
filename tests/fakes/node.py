"""A node agent over the fake runtime, served for real on loopback by a thread of the test's process."""

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import requests

from gateway.wire.nodes import Heartbeat, HeartbeatAnswer, RegisterAnswer, RegisterRequest
from gateway.wire.sandboxes import RuntimeName
from node_agent.main import NodeAgent, serve
from node_agent.membership.registration import Connect
from node_agent.settings import NodeSettings
from node_agent.startup import Factory, listen, node_url, probe_engines
from tests.fakes.runtime import FakeRuntime

CONTROL_TOKEN = "control"


@dataclass
class FakeGateway:
    """The gateway as a node agent sees it.  Every list grows; `news` is set at each call."""

    registered: list[RegisterRequest] = field(default_factory=list)
    heartbeats: list[Heartbeat] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    answer: HeartbeatAnswer = field(default_factory=lambda: HeartbeatAnswer(heartbeat_seconds=5.0))
    errors: list[Exception] = field(default_factory=list)
    """Each call takes one of these and fails with it."""
    condition: threading.Condition = field(default_factory=threading.Condition)

    def connect(self, url: str, token: str) -> "FakeClient":
        """A client with this token."""
        return FakeClient(self, token)

    def wait_for(self, what: str, ready: object, seconds: float = 10.0) -> None:
        """Waits until ``ready()`` holds after a call of the node."""
        assert callable(ready)
        with self.condition:
            assert self.condition.wait_for(ready, seconds), what

    def seen(self, sandbox_id: str) -> str | None:
        """State of a sandbox in the newest heartbeat."""
        if not self.heartbeats:
            return None
        return next((i.state.value for i in self.heartbeats[-1].inventory if i.sandbox_id == sandbox_id), None)


class FakeClient:
    """Stands in for `gateway.client.GatewayClient`."""

    def __init__(self, gateway: FakeGateway, token: str) -> None:
        self._gateway = gateway
        self._token = token

    def register(self, request: RegisterRequest) -> RegisterAnswer:
        """See the client."""
        self._call()
        with self._gateway.condition:
            self._gateway.registered.append(request)
            self._gateway.condition.notify_all()
        return RegisterAnswer(
            node_id="node-1", credential="credential", control_token=CONTROL_TOKEN, heartbeat_seconds=5.0
        )

    def heartbeat(self, node_id: str, heartbeat: Heartbeat) -> HeartbeatAnswer:
        """See the client."""
        self._call()
        with self._gateway.condition:
            self._gateway.heartbeats.append(heartbeat)
            self._gateway.condition.notify_all()
            return self._gateway.answer

    def _call(self) -> None:
        with self._gateway.condition:
            self._gateway.tokens.append(self._token)
            self._gateway.condition.notify_all()
            if self._gateway.errors:
                raise self._gateway.errors.pop(0)


@dataclass
class NodeUnderTest:
    """A served node, and the calls that a gateway would make."""

    url: str
    node: NodeAgent
    runtime: FakeRuntime
    gateway: FakeGateway
    session: requests.Session

    def call(self, method: str, path: str, **options: object) -> requests.Response:
        """One call with the control token."""
        return self.session.request(method, self.url + path, timeout=40, **options)  # type: ignore[arg-type]

    def create(
        self, sandbox_id: str, *, generation: int = 1, runtime: str = "runsc", **spec: object
    ) -> requests.Response:
        """Orders a sandbox."""
        order = {
            "generation": generation,
            "operation_id": f"op-{generation}",
            "runtime": runtime,
            "spec": {"id": sandbox_id, "image": "fake", "memory_mb": 64, "disk_mb": 64, "cpus": 0.1} | spec,
        }
        return self.call("PUT", f"/v1/sandboxes/{sandbox_id}", json=order)

    def delete(self, sandbox_id: str, generation: int = 1) -> requests.Response:
        """Deletes a sandbox."""
        return self.call("DELETE", f"/v1/sandboxes/{sandbox_id}?generation={generation}")

    def exec(
        self, sandbox_id: str, command: list[str], *, wait: float = 20, generation: int = 1, **wish: object
    ) -> requests.Response:
        """Starts a session."""
        session = f"exec-{uuid4().hex}.{generation}.{sandbox_id}"
        order = {"session_id": session, "generation": generation, "exec": {"command": command} | wish}
        return self.call("POST", f"/v1/sandboxes/{sandbox_id}/exec", params={"wait_seconds": wait}, json=order)

    def remove_all(self) -> None:
        """Leaves no process of a fake sandbox behind."""
        for sandbox in self.runtime.found():
            self.runtime.delete(sandbox.order.sandbox_id)

    def events(self, session: str, after: int = 0, *, wait: float = 20, limit: int = 1000) -> dict[str, object]:
        """One read of events."""
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
    gateway: FakeGateway | None = None,
    connect: Connect | None = None,
    factories: Mapping[RuntimeName, Factory] | None = None,
    given: Mapping[str, object] | None = None,
) -> Iterator[NodeUnderTest]:
    """A node that has registered; it ends, and leaves its sandboxes, at the end of the block.

    Its engine is ``runtime``, or what ``factories`` make.
    """
    root.mkdir(parents=True, exist_ok=True)
    gateway = gateway or FakeGateway()
    if runtime is None:
        runtime = FakeRuntime(root / "fake")
    settings = node_settings(root, **(given or {}))
    listener = listen(settings.host, settings.port)
    engines = probe_engines(settings, factories or {"runsc": lambda _: runtime})
    node = NodeAgent(settings, engines, node_url(settings, listener), connect or gateway.connect)
    loop, stop = asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(node, settings, listener, stop),))
    thread.start()
    session = requests.Session()
    session.headers["Authorization"] = f"Bearer {CONTROL_TOKEN}"
    try:
        if connect is None:
            gateway.wait_for("the first heartbeat", lambda: gateway.heartbeats)
        yield NodeUnderTest(node_url(settings, listener), node, runtime, gateway, session)
    finally:
        session.close()
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        listener.close()
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def node_settings(root: Path, **given: object) -> NodeSettings:
    """Settings of a node for tests, below ``root``."""
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
