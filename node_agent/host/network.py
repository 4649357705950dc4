"""Networks of sandboxes: a namespace, a veth pair and a /30 each, reachable only through the host's firewall."""

import contextlib
import fcntl
import ipaddress
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gateway.wire.errors import ErrorCode
from node_agent.errors import RuntimeFailure
from node_agent.host import interfaces
from node_agent.host.conntrack import forget_all
from node_agent.host.disk import host_errors
from node_agent.host.firewall import DEFAULT_RULES, Firewall, FirewallRules
from node_agent.host.process import CommandError, run

DEFAULT_POOL: Final = "10.213.0.0/16"
DEFAULT_RESOLVERS: Final = ("1.1.1.1", "8.8.8.8")
# Every agent of this host takes the same lock, so that no two choose the same subnet or slot.
_LOCK: Final = Path("/run/lock/sandbox-fleet-network.lock")
# gVisor up to 2024 takes a visible rmem_default as the sign of the host's own network namespace and refuses to start
# its network.  Since about Linux 6.15 it is visible in every namespace; an empty /proc/sys/net in a mount namespace of
# its own hides it.  Slave propagation lets later mounts and unmounts of the host through.
HIDE_SYSCTL: Final = (
    *("unshare", "-m", "--propagation", "slave"),
    *("sh", "-c", 'mount -t tmpfs tmpfs /proc/sys/net; exec "$@"', "sh"),
)
"""Put before the command line of a gVisor that is to see no ``/proc/sys/net``."""
_MAX_SLOTS: Final = 4096  # three hex digits: interface names have 15 characters at most


@dataclass(frozen=True)
class Net:
    """One sandbox's network.

    Attributes:
        namespace: name of the network namespace, as `ip netns` knows it; its interface is ``eth0``.
        host_interface: the host's end of the veth pair.
        address: the sandbox's own, with prefix length.
        gateway: the host's end.
    """

    namespace: str
    host_interface: str
    address: str
    gateway: str

    @property
    def path(self) -> Path:
        return Path("/run/netns") / self.namespace

    @property
    def ip(self) -> ipaddress.IPv4Address:
        return ipaddress.IPv4Interface(self.address).ip


class Networks:
    """Makes and removes the networks of one node.

    Args:
        tag: the node's tag, 8 hex digits.
        pool: private range that the /30 subnets are cut from.
        rules: what the firewall lets through.
    """

    def __init__(self, tag: str, pool: str = DEFAULT_POOL, rules: FirewallRules = DEFAULT_RULES) -> None:
        self._tag = tag
        self._pool = ipaddress.IPv4Network(pool)
        self.firewall = Firewall(tag, f"sb{tag}", rules)

    def create(self) -> Net:
        """Make a network, firewalled before its first packet.

        Raises:
            RuntimeFailure: ``CAPACITY`` when the pool is used up; ``INTERNAL`` when the host refuses.
        """
        with host_errors("network of a sandbox"):
            self.firewall.ensure()
            enable_forwarding()
            with host_wide_lock():
                net = self._plan()
                forget_all([net.ip])  # an agent that was killed may have left them
                self._build(net)
        self._refuse_unprotected(net)
        return net

    def rebuild(self, net: Net) -> None:
        """Make the same network again, with the same addresses: what a restored sandbox needs.

        Raises:
            RuntimeFailure: the host refuses, e.g. because the addresses were taken meanwhile.
        """
        self.remove(net)
        with host_errors(f"network {net.namespace}"):
            self.firewall.ensure()
            enable_forwarding()
            with host_wide_lock():
                self._build(net)
        self._refuse_unprotected(net)

    def _refuse_unprotected(self, net: Net) -> None:
        """Take a network back that came up while the firewall was lost: nobody else may have cut it off."""
        if (problem := self.firewall.problem) is not None:
            self.remove(net)
            raise RuntimeFailure(ErrorCode.NODE_REFUSED, problem)

    def remove(self, net: Net) -> None:
        """Remove namespace and veth.  Idempotent."""
        with contextlib.suppress(CommandError):  # not there: that is what we want
            run(["ip", "link", "delete", net.host_interface])
        if net.path.exists():
            run(["ip", "netns", "delete", net.namespace])
        forget_all([net.ip])

    def sweep(self, owned: set[str]) -> list[str]:
        """Remove this node's namespaces and veths that no sandbox owns.

        Args:
            owned: names of the namespaces that sandboxes have.

        Returns:
            A phrase for each thing that was removed.
        """
        gone: list[str] = []
        for namespace in _names(Path("/run/netns"), rf"sb{self._tag}[0-9a-f]{{3}}"):
            if namespace not in owned:
                run(["ip", "netns", "delete", namespace])
                gone.append(f"network namespace {namespace}")
        for interface in interfaces.starting_with(f"sb{self._tag}"):
            if interface not in owned:
                with contextlib.suppress(CommandError):  # the kernel removes it together with its peer's namespace
                    run(["ip", "link", "delete", interface])
                gone.append(f"interface {interface}")
        if not owned:
            gone += self.firewall.remove()
        return gone

    def _plan(self) -> Net:
        name = f"sb{self._tag}{self._free_slot():03x}"
        subnet = free_subnet(self._pool)
        gateway, own = list(subnet.hosts())
        return Net(namespace=name, host_interface=name, address=f"{own}/{subnet.prefixlen}", gateway=str(gateway))

    def _free_slot(self) -> int:
        pattern = rf"sb{self._tag}[0-9a-f]{{3}}"
        taken = _names(Path("/run/netns"), pattern) | interfaces.names()
        for slot in range(_MAX_SLOTS):
            if f"sb{self._tag}{slot:03x}" not in taken:
                return slot
        raise RuntimeFailure(ErrorCode.CAPACITY, f"this node already has {_MAX_SLOTS} networks")

    def _build(self, net: Net) -> None:
        host, name, prefix = net.host_interface, net.namespace, net.address.partition("/")[2]
        run(
            ["ip", "-batch", "-"],
            stdin="\n".join(
                [
                    f"netns add {name}",
                    f"link add {host} type veth peer name eth0 netns {name}",
                    f"link set {host} addrgenmode none",
                    f"address add {net.gateway}/{prefix} dev {host}",
                    f"link set {host} up",
                ]
            ).encode(),
        )
        run(
            ["ip", "-netns", name, "-batch", "-"],
            stdin="\n".join(
                [
                    "link set lo up",
                    "link set eth0 addrgenmode none",
                    f"address add {net.address} dev eth0",
                    "link set eth0 up",
                    f"route add default via {net.gateway}",
                ]
            ).encode(),
        )


def free_subnet(pool: ipaddress.IPv4Network) -> ipaddress.IPv4Network:
    """Return a /30 of ``pool`` that this host does not use.  Hold `host_wide_lock` until it does.

    Raises:
        RuntimeFailure: ``CAPACITY`` when there is none.
    """
    taken = _routed_inside(pool)
    for subnet in pool.subnets(new_prefix=30):
        if not any(subnet.overlaps(other) for other in taken):
            return subnet
    raise RuntimeFailure(ErrorCode.CAPACITY, f"all addresses of {pool} are in use on this host")


def _routed_inside(pool: ipaddress.IPv4Network) -> list[ipaddress.IPv4Network]:
    """Return what this host routes inside ``pool``; wider routes lose against our /30 and do not count."""
    routes = json.loads(run(["ip", "-json", "-4", "route", "show", "table", "all"]) or b"[]")
    found: list[ipaddress.IPv4Network] = []
    for route in routes:
        if route["dst"] != "default":
            network = ipaddress.IPv4Network(route["dst"], strict=False)
            if network.overlaps(pool) and network.prefixlen >= pool.prefixlen:
                found.append(network)
    return found


def _names(directory: Path, pattern: str) -> set[str]:
    if not directory.is_dir():
        return set()
    return {entry.name for entry in directory.iterdir() if re.fullmatch(pattern, entry.name)}


def enable_forwarding() -> None:
    """Let this host route between its interfaces."""
    switch = Path("/proc/sys/net/ipv4/ip_forward")
    if switch.read_text().strip() != "1":
        switch.write_text("1")


@contextlib.contextmanager
def host_wide_lock() -> Iterator[None]:
    """Let one at a time in among all agents of this host: subnets and names of interfaces are chosen inside."""
    _LOCK.parent.mkdir(parents=True, exist_ok=True)
    with _LOCK.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
