"""A gateway as the HTTP tests need it: the real services on a SQLite database, served on loopback over one node."""

import contextlib
import json
import logging
import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch

import requests

from gateway.client import GatewayClient
from gateway.http.app import GatewayApp, build_app
from gateway.http.server import GatewayServer
from gateway.node_client import NodeClient
from gateway.services.assembly import Services, build
from gateway.settings import GatewaySettings
from gateway.wire.errors import ErrorBody
from gateway.wire.nodes import Heartbeat, JoinTokenRequest, RegisterRequest, RuntimeReport
from gateway.wire.resources import Shape
from gateway.wire.tokens import TokenRequest, TokenScope
from tests.fakes.scripted_node import Script, ScriptedNode
from tests.fakes.serving import Loop, QuietServer, plain, running_loop, served

SESSION = f"exec-{'0' * 32}.1.box"
SPEC = {"id": "box", "image": "alpine"}
ROOM = Shape(cpus=1000, memory_mb=10**6, disk_mb=10**8, slots=1000)
RUNSC = RuntimeReport(name="runsc", version="1", isolations=["gvisor"], pause=True)


class ThreadServer(QuietServer, GatewayServer):
    """The gateway's own server, without signal handlers."""


@dataclass(frozen=True)
class NodeLogin:
    """A registered node as it shows itself to the gateway."""

    node_id: str
    credential: str
    control_token: str


@dataclass
class HttpGateway:
    """A running gateway, its tokens, and its node."""

    url: str
    services: Services
    gateway: GatewayApp
    loop: Loop
    node: ScriptedNode
    node_url: str
    secrets: dict[TokenScope, str]
    login: NodeLogin
    _beats: int = 0

    @property
    def client(self) -> dict[str, str]:
        """Headers of a client."""
        return {"X-UCloud-Sandbox-Token": self.secrets[TokenScope.CLIENT]}

    @property
    def operator(self) -> dict[str, str]:
        """Headers of an operator."""
        return {"Authorization": f"Bearer {self.secrets[TokenScope.OPERATOR]}"}

    @property
    def script(self) -> Script:
        """What the node does and saw."""
        return self.node.script

    @property
    def address(self) -> tuple[str, int]:
        """Host and port, for raw connections."""
        host, port = self.url.removeprefix("http://").split(":")
        return host, int(port)

    def call(self, method: str, path: str, **options: Any) -> requests.Response:
        """Send one call of a client."""
        return requests.request(method, self.url + path, **{"headers": self.client, "timeout": 20, **options})

    def create(self, sandbox_id: str, **spec: Any) -> None:
        """Bring a sandbox up on the node."""
        answer = self.call("POST", "/v1/sandboxes", json={"id": sandbox_id, "image": "alpine", **spec})
        assert answer.status_code == 201, answer.text

    def beat(self, node_url: str | None = None) -> None:
        """Send a heartbeat with the node's inventory, from ``node_url`` if the node has moved there."""
        self._beats += 1
        heartbeat = Heartbeat(
            sequence=self._beats,
            boot_id="boot",
            node_url=node_url or self.node_url,
            agent_version="1",
            total=ROOM,
            reserved=Shape(),
            used_memory_mb=0,
            used_disk_mb=0,
            runtimes=[RUNSC],
            inventory=list(self.node.items.values()),
        )
        GatewayClient(self.url, self.login.credential).heartbeat(self.login.node_id, heartbeat)

    @contextlib.contextmanager
    def node_at(self, node_url: str) -> Iterator[None]:
        """Have the node reached at another URL in the block."""
        self.beat(node_url)
        try:
            yield
        finally:
            self.beat()

    def new_script(self) -> None:
        """Start with a new script; calls of an earlier one keep theirs."""
        self.node.script = Script()

    @contextlib.contextmanager
    def touches(self) -> Iterator[list[str]]:
        """Collect the ids of the sandboxes that are used in the block."""
        used: list[str] = []
        with patch.object(self.services.sandboxes, "touch", used.append):
            yield used


def join(url: str, operator_secret: str, instance: str, node_url: str) -> NodeLogin:
    """Register a node over HTTP."""
    token = GatewayClient(url, operator_secret).join_token(JoinTokenRequest(instance=instance, pool="cpu")).token
    request = RegisterRequest(node_url=node_url, instance=instance, agent_version="1", total=ROOM, runtimes=[RUNSC])
    answer = GatewayClient(url, token).register(request)
    return NodeLogin(answer.node_id, answer.credential, answer.control_token)


@contextlib.contextmanager
def running_gateway(
    state_dir: Path, *, settings: dict[str, Any] | None = None, node: ScriptedNode | None = None, **bounds: Any
) -> Iterator[HttpGateway]:
    """Serve a gateway with a running sandbox ``box``, until the block ends.

    Args:
        state_dir: its state directory.
        settings: fields of `GatewaySettings` beside those that keep a silent node ready.
        node: serves the sandboxes; by default one that does what a test says.
        bounds: passed to `build_app`.
    """
    # One heartbeat is enough for the whole test.
    patient = {"state_dir": state_dir, "unreachable_after": 1e6, "lost_after": 2e6}
    node = node or ScriptedNode()
    made: list[GatewayApp] = []
    with running_loop() as loop, contextlib.ExitStack() as stack:
        node_url = stack.enter_context(served(loop, plain(node.app())))
        node_client = NodeClient()
        loop.call(node_client.__aenter__())
        stack.callback(lambda: loop.call(node_client.__aexit__(None, None, None)))
        services = build(GatewaySettings.model_validate({**patient, "reserve_mb": 1, **(settings or {})}), node_client)
        loop.call(services.__aenter__())
        stack.callback(lambda: loop.call(services.__aexit__()))

        async def make() -> ThreadServer:
            made.append(build_app(services, node_client, **bounds))
            return ThreadServer(made[0])

        url = stack.enter_context(served(loop, make))
        secrets = {
            scope: loop.call(services.tokens.make(TokenRequest(name=scope.value, scope=scope))).token
            for scope in (TokenScope.CLIENT, TokenScope.OPERATOR)
        }
        login = join(url, secrets[TokenScope.OPERATOR], "test", node_url)
        gateway = HttpGateway(url, services, made[0], loop, node, node_url, secrets, login)
        gateway.beat()
        gateway.create("box")
        yield gateway


def body_of(response: requests.Response) -> ErrorBody:
    """Return the error in an answer, checked for its one shape."""
    body = ErrorBody.model_validate_json(response.content)
    assert response.headers["content-type"] == "application/json"
    assert body.request_id == response.headers["x-request-id"]
    assert json.loads(response.content)["error"]
    return body


class LogLines(logging.Handler):
    """The records of one logger, to be waited for."""

    def __init__(self, name: str) -> None:
        super().__init__(logging.INFO)
        self._logger = logging.getLogger(name)
        self._records: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
        self._level = self._logger.level

    def emit(self, record: logging.LogRecord) -> None:
        self._records.put(record)

    def next(self, containing: str = "") -> logging.LogRecord:
        """Return the next record with this text."""
        while containing not in (record := self._records.get(timeout=10)).getMessage():
            pass
        return record

    def seen(self) -> list[logging.LogRecord]:
        """Return the records that nobody has waited for."""
        return [self._records.get_nowait() for _ in range(self._records.qsize())]

    def __enter__(self) -> Self:
        self._logger.setLevel(logging.INFO)
        self._logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)
        self._logger.setLevel(self._level)


def in_thread(work: Any) -> threading.Thread:
    """Start ``work`` on a thread of its own."""
    thread = threading.Thread(target=work)
    thread.start()
    return thread
