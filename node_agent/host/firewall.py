"""The host's side of a sandbox's network: one nftables table per node, and a door in Docker's forward chain.

The rules match interfaces by the node's prefix, so a sandbox that comes or goes changes no rule.  From those
interfaces the host itself, every special-purpose range and all of IPv6 are closed; everything else is forwarded and
translated.  Nobody outside can open a connection into a sandbox.
"""

import json
import threading
from typing import Final

from gateway.wire.closed_ranges import CLOSED_IPV4
from node_agent.host.process import CommandError, run

_RULES: Final = """
add table inet {table}
delete table inet {table}
table inet {table} {{
  set closed {{ type ipv4_addr; flags interval; elements = {{ {closed} }} }}
  chain prerouting {{
    type filter hook prerouting priority raw; policy accept;
    iifname "{prefix}*" jump from_sandbox
  }}
  chain from_sandbox {{
    meta nfproto ipv6 drop
    ip daddr @closed drop
    fib saddr . iif oif missing drop comment "a source address that is not the sandbox's own"
  }}
  chain input {{
    type filter hook input priority -150; policy accept;
    iifname "{prefix}*" drop
  }}
  chain forward {{
    type filter hook forward priority -150; policy accept;
    iifname "{prefix}*" ip daddr @closed drop comment "again, after a translation of the destination"
    oifname "{prefix}*" ct state established,related accept
    oifname "{prefix}*" drop
  }}
  chain postrouting {{
    type nat hook postrouting priority srcnat; policy accept;
    iifname "{prefix}*" masquerade
  }}
}}
"""


class Firewall:
    """Rules for all interfaces whose name starts with ``prefix``.

    Args:
        name: the owner, which holds the node's tag; the table is ``sandbox_<name>``.  One owner, one table.
        prefix: start of the names of the interfaces on the host's side, bridges included.
    """

    def __init__(self, name: str, prefix: str) -> None:
        self.table = f"sandbox_{name}"
        self.prefix = prefix
        self._lock = threading.Lock()

    def ensure(self) -> None:
        """Put the rules in place.  Idempotent, and cheap when they are there.

        Raises:
            CommandError: ``nft`` is missing or refused.
        """
        with self._lock:
            if not self._present():
                run(["nft", "-f", "-"], stdin=self._rules().encode())
            self._open_docker()

    def remove(self) -> list[str]:
        """Remove all rules; return a phrase for each that was there.  Idempotent."""
        with self._lock:
            gone = [f"iptables rule {' '.join(rule)}" for rule in self._docker_rules() if self._iptables("-D", rule)]
            if self._present():
                run(["nft", "delete", "table", "inet", self.table])
                gone.append(f"nft table inet {self.table}")
            return gone

    def _rules(self) -> str:
        return _RULES.format(table=self.table, prefix=self.prefix, closed=", ".join(map(str, CLOSED_IPV4)))

    def _present(self) -> bool:
        tables = json.loads(run(["nft", "-j", "list", "tables", "inet"]))["nftables"]
        return any(entry.get("table", {}).get("name") == self.table for entry in tables)

    # Docker sets the policy of iptables' FORWARD chain to DROP and leaves DOCKER-USER to its neighbours.

    def _docker_rules(self) -> tuple[tuple[str, ...], ...]:
        comment = ("-m", "comment", "--comment", self.table)
        return (
            ("DOCKER-USER", "-i", f"{self.prefix}+", *comment, "-j", "ACCEPT"),
            ("DOCKER-USER", "-o", f"{self.prefix}+", *comment, "-j", "ACCEPT"),
        )

    def _open_docker(self) -> None:
        for rule in self._docker_rules():
            if not self._iptables("-C", rule):
                self._iptables("-I", rule)

    def _iptables(self, action: str, rule: tuple[str, ...]) -> bool:
        """Return whether the command succeeded; without iptables or without Docker's chain there is nothing to open."""
        try:
            run(["iptables", "-w", "5", action, *rule])
        except CommandError:
            return False
        return True
