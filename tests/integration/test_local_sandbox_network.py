"""A sandbox's network inside a node's network: out to the world through both, and to nothing private."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from providers.local.network import Namespace, Network
from tests.engines.outside import PORT, PUBLIC

pytestmark = [pytest.mark.engine, pytest.mark.timeout(120)]
ROOT = Path(__file__).parents[2]
SUBNET, HOST = "10.215.98.0/28", "10.215.98.1"
# What the node agent does for a sandbox with `network: bridge`, run where the node agent runs.
NODE = """
import json, subprocess, sys
from node_agent.host.network import Networks
networks = Networks(sys.argv[1])
net = networks.create()
call = "import socket, sys; print(socket.create_connection((sys.argv[1], int(sys.argv[2])), 2).recv(100).decode())"
said = {}
try:
    for address in sys.argv[3:]:
        command = ["nsenter", f"--net={net.path}", sys.executable, "-c", call, address, sys.argv[2]]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
        said[address] = done.stdout.strip() if done.returncode == 0 else None
finally:
    networks.remove(net)
    gone = networks.sweep(set())
print(json.dumps([said, net.namespace, gone]))
"""
SERVER = f"""
import socket
with socket.create_server(("{HOST}", {PORT})) as server:
    print("ready", flush=True)
    while True:
        with server.accept()[0] as connection:
            connection.sendall(b"private\\n")
"""


@pytest.fixture(scope="module")
def engines() -> None:
    """Nothing: no engine takes part in this."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Namespace]:
    """Yield the network of an instance."""
    network = Network(tmp_path / "i", SUBNET)
    namespace = network.free(())
    network.attach(namespace)
    yield namespace
    network.detach(namespace.name)
    assert not network._names()


@pytest.mark.usefixtures("outside")
def test_a_sandbox_reaches_the_world_and_nothing_private_on_this_machine(node: Namespace) -> None:
    tag = "5a5a5a5a"
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None and server.stdout.readline() == b"ready\n"
            command = (sys.executable, "-c", NODE, tag, str(PORT), PUBLIC, HOST)
            done = subprocess.run(
                node.entered(command), cwd=ROOT, capture_output=True, text=True, timeout=90, check=False
            )
        finally:
            server.kill()
    assert done.returncode == 0, done.stderr
    said, namespace, gone = json.loads(done.stdout)
    assert said == {PUBLIC: "hello", HOST: None}
    assert not (Path("/run/netns") / namespace).exists()
    assert gone, "the firewall stays"
