"""The firewall on the real kernel, in a network namespace for each test, and the guard that keeps it there."""

import contextlib
import ipaddress
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gateway.wire.closed_ranges import AddressPolicy
from node_agent.errors import RuntimeFailure
from node_agent.host import interfaces
from node_agent.host.firewall import Firewall, FirewallRules
from node_agent.host.firewall_guard import FirewallGuard, NftablesEvents
from node_agent.host.network import Net, Networks
from tests.engines.own_network import own_network

pytestmark = pytest.mark.engine

PUBLIC, PRIVATE, NEIGHBOUR = "192.0.1.7", "10.99.0.7", "10.99.0.8"
PORT = 8080
SERVER = f"""
import socket, threading
def serve(family):
    with socket.create_server(("", {PORT}), family=family, backlog=200) as server:
        while True:
            connection = server.accept()[0]
            connection.sendall(b"hello")
            kept.append(connection)
kept = []
threading.Thread(target=serve, args=(socket.AF_INET6,), daemon=True).start()
print("ready", flush=True)
serve(socket.AF_INET)
"""


@pytest.fixture
def tag() -> str:
    return uuid.uuid4().hex[:8]


def _run(*argv: str, stdin: str = "") -> str:
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextlib.contextmanager
def _networks(tag: str, rules: FirewallRules | None = None) -> Iterator[Networks]:
    networks = Networks(tag, rules=rules or FirewallRules())
    try:
        yield networks
    finally:
        networks.sweep(set())


@contextlib.contextmanager
def _guard(*firewalls: Firewall, changed: Callable[[], None] = lambda: None) -> Iterator[FirewallGuard]:
    guard = FirewallGuard(firewalls, changed)
    guard.start()
    try:
        yield guard
    finally:
        guard.stop()


@contextlib.contextmanager
def _outside(*addresses: str) -> Iterator[None]:
    """Play the world: a namespace with these addresses, where a server answers.  Another one answers on this host."""
    name = f"w{uuid.uuid4().hex[:8]}"
    _run("ip", "link", "set", "lo", "up")
    _run("ip", "netns", "add", name)
    servers = []
    try:
        _run("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
        _run("ip", "address", "add", "192.0.1.1/32", "dev", name)
        _run("ip", "link", "set", name, "up")
        for device in ("lo", "eth0"):
            _run("ip", "-n", name, "link", "set", device, "up")
        for address in addresses:
            _run("ip", "route", "add", f"{address}/32", "dev", name)
            _run("ip", "-n", name, "address", "add", f"{address}/32", "dev", "eth0")
        _run("ip", "-n", name, "route", "add", "192.0.1.1/32", "dev", "eth0")
        _run("ip", "-n", name, "route", "add", "default", "via", "192.0.1.1")
        for place in (["nsenter", f"--net=/run/netns/{name}"], []):
            servers.append(subprocess.Popen([*place, sys.executable, "-c", SERVER], stdout=subprocess.PIPE))
            stdout = servers[-1].stdout
            assert stdout is not None and stdout.readline() == b"ready\n"
        yield
    finally:
        for server in servers:
            server.kill()
            server.communicate()
        _run("ip", "netns", "delete", name)


def _inside(net: Net, script: str) -> str:
    return _run("nsenter", f"--net={net.path}", sys.executable, "-c", textwrap.dedent(script)).strip()


def _that_answer(net: Net, *addresses: str, source: str = "") -> list[str]:
    """Return the addresses on which a server says hello to the sandbox within half a second."""
    script = f"""
        import socket
        from concurrent.futures import ThreadPoolExecutor
        def ask(address):
            try:
                with socket.create_connection((address, {PORT}), 0.5, ({source!r}, 0) if {source!r} else None) as c:
                    return c.recv(5) == b"hello"
            except OSError:
                return False
        addresses = {addresses!r}
        with ThreadPoolExecutor(16) as pool:
            print(*(a for a, answers in zip(addresses, pool.map(ask, addresses)) if answers))
    """
    return _inside(net, script).split()


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.01)


# -- what is open and what is closed -----------------------------------------------------------------------------------


@own_network
def test_a_sandbox_reaches_the_world_and_neither_private_ranges_nor_its_host_nor_its_neighbour(tag: str) -> None:
    with _outside(PUBLIC, PRIVATE), _networks(tag) as networks:
        net, other = networks.create(), networks.create()
        asked = (PUBLIC, PRIVATE, net.gateway, other.gateway, "192.0.1.1", other.address.partition("/")[0])
        assert _that_answer(net, *asked) == [PUBLIC]


@own_network
def test_a_source_address_of_another_is_dropped(tag: str) -> None:
    with _outside(PUBLIC), _networks(tag) as networks:
        net, other = networks.create(), networks.create()
        stolen = other.address.partition("/")[0]
        _run("ip", "-n", net.namespace, "address", "add", f"{stolen}/32", "dev", "eth0")
        assert _that_answer(net, PUBLIC) == [PUBLIC]
        assert _that_answer(net, PUBLIC, source=stolen) == []


@own_network
def test_ipv6_is_closed_whatever_the_sandbox_sets_up(tag: str) -> None:
    with _outside(), _networks(tag) as networks:
        net = networks.create()
        _run("ip", "address", "add", "fd00:1::1/64", "dev", net.host_interface, "nodad")
        _run("ip", "-n", net.namespace, "address", "add", "fd00:1::2/64", "dev", "eth0", "nodad")
        assert _that_answer(net, "fd00:1::1") == []


@own_network
def test_an_operator_opens_a_range_but_not_the_host_in_it_and_closes_another(tag: str) -> None:
    addresses = AddressPolicy(
        added=(ipaddress.ip_network(f"{PUBLIC}/32"),),
        opened=(ipaddress.ip_network("10.0.0.0/8"),),
        guarded=frozenset({ipaddress.ip_address(NEIGHBOUR)}),
    )
    with _outside(PUBLIC, PRIVATE, NEIGHBOUR, "192.0.1.8"), _networks(tag, FirewallRules(addresses)) as networks:
        net, other = networks.create(), networks.create()
        asked = (PUBLIC, "192.0.1.8", PRIVATE, NEIGHBOUR, net.gateway, other.address.partition("/")[0])
        assert _that_answer(net, *asked) == ["192.0.1.8", PRIVATE]


@own_network
def test_an_operator_opens_an_address_of_the_host_by_naming_it(tag: str) -> None:
    rules = FirewallRules(AddressPolicy(opened=(ipaddress.ip_network("192.0.1.1/32"),)))
    with _outside(), _networks(tag, rules) as networks:
        net = networks.create()
        assert _that_answer(net, "192.0.1.1", net.gateway) == ["192.0.1.1"]


# -- connections -------------------------------------------------------------------------------------------------------


def _hold(net: Net, count: int) -> int:
    """Open connections from a sandbox, and return how many came to be."""
    script = f"""
        import select, socket, time
        held = [socket.socket() for _ in range({count})]
        for one in held:
            one.setblocking(False)
            one.connect_ex(("{PUBLIC}", {PORT}))
        time.sleep(0.5)
        print(len(select.select(held, [], [], 0)[0]))
    """
    return int(_inside(net, script))


@own_network
def test_a_sandbox_has_its_share_of_the_table_of_connections_and_a_neighbour_connects(tag: str) -> None:
    with _outside(PUBLIC), _networks(tag, FirewallRules(connections=20)) as networks:
        net, other = networks.create(), networks.create()
        assert _hold(net, 100) == 20
        table = Path("/proc/thread-self/net/nf_conntrack").read_text()
        assert table.count(f"src={net.address.partition('/')[0]} ") == 20
        assert _that_answer(other, PUBLIC) == [PUBLIC]
        assert not networks.firewall.check(), "what the kernel counts is no change of the rules"


@own_network
def test_a_sandbox_does_not_inherit_connections_with_its_address(tag: str) -> None:
    with _outside(PUBLIC), _networks(tag, FirewallRules(connections=20)) as networks:
        net = networks.create()
        assert _hold(net, 100) == 20
        networks.remove(net)
        heir = networks.create()
        assert heir.address == net.address
        assert _hold(heir, 100) == 20


@own_network
def test_new_connections_are_bounded_by_the_second(tag: str) -> None:
    with _outside(PUBLIC), _networks(tag, FirewallRules(connections_per_second=2)) as networks:
        net, other = networks.create(), networks.create()
        assert 20 <= _hold(net, 100) < 30
        assert _that_answer(other, PUBLIC) == [PUBLIC]


# -- the guard ---------------------------------------------------------------------------------------------------------

LOSSES = {
    "flushed ruleset": "flush ruleset",
    "deleted table": "delete table inet {table}",
    "flushed table": "flush table inet {table}",
    "flushed chain": "flush chain inet {table} forward",
    "accept before ours": "insert rule inet {table} from_sandbox accept",
    "changed policy": "chain inet {table} input {{ policy drop; }}",
    "opened range": "delete element inet {table} closed {{ 10.0.0.0/8 }}",
    "range opened as an exception": "add element inet {table} opened {{ 10.0.0.0/8 }}",
    "table switched off": "add table inet {table} {{ flags dormant; }}",
    "another chain": "add chain inet {table} mine",
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())
@own_network
def test_what_was_lost_is_put_back_while_sandboxes_run(tag: str, loss: str) -> None:
    with _networks(tag) as networks:
        networks.create()
        firewall = networks.firewall
        whole = firewall._listed()
        with _guard(firewall):
            _run("nft", loss.format(table=firewall.table))
            _until(lambda: firewall._listed() == whole)


@own_network
def test_after_a_flush_a_running_sandbox_reaches_no_private_address(tag: str) -> None:
    with _outside(PUBLIC, PRIVATE), _networks(tag) as networks:
        net = networks.create()
        with _guard(networks.firewall):
            _run("nft", "flush ruleset")
            _until(lambda: networks.firewall._listed() is not None)
            assert _that_answer(net, PUBLIC, PRIVATE, net.gateway) == [PUBLIC]


@own_network
def test_rules_that_went_while_no_agent_ran_are_back_before_anything_else(tag: str) -> None:
    with _networks(tag) as networks:
        networks.create()
        _run("nft", "flush ruleset")
        firewall = Firewall(tag, f"sb{tag}")  # as the next agent makes it
        with _guard(firewall):
            assert firewall._listed() == firewall._expected


@own_network
def test_a_node_without_sandboxes_on_the_network_gets_no_rules(tag: str) -> None:
    firewall = Firewall(tag, f"sb{tag}")
    with _guard(firewall):
        assert firewall._listed() is None


@own_network
def test_the_door_in_docker_s_chain_is_back_after_docker_was_restarted(tag: str) -> None:
    def door() -> list[str]:
        return [line for line in _run("iptables", "-S", "DOCKER-USER").splitlines() if tag in line]

    for words in ("-N DOCKER-USER", "-P FORWARD DROP", "-I FORWARD -j DOCKER-USER"):
        _run("iptables", *words.split())
    with _networks(tag) as networks:
        networks.create()
        with _guard(networks.firewall) as guard:
            assert len(door()) == 2
            _run("iptables", "-F", "DOCKER-USER")  # as Docker makes its chains anew
            guard.poke()  # as a heartbeat does
            _until(lambda: len(door()) == 2)
    assert door() == []


@own_network
def test_sandboxes_are_cut_off_while_the_rules_cannot_be_put_back(
    tag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "nft"
    broken.write_text("#!/bin/sh\nexec false\n")
    broken.chmod(0o755)
    told = threading.Semaphore(0)
    with _networks(tag) as networks:
        net = networks.create()
        with _guard(networks.firewall, changed=told.release) as guard:
            with monkeypatch.context() as patch:
                path = subprocess.run(["sh", "-c", "echo $PATH"], capture_output=True, text=True, check=True).stdout
                nft = _run("sh", "-c", "command -v nft").strip()
                patch.setenv("PATH", f"{tmp_path}:{path.strip()}")
                _run(nft, "flush ruleset")
                assert told.acquire(timeout=20)
                assert guard.problem is not None
                assert interfaces.is_up(net.host_interface) is False
                with pytest.raises((RuntimeFailure,)):
                    networks.create()
            assert told.acquire(timeout=20)
            assert guard.problem is None
            assert interfaces.is_up(net.host_interface)


@own_network
def test_sandboxes_that_a_killed_agent_had_cut_off_are_let_on_the_network(tag: str) -> None:
    with _networks(tag) as networks:
        net = networks.create()
        networks.firewall.cut("as if nothing worked")
        assert interfaces.is_up(net.host_interface) is False
        with _guard(Firewall(tag, f"sb{tag}")):
            assert interfaces.is_up(net.host_interface)


class SlowFirewall:
    """Counts looks; the first one after the start takes until it is released."""

    table = "sandbox_slow"
    problem = None

    def __init__(self) -> None:
        self.looks = 0
        self.looking = threading.Event()
        self.release = threading.Event()

    def check(self) -> bool:
        self.looks += 1
        if self.looks == 2:
            self.looking.set()
            assert self.release.wait(20)
        return False

    def cut(self, problem: str) -> None:
        raise AssertionError(problem)


@own_network
def test_many_changes_are_one_look() -> None:
    firewall = SlowFirewall()
    guard = FirewallGuard([firewall])
    guard.start()
    _run("nft", f"add table inet {firewall.table}")
    assert firewall.looking.wait(20)
    for number in range(50):
        _run("nft", f"add chain inet {firewall.table} c{number}")
    firewall.release.set()
    _until(lambda: firewall.looks == 3)
    guard.stop()
    assert firewall.looks == 3


@own_network
def test_changes_of_other_tables_are_nobody_s_business() -> None:
    events = NftablesEvents(["mine"])
    with contextlib.closing(events):
        _run("nft", "add table inet other; add chain inet other mine2")
        assert not events.changed()
        _run("nft", "add table inet mine")
        assert events.changed()
        _run("nft", "flush ruleset")
        assert events.changed()
        assert not events.changed()
