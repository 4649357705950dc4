"""Networks: nothing at all, or the public Internet and nothing private."""

import fcntl
import json
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.runtime.lab import Box, Lab
from tests.contract.runtime.marks import also_on_runc

# Documentation space (RFC 5737): public in form, and routed by nobody.
PUBLIC = "203.0.113.7"
METADATA = ("169.254.169.254", "100.100.100.200")
PORT = 8080
LOCK = Path("/run/lock/sandbox-fleet-test-network.lock")
SERVER = f"""
import socket
with socket.create_server(("", {PORT})) as server:
    print("ready", flush=True)
    while True:
        with server.accept()[0] as connection:
            connection.sendall(b"hello\\n")
"""


@also_on_runc
def test_network_none_has_no_interface_but_lo(lab: Lab) -> None:
    with lab.sandbox(network="none") as box:
        lines = box.text("cat /proc/net/dev").split("\n")[2:]

    assert [line.split(":")[0].strip() for line in lines] == ["lo"]


@pytest.fixture(scope="module")
def world(engines: None) -> Iterator[None]:
    """A network namespace that plays the outside: it answers on a public-range and on metadata addresses."""
    name = f"w{uuid.uuid4().hex[:8]}"
    script = f"""
      ip netns add {name}
      ip link add {name} type veth peer name eth0 netns {name}
      ip address add 203.0.113.1/32 dev {name}
      ip link set {name} up
      ip route add {PUBLIC}/32 dev {name}
      ip route add {METADATA[1]}/32 dev {name}
      ip route add {METADATA[0]}/32 dev {name}
      ip -n {name} link set lo up
      ip -n {name} link set eth0 up
      ip -n {name} address add {PUBLIC}/32 dev eth0
      ip -n {name} address add {METADATA[0]}/32 dev eth0
      ip -n {name} address add {METADATA[1]}/32 dev eth0
      ip -n {name} route add 203.0.113.1/32 dev eth0
      ip -n {name} route add default via 203.0.113.1
    """
    server = None
    # The addresses are the same in every run, so runs on one machine take turns.
    lock = LOCK.open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        subprocess.run(["sh", "-ec", script], check=True, timeout=30)
        server = subprocess.Popen(["ip", "netns", "exec", name, sys.executable, "-c", SERVER], stdout=subprocess.PIPE)
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        yield
    finally:
        if server is not None:
            server.kill()
            server.communicate()
        subprocess.run(["ip", "link", "delete", name], check=False, timeout=30)
        subprocess.run(["ip", "netns", "delete", name], check=False, timeout=30)
        lock.close()


@pytest.fixture(scope="module")
def online(lab: Lab, world: None) -> Iterator[Box]:
    with lab.sandbox(network="bridge") as box:
        yield box


def _answer(box: Box, address: str, port: int = PORT) -> str:
    """What a server says, or nothing when it cannot be reached within a second."""
    return box.sh(f"nc -w 1 {address} {port} </dev/null").stdout.decode().strip()


def _host_can_reach(address: str) -> bool:
    with socket.create_connection((address, PORT), timeout=5) as connection:
        return connection.recv(100) == b"hello\n"


@also_on_runc
def test_public_address_is_reachable(online: Box) -> None:
    assert _answer(online, PUBLIC) == "hello"


@also_on_runc
@pytest.mark.parametrize("address", METADATA)
def test_metadata_addresses_are_closed(online: Box, address: str) -> None:
    assert _host_can_reach(address), "the test's own server has to answer, else this shows nothing"

    assert _answer(online, address) == ""


@also_on_runc
def test_the_host_is_closed(online: Box) -> None:
    gateway = online.text("ip route | grep default").split()[2]
    with socket.create_server((gateway, PORT)) as server:
        assert _answer(online, gateway) == ""
        assert _answer(online, "203.0.113.1", PORT) == ""
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


def _address(box: Box) -> str:
    words = box.text("ip -4 -o address show eth0").split()
    return words[words.index("inet") + 1].partition("/")[0]


@also_on_runc
def test_docker_socket_is_not_inside(online: Box) -> None:
    assert online.sh("ls /var/run/docker.sock /run/docker.sock").code != 0


def test_networks_go_with_their_sandboxes(lab: Lab, world: None) -> None:
    before = _interfaces(lab)
    with lab.sandbox(network="bridge"):
        assert _interfaces(lab) - before
    assert _interfaces(lab) == before


def _interfaces(lab: Lab) -> set[str]:
    done = subprocess.run(["ip", "-json", "link"], capture_output=True, check=True, timeout=15)
    return {entry["ifname"] for entry in json.loads(done.stdout) if lab.tag in entry["ifname"]}
