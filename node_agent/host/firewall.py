"""The host's side of a sandbox's network: one nftables table for each engine of a node, and a door in Docker's chain.

The rules match interfaces by the node's prefix, so a sandbox that comes or goes changes no rule.  From those
interfaces the host itself, every special-purpose range and all of IPv6 are closed; everything else is forwarded and
translated.  Nobody outside can open a connection into a sandbox.  What a sandbox may take of the host's table of
connections is bounded, so that none fills it for its neighbours.

The rules can be lost: ``nft flush ruleset`` is the first line of many firewall scripts.  `Firewall.ensure` compares
everything that is there with what belongs there, and `Firewall.cut` takes sandboxes off the network where that fails.
"""

import json
import logging
import re
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv4Address, IPv4Network, IPv6Address, collapse_addresses
from typing import Final

from gateway.wire import limits
from gateway.wire.closed_ranges import DEFAULT_POLICY, AddressPolicy, IpNetwork
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
