"""A Docker network that the node's firewall cannot see is taken back."""

from typing import Any

import pytest

from gateway.wire.errors import ErrorCode
from node_agent.errors import RuntimeFailure
from node_agent.host import interfaces, network
from node_agent.runtime.docker_engine import networks
from node_agent.runtime.docker_engine.networks import DockerNetworks


class Engine:
    """A Docker engine in another network namespace: its bridges never show up here."""

    def __init__(self) -> None:
        self.client = self
        self.networks: set[str] = set()

    def create_network(self, name: str, **_: Any) -> None:
        self.networks.add(name)

    def remove_network(self, name: str) -> None:
        self.networks.remove(name)


@pytest.fixture
def docker_networks(monkeypatch: pytest.MonkeyPatch) -> DockerNetworks:
    monkeypatch.setattr(network, "_routed_inside", lambda pool: [])
    made = DockerNetworks(Engine(), "5a5a5a5a", "label")  # type: ignore[arg-type]
    monkeypatch.setattr(made.firewall, "ensure", lambda: None)
    monkeypatch.setattr(networks, "enable_forwarding", lambda: None)
    return made


def test_an_engine_in_another_namespace_is_refused_and_left_clean(docker_networks: DockerNetworks) -> None:
    with pytest.raises(RuntimeFailure) as caught:
        docker_networks.create("n1")
    assert caught.value.code is ErrorCode.UNSUPPORTED
    assert "network none" in caught.value.message
    assert docker_networks._api.client.networks == set()


def test_a_bridge_that_is_here_is_taken(docker_networks: DockerNetworks, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = iter([{"lo"}, {"lo", "sd5a5a5a5a000"}])
    monkeypatch.setattr(interfaces, "names", lambda: next(seen))
    assert docker_networks.create("n1") == "n1"
    assert docker_networks._api.client.networks == {"n1"}
