"""The outside of this machine, played by a network namespace: a public address, and closed ones that answer as well."""

import fcntl
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

# In none of the special-purpose ranges, and kept back by the registries: public in form, and nobody's.
PUBLIC = "192.0.1.7"
ROUTER = "192.0.1.1"
"""This machine, as the outside sees it."""
METADATA = ("169.254.169.254", "100.100.100.200", "168.63.129.16")
CLOSED = (*METADATA, "192.88.99.7", "198.18.0.7", "203.0.113.7")
"""Addresses that answer, and that no sandbox may reach."""
PORT = 8080
LOCK = Path("/run/lock/sandbox-fleet-test-network.lock")
SERVER = f"""
import socket, threading
def serve(connection):
    with connection:
        connection.settimeout(30)
        connection.sendall(b"hello\\n")
        while connection.recv(65536):
            pass
with socket.create_server(("", {PORT})) as server:
    print("ready", flush=True)
    while True:
        threading.Thread(target=serve, args=server.accept()[:1], daemon=True).start()
"""


@pytest.fixture(scope="module")
def outside(engines: None) -> Iterator[None]:
    """Run a network namespace that plays the outside: it answers on `PUBLIC` and all of `CLOSED`."""
    name = f"w{uuid.uuid4().hex[:8]}"
    script = f"""
      ip netns add {name}
      ip link add {name} type veth peer name eth0 netns {name}
      ip address add {ROUTER}/32 dev {name}
      ip link set {name} up
      ip -n {name} link set lo up
      ip -n {name} link set eth0 up
      for address in {PUBLIC} {" ".join(CLOSED)}; do
        ip route add $address/32 dev {name}
        ip -n {name} address add $address/32 dev eth0
      done
      ip -n {name} route add {ROUTER}/32 dev eth0
      ip -n {name} route add default via {ROUTER}
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
