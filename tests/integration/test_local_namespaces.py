"""The `local` provider's machines, each on its own network, with real node agents and a real gateway between them."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autoscaler.user_data import NodeBoot, for_local
from gateway.client import GatewayClient
from gateway.wire.nodes import JoinTokenRequest, NodeRecord
from gateway.wire.states import NodeState
from providers.base import Create, Phase, Ref
from providers.local.home import Home
from providers.local.network import Namespace
from providers.local.provider import LocalProvider
from tests.gateway_process import gateway_process, new_token
from tests.integration.autoscaler_node import COMMAND

pytestmark = [pytest.mark.engine, pytest.mark.timeout(180)]
SUBNET, HOST = "10.215.99.0/28", "10.215.99.1"


def until(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


class Fleet:
    """A gateway that listens on all addresses, and a provider with a network for each instance."""

    def __init__(self, directory: Path, client: GatewayClient, port: str) -> None:
        self.root = directory / "i"
        self.client = client
        self.inside = f"http://{HOST}:{port}"
        settings = {"root": self.root, "network": "namespace", "subnet": SUBNET}
        settings |= {"node_command": COMMAND, "cleanup_command": ()}
        self.provider = LocalProvider.from_settings(settings, deployment="d", environ={})

    def boot(self, name: str) -> Namespace:
        """Return an instance that has become a node."""
        token = self.client.join_token(JoinTokenRequest(instance=name, pool="cpu", operation_id=f"op-{name}")).token
        boot = NodeBoot(self.inside, token, name, "cpu", "sandbox", {"runtimes": ["runsc"], "disk_mb": 1024})
        order = Create(name, f"op-{name}", "d", "cpu", "local", "here", image="", user_data=for_local(boot))
        self.provider.create(order)
        until(lambda: name in self.nodes(), f"{name} became no node")
        record = Home(self.root / name).record()
        assert record is not None and record.namespace is not None
        return record.namespace

    def nodes(self) -> dict[str, NodeRecord]:
        """Nodes that have sent a heartbeat, by instance."""
        return {node.instance: node for node in self.client.nodes() if node.heartbeat_at is not None}


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    quick = {"HOST": "0.0.0.0", "HEARTBEAT_INTERVAL": "0.3", "UNREACHABLE_AFTER": "2", "LOST_AFTER": "600"}
    for name, value in quick.items():
        monkeypatch.setenv(f"SANDBOXES_GATEWAY_{name}", value)
    operator = new_token(tmp_path, "operator")
    with gateway_process(tmp_path) as gateway:
        port = gateway.url.rpartition(":")[2]
        made = Fleet(tmp_path, GatewayClient(f"http://127.0.0.1:{port}", operator), port)
        yield made
        for instance in made.provider.list().instances:
            made.provider.delete(Ref(id=instance.id))
        until(lambda: not made.provider.list().instances, "an instance is left")


def test_a_partitioned_node_is_unreachable_and_comes_back(fleet: Fleet) -> None:
    one, two = fleet.boot("one"), fleet.boot("two")
    found = fleet.nodes()
    assert {node.node_url.rpartition(":")[0] for node in found.values()} == {
        f"http://{one.address}",
        f"http://{two.address}",
    }
    one.cut()
    until(lambda: fleet.nodes()["one"].state is NodeState.UNREACHABLE, "the partition was not noticed")
    assert fleet.nodes()["two"].state is NodeState.READY
    instance = fleet.provider.get(Ref(name="one"))
    assert instance is not None and instance.phase is Phase.RUNNING
    one.heal()
    until(lambda: fleet.nodes()["one"].state is NodeState.READY, "the node did not come back")
    assert fleet.nodes()["one"].id == found["one"].id
