"""Networks: nothing at all, or the public Internet and nothing private."""

import json
import socket
import subprocess
from collections.abc import Iterator

import pytest

from gateway.wire.errors import ErrorCode
from gateway.wire.limits import MIB
from node_agent.errors import RuntimeFailure
from node_agent.host.firewall import Firewall
from node_agent.host.firewall_guard import FirewallGuard
from node_agent.host.network import DEFAULT_RESOLVERS
from tests.contract.runtime.lab import Box, Lab
from tests.contract.runtime.marks import also_on_runc
from tests.engines.outside import CLOSED, PORT, PUBLIC, ROUTER


@also_on_runc
def test_network_none_has_no_interface_but_lo(lab: Lab) -> None:
    with lab.sandbox(network="none") as box:
        lines = box.text("cat /proc/net/dev").split("\n")[2:]

    assert [line.split(":")[0].strip() for line in lines] == ["lo"]


@pytest.fixture(scope="module")
def online(lab: Lab, outside: None) -> Iterator[Box]:
    with lab.sandbox(network="bridge") as box:
        yield box


def _answer(box: Box, address: str, port: int = PORT) -> str:
    """Return what a server sends, or nothing when it cannot be reached within a second."""
    return box.sh(f"nc -w 1 {address} {port} </dev/null").stdout.decode().strip()


def _that_answer(box: Box, *addresses: str) -> list[str]:
    """Return the addresses whose server can be reached within a second, all asked at once."""
    asks = "".join(f'[ "$(nc -w 1 {address} {PORT} </dev/null)" ] && echo {address} & ' for address in addresses)
    return box.text(f"{asks} wait").split()


def _host_can_reach(address: str) -> bool:
    with socket.create_connection((address, PORT), timeout=5) as connection:
        return connection.recv(100) == b"hello\n"


@also_on_runc
def test_public_address_is_reachable(online: Box) -> None:
    assert _answer(online, PUBLIC) == "hello"


@also_on_runc
def test_closed_addresses_do_not_answer(online: Box) -> None:
    for address in CLOSED:
        assert _host_can_reach(address), "the test's own server has to answer, else this shows nothing"

    assert _that_answer(online, PUBLIC, *CLOSED) == [PUBLIC]


@also_on_runc
def test_the_host_is_closed(online: Box) -> None:
    gateway = online.text("ip route | grep default").split()[2]
    with socket.create_server((gateway, PORT)) as server:
        assert _answer(online, gateway) == ""
        assert _answer(online, ROUTER, PORT) == ""
        with socket.create_connection(server.getsockname(), timeout=5):
            pass


@also_on_runc
def test_another_sandbox_is_closed(lab: Lab, online: Box) -> None:
    with lab.sandbox(network="bridge") as other:
        address = _address(other)
        server = other.exec("nc", "-ll", "-p", str(PORT), "-e", "echo", "hello")
        while _answer(other, "127.0.0.1") != "hello":
            pass
        assert _answer(online, address) == ""
        server.kill()
        server.close()


@also_on_runc
def test_a_firewall_that_somebody_deletes_is_back_while_the_sandbox_runs(lab: Lab, online: Box) -> None:
    (firewall,) = lab.runtime.firewalls()
    guard = FirewallGuard([firewall])
    guard.start()
    try:
        for loss in ("delete table inet {table}", "insert rule inet {table} from_sandbox accept"):
            whole = _rules(firewall)
            subprocess.run(["nft", loss.format(table=firewall.table)], check=True, timeout=15)
            while _rules(firewall) != whole:
                pass
            assert _that_answer(online, PUBLIC, *CLOSED, ROUTER) == [PUBLIC]
    finally:
        guard.stop()


@also_on_runc
def test_a_sandbox_that_was_cut_off_is_back_once_the_firewall_stands(lab: Lab, online: Box) -> None:
    (firewall,) = lab.runtime.firewalls()
    firewall.cut("as if nft failed")
    with pytest.raises(RuntimeFailure) as failure:
        lab.create(network="bridge")
    assert failure.value.code is ErrorCode.NODE_REFUSED
    assert _that_answer(online, PUBLIC) == []
    firewall.check()
    assert _that_answer(online, PUBLIC) == [PUBLIC]


def _rules(firewall: Firewall) -> str:
    command = ["nft", "--terse", "list", "table", "inet", firewall.table]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=15).stdout


def _address(box: Box) -> str:
    words = box.text("ip -4 -o address show eth0").split()
    return words[words.index("inet") + 1].partition("/")[0]


@also_on_runc
def test_docker_socket_is_not_inside(online: Box) -> None:
    assert online.sh("ls /var/run/docker.sock /run/docker.sock").code != 0


def test_networks_go_with_their_sandboxes(lab: Lab, outside: None) -> None:
    before = _interfaces(lab)
    with lab.sandbox(network="bridge"):
        assert _interfaces(lab) - before
    assert _interfaces(lab) == before


def _interfaces(lab: Lab) -> set[str]:
    done = subprocess.run(["ip", "-json", "link"], capture_output=True, check=True, timeout=15)
    return {entry["ifname"] for entry in json.loads(done.stdout) if lab.tag in entry["ifname"]}


# -- names ------------------------------------------------------------------------------------------------------------


@also_on_runc
@pytest.mark.parametrize("network", ["none", "bridge"])
def test_own_host_name_resolves_and_no_resolver_of_the_host_is_shown(lab: Lab, network: str) -> None:
    with lab.sandbox(network=network) as box:
        name = box.text("hostname")
        assert box.text("cat /etc/hostname") == name == box.text("echo $HOSTNAME")
        assert name in box.text("grep ^127.0.0.1 /etc/hosts").split()
        assert box.text("hostname -i") == "127.0.0.1"
        shown = [line.split()[1] for line in box.text("cat /etc/resolv.conf").splitlines()]
        assert shown == (list(DEFAULT_RESOLVERS) if network == "bridge" else [])
        assert name == box.id


@also_on_runc
def test_what_root_writes_into_the_files_of_names_is_bounded_and_gone_after_a_restart(lab: Lab) -> None:
    with lab.sandbox(disk_mb=32, memory_mb=256, security={"user": "0"}) as box:
        assert box.sh("echo 10.9.8.7 mirror >>/etc/hosts; grep -q mirror /etc/hosts").code == 0
        box.sh("for f in hosts hostname resolv.conf; do head -c 100000000 /dev/zero >/etc/$f; done")
        assert sum(map(int, box.text("cd /etc; stat -c %s hosts hostname resolv.conf").split())) < 32 * MIB
        lab.create(generation=2, **box.order.spec.model_dump(mode="json"))
        assert "mirror" not in box.text("cat /etc/hosts")
