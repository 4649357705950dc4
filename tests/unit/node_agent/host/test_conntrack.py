"""The share of the table of connections, and connections of a sandbox that is gone."""

import socket
import subprocess
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from gateway.wire import limits
from node_agent.host.conntrack import connection_share, forget
from tests.engines.own_network import own_network


@pytest.mark.parametrize(
    ("entries", "slots", "share"),
    [(262_144, 250, 838), (262_144, 48, limits.MAX_CONNECTIONS), (65_536, 250, 209), (8_192, 250, 64)],
)
def test_all_sandboxes_together_leave_a_fifth_to_the_host(tmp_path: Path, entries: int, slots: int, share: int) -> None:
    (tmp_path / "max").write_text(f"{entries}\n")
    assert connection_share(slots, tmp_path / "max") == share


def test_a_table_that_the_kernel_has_not_made_yet_counts_as_a_small_one(tmp_path: Path) -> None:
    assert connection_share(64, tmp_path / "missing") == 65_536 * 4 // 5 // 64


@pytest.mark.engine
@own_network
def test_connections_of_one_address_are_forgotten_and_those_of_others_stay() -> None:
    rules = "add table ip t; add chain ip t c { type filter hook output priority 0; }; add rule ip t c ct state new"
    for command in (["ip", "link", "set", "lo", "up"], ["nft", rules]):
        subprocess.run(command, check=True, timeout=15)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as target:
        target.bind(("127.0.0.1", 0))
        for source in ("127.0.0.2", "127.0.0.3"):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                sender.bind((source, 0))
                sender.sendto(b"x", target.getsockname())
    assert _sources() == {"127.0.0.2", "127.0.0.3"}

    forget(IPv4Address("127.0.0.2"))
    forget(IPv4Address("127.0.0.9"))  # has none

    assert _sources() == {"127.0.0.3"}


def _sources() -> set[str]:
    table = Path("/proc/thread-self/net/nf_conntrack").read_text()
    return {line.split("src=")[1].split()[0] for line in table.splitlines() if line.startswith("ipv4")}
