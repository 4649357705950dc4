"""Instances with a network of their own: the contract again, and what only a network can play."""

import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from providers.base import Create, Instance, Phase, Ref, SettingsError
from providers.local.home import Home, kill_processes_of
from providers.local.network import Namespace, Network
from providers.local.provider import LocalProvider
from providers.testing.contract import Harness, ProviderContract
from tests.contract.providers.harnesses import NODE, LocalHarness

pytestmark = pytest.mark.engine
SUBNET = "10.215.77.0/28"
ANSWER = """
import socket, sys
with socket.create_server((sys.argv[1], 8091)) as server:
    while True:
        with server.accept()[0] as connection:
            connection.sendall(b"here " + sys.argv[1].encode())
"""
CALL = """
import socket, sys
print(socket.create_connection((sys.argv[1], int(sys.argv[2])), 3).recv(100).decode())
"""


class Namespaces(LocalHarness):
    """The `local` provider with one namespace an instance."""

    command: tuple[str, ...] = NODE

    def provider(self, deployment: str) -> LocalProvider:
        settings = {
            "root": self.root,
            "network": "namespace",
            "subnet": SUBNET,
            "node_command": self.command,
            "cleanup_command": (),
            "max_instances": 16,
        }
        made = LocalProvider.from_settings(settings, deployment=deployment, environ={})
        self.providers.append(made)
        return made

    def traces(self) -> list[str]:
        """Return what is left of this root on the machine."""
        network = Network(self.root, SUBNET)
        bridge = Path("/sys/class/net") / network.bridge
        return sorted(network._names()) + ([network.bridge] if bridge.exists() else [])


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Namespaces]:
    made = Namespaces(tmp_path / "vms")
    yield made
    made.close()
    assert made.traces() == []


class TestLocalWithNamespaces(ProviderContract):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> Iterator[Harness]:
        made = Namespaces(tmp_path / "vms")
        yield made
        made.close()
        assert made.traces() == []


def booted(harness: Namespaces, provider: LocalProvider, name: str) -> tuple[Instance, Namespace]:
    """Return an instance that runs, and its network."""
    provider.create(Create(name, f"op-{name}", "d", "cpu", "local", "here", image="", user_data=""))
    harness.settle(lambda: provider.list().instances and _phase(provider, name) is Phase.RUNNING)
    instance = provider.get(Ref(name=name))
    record = Home(harness.root / name).record()
    assert instance is not None and record is not None and record.namespace is not None
    return instance, record.namespace


def _phase(provider: LocalProvider, name: str) -> Phase | None:
    found = provider.get(Ref(name=name))
    return found.phase if found is not None else None


def answers(address: str, seconds: float = 0.5) -> bool:
    try:
        with socket.create_connection((address, 8091), seconds) as connection:
            return connection.recv(100) == f"here {address}".encode()
    except OSError:
        return False


@pytest.fixture
def answering(harness: Namespaces) -> LocalProvider:
    """Return a provider whose instances answer on their own address."""
    harness.command = (sys.executable, "-c", ANSWER, "${address}")
    return harness.provider("d")


def test_each_instance_answers_on_an_address_of_its_own(harness: Namespaces, answering: LocalProvider) -> None:
    made = [booted(harness, answering, name)[0] for name in ("one", "two", "three")]
    assert [instance.address for instance in made] == ["10.215.77.2", "10.215.77.3", "10.215.77.4"]
    for instance in made:
        harness.settle(lambda: answers(instance.address or ""))  # noqa: B023 - used within its own round


def test_a_partition_cuts_one_instance_and_heals(harness: Namespaces, answering: LocalProvider) -> None:
    (one, network), (two, _) = booted(harness, answering, "one"), booted(harness, answering, "two")
    assert one.address and two.address
    harness.settle(lambda: answers(one.address) and answers(two.address))
    network.cut()
    assert not answers(one.address)
    assert answers(two.address)
    assert _phase(answering, "one") is Phase.RUNNING
    network.heal()
    harness.settle(lambda: answers(one.address))


def test_an_instance_reaches_this_machine_at_the_first_address(harness: Namespaces) -> None:
    harness.command = (sys.executable, "-c", CALL, "10.215.77.1", "0")
    with socket.create_server(("0.0.0.0", 0)) as server:
        harness.command = (*harness.command[:-1], str(server.getsockname()[1]))
        provider = harness.provider("d")
        server.settimeout(20)
        provider.create(Create("one", "op", "d", "cpu", "local", "here", image="", user_data=""))
        connection, (peer, _) = server.accept()
        connection.close()
    assert peer == "10.215.77.2"


def test_a_lost_network_is_made_again_when_the_node_starts_again(harness: Namespaces, answering: LocalProvider) -> None:
    instance, namespace = booted(harness, answering, "one")
    assert instance.address
    harness.settle(lambda: answers(instance.address))
    Network(harness.root, SUBNET).detach(namespace.name)
    assert not answers(instance.address)
    kill_processes_of(harness.root / "one")
    harness.settle(lambda: answers(instance.address))


def test_what_no_instance_owns_is_swept_at_the_next_create(harness: Namespaces) -> None:
    network = Network(harness.root, SUBNET)
    left = network.free({network.free(()).name})
    network.attach(left)
    provider = harness.provider("d")
    booted(harness, provider, "one")
    assert not left.is_there


def test_a_subnet_that_this_machine_uses_is_refused_with_its_owner(tmp_path: Path) -> None:
    first, second = Network(tmp_path / "a", SUBNET), Network(tmp_path / "b", SUBNET)
    namespace = first.free(())
    first.attach(namespace)
    try:
        with pytest.raises(Exception, match=f"{SUBNET} on {first.bridge}"):
            second.attach(second.free(()))
    finally:
        first.detach(namespace.name)


def test_a_full_subnet_is_a_refusal_that_names_the_setting(harness: Namespaces) -> None:
    network = Network(harness.root, "10.215.77.0/30")
    taken = network.free(())
    with pytest.raises(Exception, match="larger subnet"):
        network.free({taken.name})


def test_creates_at_once_get_an_address_each(harness: Namespaces) -> None:
    provider = harness.provider("d")
    made: list[Instance] = []

    def create(name: str) -> None:
        made.append(provider.create(Create(name, f"op-{name}", "d", "cpu", "local", "here", image="", user_data="")))

    threads = [threading.Thread(target=create, args=(f"n{number}",)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len({instance.address for instance in made}) == 6


@pytest.mark.parametrize("subnet", ["8.8.8.0/24", "10.0.0.0/31", "nonsense"])
def test_only_private_ranges_are_taken(tmp_path: Path, subnet: str) -> None:
    with pytest.raises(SettingsError, match="subnet"):
        LocalProvider.from_settings({"root": tmp_path, "subnet": subnet}, deployment="d", environ={})
