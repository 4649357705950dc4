"""The host's side of a sandbox's network: one nftables table for each engine of a node, and a door in Docker's chain.

The rules match interfaces by the node's prefix, so a sandbox that comes or goes changes no rule.  From those
interfaces the host itself, every special-purpose range and all of IPv6 are closed; everything else is forwarded and
translated.  Nobody outside can open a connection into a sandbox.  What a sandbox may take of the host's table of
connections is bounded, so that none fills it for its neighbours.

The rules can be lost: ``nft flush ruleset`` is the first line of many firewall scripts.  `Firewall.ensure` compares
everything that is there with what belongs there, and `Firewall.cut` takes sandboxes off the network where that fails.

`PullFirewall` is for what leaves the host itself for a sandbox: the pull of its image.
"""

import hashlib
import json
import logging
import os
import re
import socket
import struct
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv4Address, IPv4Network, IPv6Address, collapse_addresses, ip_address, ip_network
from pathlib import Path
from typing import Final

from gateway.wire import limits
from gateway.wire.closed_ranges import DEFAULT_POLICY, AddressPolicy, IpAddress, IpNetwork
from node_agent.host import interfaces
from node_agent.host.process import CommandError, run

log = logging.getLogger(__name__)

_TIMEOUT: Final = 5.0  # nft takes milliseconds; while it hangs, sandboxes may be unprotected
_COUNTED: Final = re.compile(r"(set (?:connections|openings) {[^{}]*?)\s*elements = {[^{}]*}")
"""The elements that the kernel adds to two sets, in a listing: one for each sandbox that ever opened a connection."""

# The sets hold one element per interface; their names end in three hex digits.
_RULES: Final = """
add table inet {table}
delete table inet {table}
table inet {table} {{
  set closed {{ type ipv4_addr; flags interval; {closed} }}
  set opened {{ type ipv4_addr; flags interval; {opened} }}
  set guarded {{ type ipv4_addr; flags interval; {guarded} }}
  set opened_hosts {{ type ipv4_addr; flags interval; {opened_hosts} }}
  set connections {{ typeof iifname; size 4096; flags dynamic; }}
  set openings {{ typeof iifname; size 4096; flags dynamic; }}
  ct timeout short_tcp {{
    protocol tcp; l3proto ip;
    policy = {{ syn_sent : 30, fin_wait : 30, close_wait : 30, time_wait : 10, close : 5 }};
  }}
  ct timeout short_udp {{ protocol udp; l3proto ip; policy = {{ unreplied : 10, replied : 60 }}; }}
  chain prerouting {{
    type filter hook prerouting priority raw; policy accept;
    iifname "{prefix}*" jump from_sandbox
  }}
  chain from_sandbox {{
    meta nfproto != ipv4 drop
    fib saddr . iif oif missing drop comment "a source address that is not the sandbox's own"
    jump destinations
  }}
  chain destinations {{
    ip daddr @opened_hosts return
    ip daddr @guarded drop
    fib daddr type local drop
    ip daddr @opened return
    ip daddr @closed drop
  }}
  chain input {{
    type filter hook input priority -150; policy accept;
    iifname "{prefix}*" ip daddr @opened_hosts accept
    iifname "{prefix}*" drop
  }}
  chain forward {{
    type filter hook forward priority -150; policy accept;
    iifname "{prefix}*" jump leaving
    oifname "{prefix}*" ct state established,related accept
    oifname "{prefix}*" drop
  }}
  chain leaving {{
    jump destinations comment "again, after a translation of the destination"
    ct state new add @openings {{ iifname limit rate over {per_second}/second burst {burst} packets }} drop
    ct state new add @connections {{ iifname ct count over {connections} }} drop
    meta l4proto tcp ct timeout set "short_tcp"
    meta l4proto udp ct timeout set "short_udp"
  }}
  chain postrouting {{
    type nat hook postrouting priority srcnat; policy accept;
    iifname "{prefix}*" masquerade
  }}
}}
"""


@dataclass(frozen=True)
class FirewallRules:
    """What the rules let through.

    Attributes:
        addresses: where sandboxes may connect to.
        connections: most connections of one sandbox that the host's table holds at once.
        connections_per_second: most new ones of one sandbox; it may save up ten seconds' worth.
    """

    addresses: AddressPolicy = DEFAULT_POLICY
    connections: int = limits.MAX_CONNECTIONS
    connections_per_second: int = limits.MAX_CONNECTIONS_PER_SECOND

    def text(self, table: str, prefix: str) -> str:
        """Return the rules for the interfaces whose names start with ``prefix``, as ``nft -f`` takes them."""
        addresses = self.addresses
        return _RULES.format(
            table=table,
            prefix=prefix,
            closed=_elements(addresses.closed),
            opened=_elements(addresses.opened),
            guarded=_elements(addresses.guarded),
            opened_hosts=_elements(addresses.opened_hosts),
            connections=self.connections,
            per_second=self.connections_per_second,
            burst=10 * self.connections_per_second,
        )


def _elements(addresses: Iterable[IpNetwork | IPv4Address | IPv6Address]) -> str:
    """Return the IPv4 part of ``addresses`` as the elements of a set; intervals of a set must not overlap."""
    networks = collapse_addresses(IPv4Network(address) for address in addresses if address.version == 4)
    listed = ", ".join(map(str, networks))
    return f"elements = {{ {listed} }}" if listed else ""


DEFAULT_RULES: Final = FirewallRules()


class Firewall:
    """The table for all interfaces whose name starts with ``prefix``.

    Args:
        name: the owner, which holds the node's tag; the table is ``sandbox_<name>``.  One owner, one table.
        prefix: start of the names of the interfaces on the host's side, bridges included.
        rules: what they let through.
    """

    def __init__(self, name: str, prefix: str, rules: FirewallRules = DEFAULT_RULES) -> None:
        self.table = f"sandbox_{name}"
        self.prefix = prefix
        self._rules = rules
        self._lock = threading.Lock()
        self._wanted = False
        self._cut = False
        self._uncertain = True  # whether an earlier life of the agent may have cut sandboxes off
        self.problem: str | None = None
        """Why sandboxes are cut off; ``None`` while the rules stand."""

    def ensure(self) -> None:
        """Put the rules in place, for an interface that is about to come.  Idempotent, and cheap when they are there.

        Raises:
            CommandError: ``nft`` is missing or refused.
        """
        with self._lock:
            self._wanted = True
            self._ensure()

    def check(self) -> bool:
        """Put the rules back where interfaces need them, and let those on the network again that were cut off.

        Returns:
            Whether the rules were not what they have to be.

        Raises:
            CommandError: they could not be put back.
        """
        with self._lock:
            if not self._wanted and not self.interfaces():
                self.problem = None
                return False
            changed = self._ensure()
            if self._cut or self._uncertain:
                self._switch(up=True)
            self._cut = self._uncertain = False
            self.problem = None
            return changed

    def cut(self, problem: str) -> None:
        """Take all sandboxes off the network, because nothing protects it from them.

        Raises:
            CommandError: the host refused that too.
        """
        with self._lock:
            self._cut, self.problem = True, problem
            self._switch(up=False)

    def remove(self) -> list[str]:
        """Remove all rules; return a phrase for each that was there.  Idempotent."""
        with self._lock:
            self._wanted, self.problem = False, None
            gone = [f"iptables rule {' '.join(rule)}" for rule in self._docker_rules() if self._iptables("-D", rule)]
            if self._present():
                run(["nft", "delete", "table", "inet", self.table])
                gone.append(f"nft table inet {self.table}")
            return gone

    def interfaces(self) -> list[str]:
        """Return the interfaces of this host that the rules are for."""
        return interfaces.starting_with(self.prefix)

    def _ensure(self) -> bool:
        changed = self._listed() != self._expected
        if changed:
            command = ["nft", "-f", "-"]
            run(command, stdin=self._text.encode(), timeout=_TIMEOUT)
            if (listed := self._listed()) != self._expected:
                raise CommandError(
                    command, "loaded other rules than these, or somebody changed them", output=str(listed)
                )
        self._open_docker()
        return changed

    @cached_property
    def _text(self) -> str:
        return self._rules.text(self.table, self.prefix)

    @cached_property
    def _expected(self) -> str:
        """The listing of the untouched rules.  Made where nobody else can touch them, in an empty network namespace."""
        script = f"nft -f - && nft list table inet {self.table}"
        listing = run(["unshare", "-n", "sh", "-c", script], stdin=self._text.encode(), timeout=_TIMEOUT)
        return _without_elements(listing)

    def _listed(self) -> str | None:
        try:
            return _without_elements(run(["nft", "list", "table", "inet", self.table], timeout=_TIMEOUT))
        except CommandError:  # mostly, there is none; where nft is broken, it cannot load them either
            return None

    def _present(self) -> bool:
        tables = json.loads(run(["nft", "-j", "list", "tables", "inet"]))["nftables"]
        return any(entry.get("table", {}).get("name") == self.table for entry in tables)

    def _switch(self, *, up: bool) -> None:
        if switched := interfaces.switch(self.interfaces(), up=up):
            log.warning("network of sandboxes: switched %s: %s", "on" if up else "off", ", ".join(switched))

    # Docker sets the policy of iptables' FORWARD chain to DROP and leaves DOCKER-USER to its neighbours.

    def _docker_rules(self) -> tuple[tuple[str, ...], ...]:
        comment = ("-m", "comment", "--comment", self.table)
        return (
            ("DOCKER-USER", "-i", f"{self.prefix}+", *comment, "-j", "ACCEPT"),
            ("DOCKER-USER", "-o", f"{self.prefix}+", *comment, "-j", "ACCEPT"),
        )

    def _open_docker(self) -> None:
        try:
            present = run(["iptables", "-w", "5", "-S", "DOCKER-USER"], timeout=_TIMEOUT).decode().splitlines()
        except CommandError:  # without iptables or without Docker's chain there is nothing to open
            return
        for rule in self._docker_rules():
            if f"-A {' '.join(rule)}" not in present and not self._iptables("-C", rule):
                self._iptables("-I", rule)

    def _iptables(self, action: str, rule: tuple[str, ...]) -> bool:
        """Return whether the command succeeded."""
        try:
            run(["iptables", "-w", "5", action, *rule])
        except CommandError:
            return False
        return True


def _without_elements(listing: bytes) -> str:
    """Return a listing without the elements that the kernel adds for traffic."""
    return _COUNTED.sub(r"\1", listing.decode())


# -- pulls of images --------------------------------------------------------------------------------------------------
# The engine follows by itself where a registry sends it: redirects, and the address of a service that gives tokens.  So
# it is the kernel that has to say no.  `sandboxes node engine` runs its daemon under a group id that nobody else has,
# and the table finds the daemon's own packets by that group.  What a sandbox sends is not of that group.  Nor is what
# an engine sends that somebody else started: it looks like everybody's, and is not filtered.

ENGINE_GROUPS: Final = range(60_600, 61_100)
"""Group ids of engines: neither systemd nor Debian gives them to anybody."""
_RESOLV_CONF: Final = Path("/etc/resolv.conf")
_PEER: Final = struct.Struct("=iII")  # struct ucred: pid, uid, gid

_PULL_RULES: Final = """
add table inet {table}
delete table inet {table}
table inet {table} {{
  {sets}
  chain refuse {{
    meta l4proto tcp reject with tcp reset
    reject
  }}
  chain destinations {{
    meta l4proto {{ tcp, udp }} th dport 53 ip daddr @resolvers4 return
    meta l4proto {{ tcp, udp }} th dport 53 ip6 daddr @resolvers6 return
    ip daddr @hosts4 return
    ip6 daddr @hosts6 return
    ip daddr @guarded4 jump refuse
    ip6 daddr @guarded6 jump refuse
    fib daddr type local jump refuse
    ip daddr @opened4 return
    ip6 daddr @opened6 return
    ip daddr @closed4 jump refuse
    ip6 daddr @closed6 jump refuse
  }}
  chain output {{
    type filter hook output priority -150; policy accept;
    meta skgid {group} jump destinations
  }}
}}
"""


def group_of(directory: Path) -> int:
    """Return the group id of the engine below a directory: two engines on a machine are told apart by it."""
    digest = hashlib.sha256(os.fsencode(directory.absolute())).digest()
    return ENGINE_GROUPS[int.from_bytes(digest[:4]) % len(ENGINE_GROUPS)]


class PullFirewall:
    """The table for the pulls of one runtime of a node.

    Args:
        name: the owner, which holds the node's tag; the table is ``sandbox_<name>_pulls``.
        engine: URL of the Docker engine.
        addresses: where it may connect to.
    """

    def __init__(self, name: str, engine: str, addresses: AddressPolicy) -> None:
        self.table = f"sandbox_{name}_pulls"
        self._engine = engine
        self._addresses = addresses
        self._told = False

    def ensure(self) -> bool:
        """Close the engine's own connections, for a pull that is about to begin.

        The rules are loaded each time, in one transaction: whoever flushed them did it for one pull at most.

        Returns:
            Whether they are; ``False`` for an engine that was not started by `sandboxes node engine`, or that is in
            another network namespace.

        Raises:
            CommandError: ``nft`` is missing or refused.
            OSError: the engine does not answer, so which it is cannot be known.
        """
        group = engine_group(self._engine)
        if group is None:
            if not self._told:
                log.warning(
                    "the Docker engine at %s is not one of the node's own: of a pull only the registry's address is"
                    " checked, not where the registry sends the engine",
                    self._engine,
                )
            self._told = True
            return False
        run(["nft", "-f", "-"], stdin=self.text(group, _resolvers()).encode(), timeout=_TIMEOUT)
        return True

    def remove(self) -> list[str]:
        """Remove the rules; return a phrase if there were any.  Idempotent.

        Raises:
            CommandError: ``nft`` is missing or refused.
        """
        tables = json.loads(run(["nft", "-j", "list", "tables", "inet"], timeout=_TIMEOUT))["nftables"]
        if not any(entry.get("table", {}).get("name") == self.table for entry in tables):
            return []
        run(["nft", "delete", "table", "inet", self.table], timeout=_TIMEOUT)
        return [f"nft table inet {self.table}"]

    def text(self, group: int, resolvers: Iterable[IpAddress]) -> str:
        """Return the rules as ``nft -f`` takes them.

        Args:
            group: of the engine.
            resolvers: name servers of this host, which the engine may ask wherever they are.
        """
        addresses = self._addresses
        sets: dict[str, Iterable[IpNetwork | IpAddress]] = {
            "resolvers": resolvers,
            "hosts": addresses.opened_hosts,
            "guarded": addresses.guarded,
            "opened": addresses.opened,
            "closed": addresses.closed,
        }
        lines = [_set(name, version, members) for name, members in sets.items() for version in (4, 6)]
        return _PULL_RULES.format(table=self.table, group=group, sets="\n  ".join(lines))


def engine_group(url: str) -> int | None:
    """Return the group id under which the engine at ``url`` runs, if it is one of a node's own in this network.

    The kernel tells it of whoever made the socket.

    Raises:
        OSError: nobody answers there now, so it cannot be known.
    """
    if not url.startswith("unix:"):
        return None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_TIMEOUT)
        connection.connect(re.sub("^unix:/*", "/", url))
        pid, _, group = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    if group not in ENGINE_GROUPS or pid == 0:  # 0: it is no process that can be seen from here
        return None
    return group if Path("/proc/self/ns/net").samefile(f"/proc/{pid}/ns/net") else None


def _resolvers() -> list[IpAddress]:
    try:
        lines = _RESOLV_CONF.read_text().splitlines()
    except OSError:
        return []
    words = [line.split() for line in lines]
    named = [word[1].partition("%")[0] for word in words if len(word) > 1 and word[0] == "nameserver"]
    found: list[IpAddress] = []
    for text in named:
        try:
            found.append(ip_address(text))
        except ValueError:
            log.warning("%s names a resolver that is no address: %s", _RESOLV_CONF, text)
    return found


def _set(name: str, version: int, members: Iterable[IpNetwork | IpAddress]) -> str:
    """Return a set of one address family; intervals of a set must not overlap."""
    networks = [ip_network(member) for member in members if member.version == version]
    listed = ", ".join(map(str, collapse_addresses(networks)))  # type: ignore[type-var]
    elements = f"elements = {{ {listed} }}" if listed else ""
    return f"set {name}{version} {{ type ipv{version}_addr; flags interval; {elements} }}"
