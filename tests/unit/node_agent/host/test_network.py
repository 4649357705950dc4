"""Networks and their firewall on the real kernel."""

import itertools
import subprocess
import uuid
from collections.abc import Iterator

import pytest

from gateway.wire.errors import ErrorCode
from node_agent.errors import RuntimeFailure
from node_agent.host.firewall import Firewall
from node_agent.host.network import Net, Networks

pytestmark = pytest.mark.engine
_THIRD_BYTES = itertools.count(100)


@pytest.fixture
def tag() -> str:
    return uuid.uuid4().hex[:8]


@pytest.fixture
def pool() -> str:
    """Room for four networks.  Another one in each test: the kernel takes its time to let addresses go."""
    return f"10.215.{next(_THIRD_BYTES)}.0/28"


@pytest.fixture
def networks(tag: str, pool: str) -> Iterator[Networks]:
    networks = Networks(tag, pool=pool)
    yield networks
    networks.sweep(set())
    assert not _tables(tag)


def _tables(tag: str) -> list[str]:
    listed = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=True, timeout=15).stdout
    return [line for line in listed.splitlines() if tag in line]


def _in(net: Net, *command: str) -> str:
    argv = ["ip", "netns", "exec", net.namespace, *command]
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=15).stdout


def test_network_has_an_address_and_a_way_out(networks: Networks) -> None:
    net = networks.create()

    assert net.address in _in(net, "ip", "-4", "address", "show", "eth0")
    assert f"default via {net.gateway}" in _in(net, "ip", "route")


def test_no_two_networks_share_anything(networks: Networks) -> None:
    nets = [networks.create() for _ in range(4)]

    assert len({net.address for net in nets}) == len({net.namespace for net in nets}) == 4


def test_used_up_pool_is_a_capacity_error(networks: Networks) -> None:
    for _ in range(4):
        networks.create()

    with pytest.raises(RuntimeFailure) as failure:
        networks.create()

    assert failure.value.code is ErrorCode.CAPACITY


def test_another_agent_takes_other_subnets(networks: Networks, pool: str) -> None:
    other = Networks(uuid.uuid4().hex[:8], pool=pool)
    try:
        assert networks.create().address != other.create().address
    finally:
        other.sweep(set())


def test_rebuilt_network_is_the_same(networks: Networks) -> None:
    net = networks.create()
    _in(net, "ip", "address", "flush", "dev", "eth0")

    networks.rebuild(net)

    assert net.address in _in(net, "ip", "-4", "address", "show", "eth0")


def test_remove_twice(networks: Networks) -> None:
    net = networks.create()

    networks.remove(net)
    networks.remove(net)

    assert not net.path.exists()


def test_sweep_removes_orphans_only(networks: Networks, tag: str) -> None:
    kept, orphan = networks.create(), networks.create()

    found = networks.sweep({kept.namespace})

    assert kept.path.exists()
    assert not orphan.path.exists()
    assert any(orphan.namespace in sentence for sentence in found)
    assert _tables(tag)


def test_firewall_comes_and_goes_whole(tag: str) -> None:
    firewall = Firewall(tag, f"sb{tag}")
    firewall.ensure()
    firewall.ensure()
    assert len(_tables(tag)) == 1

    firewall.remove()

    assert not _tables(tag)
    assert firewall.remove() == []


def test_docker_that_drops_forwarded_packets_is_opened_for_sandboxes_alone(tag: str) -> None:
    """Docker's chain, as Docker makes it, in a network namespace of its own."""
    script = f"""
      set -e
      iptables -N DOCKER-USER && iptables -P FORWARD DROP && iptables -I FORWARD -j DOCKER-USER
      python3 -c 'from node_agent.host.firewall import Firewall; Firewall("{tag}", "sb{tag}").ensure()'
      iptables -S DOCKER-USER
      python3 -c 'from node_agent.host.firewall import Firewall; Firewall("{tag}", "sb{tag}").remove()'
      echo after
      iptables -S DOCKER-USER
    """
    done = subprocess.run(["unshare", "-n", "sh", "-c", script], capture_output=True, text=True, check=True, timeout=60)
    before, _, after = done.stdout.partition("after\n")

    assert f"-i sb{tag}+" in before
    assert f"-o sb{tag}+" in before
    assert tag not in after
