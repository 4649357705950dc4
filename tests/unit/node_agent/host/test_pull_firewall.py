"""The rules for an engine's own connections, and which engines they are for."""

import os
import shutil
import socket
import subprocess
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from gateway.wire.closed_ranges import DEFAULT_POLICY, AddressPolicy
from node_agent.host.firewall import ENGINE_GROUPS, PullFirewall, engine_group, group_of

needs_nft = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("nft") is None, reason="needs root and nft; `sandboxes doctor` names the cure"
)
OPENED = AddressPolicy(opened=(ip_network("10.1.2.0/24"), ip_network("127.0.0.1/32"), ip_network("fd00::/48")))


@needs_nft
@pytest.mark.parametrize("policy", [DEFAULT_POLICY, OPENED])
def test_the_kernel_takes_the_rules_again_and_again(policy: AddressPolicy) -> None:
    firewall = PullFirewall("0badcafe", "unix:///nowhere", policy)
    text = firewall.text(ENGINE_GROUPS[0], [ip_address("10.0.0.2"), ip_address("fd00::2")])
    script = f"nft -f - && nft list table inet {firewall.table}"
    command = ["unshare", "-n", "sh", "-c", script]
    made = subprocess.run(command, input=2 * text, capture_output=True, text=True, check=False, timeout=20)
    assert made.returncode == 0, made.stderr
    listed = made.stdout

    assert f"meta skgid {ENGINE_GROUPS[0]} jump destinations" in listed
    for element in ("169.254.169.254", "127.0.0.0/8", "::/96", "10.0.0.2", "fd00::2", "fd00:ec2::254"):
        assert element in listed


def test_each_directory_has_a_group_of_its_own_and_keeps_it(tmp_path: Path) -> None:
    groups = {group_of(tmp_path / str(number)) for number in range(20)}
    assert groups <= set(ENGINE_GROUPS)
    assert len(groups) > 1
    assert group_of(tmp_path / "0") == group_of(tmp_path / "0")


def test_an_engine_in_nobodys_group_is_not_one_of_the_nodes_own(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        assert engine_group(f"unix://{path}") is None
    assert engine_group("tcp://127.0.0.1:1") is None


def test_an_engine_that_does_not_answer_is_not_taken_for_somebody_elses(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        PullFirewall("0badcafe", f"unix://{tmp_path}/nowhere", DEFAULT_POLICY).ensure()


def test_pulls_through_another_engine_leave_no_rules() -> None:
    assert PullFirewall("0badcafe", "tcp://127.0.0.1:1", DEFAULT_POLICY).ensure() is False
