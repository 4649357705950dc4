"""What the doctor says of a node's machine."""

import os
import subprocess
from pathlib import Path

import pytest

from gateway.wire.system import Verdict
from node_agent import doctor
from tests.engines.own_network import own_network


def test_every_row_that_is_not_ok_has_a_cure() -> None:
    rows = doctor.checks()
    assert len({row.name for row in rows}) == len(rows) >= 14
    assert [row.name for row in rows if row.verdict is not Verdict.OK and not row.cure] == []


def test_what_is_missing_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "filesystems").write_text("nodev\ttmpfs\n\text4\n")
    missing = [
        doctor.user(1000),
        doctor.kernel("4.19.0"),
        doctor.cgroups(tmp_path),
        doctor.tool("no-such-tool", "package", "why"),
        doctor.filesystem("overlay", tmp_path / "filesystems", tmp_path),
        doctor.loop_devices(tmp_path / "nowhere"),
        doctor.busybox(tmp_path / "nowhere"),
    ]
    assert {row.verdict for row in missing} == {Verdict.ERROR}
    assert doctor.pressure(tmp_path).verdict is Verdict.WARNING
    assert doctor.filesystem("ext4", tmp_path / "filesystems").verdict is Verdict.OK


@pytest.mark.engine
@own_network
def test_a_sandbox_without_its_firewall_is_an_error() -> None:
    def run(*argv: str) -> None:
        subprocess.run(argv, check=True, timeout=15)

    assert doctor.firewall().verdict is Verdict.OK
    run("ip", "link", "add", "sb00000000abc", "up", "type", "bridge")
    assert "sb00000000abc" in doctor.firewall().found
    run("nft", "add table inet sandbox_00000000")
    assert doctor.firewall().verdict is Verdict.OK
    run("ip", "link", "set", "sb00000000abc", "down")
    assert "cut off" in doctor.firewall().found


def test_cgroups_of_both_versions_are_known(tmp_path: Path) -> None:
    old, new, poor = tmp_path / "1", tmp_path / "2", tmp_path / "3"
    for controller in ("cpu", "memory", "pids"):
        (old / controller).mkdir(parents=True)
    for root, listed in ((new, "cpuset cpu io memory pids"), (poor, "cpu")):
        root.mkdir()
        (root / "cgroup.controllers").write_text(listed)
    assert doctor.cgroups(old).found == "v1 with cpu, memory and pids"
    assert doctor.cgroups(new).found == "v2 with cpu, memory and pids"
    assert doctor.cgroups(poor).found == "v2 without memory, pids"


def test_a_dynamic_busybox_is_refused(tmp_path: Path) -> None:
    (tmp_path / "busybox").write_bytes(b"\x7fELF" + b"\0" * 100 + b"/lib64/ld-linux-x86-64.so.2")
    assert doctor.busybox(tmp_path / "busybox").verdict is Verdict.ERROR


@pytest.mark.parametrize(("kind", "verdict"), [("zfs", Verdict.WARNING), ("ext4", Verdict.OK)])
def test_a_disk_that_sets_nothing_aside_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, verdict: Verdict
) -> None:
    monkeypatch.setattr("node_agent.doctor.LEAST_DISK_MB", 0)
    monkeypatch.setattr("node_agent.doctor.COMFORTABLE_DISK_MB", 0)
    device = tmp_path.stat().st_dev
    mountinfo = tmp_path / "mountinfo"
    mountinfo.write_text(
        "20 1 0:5 / /proc rw shared:1 - proc proc rw\n"
        f"21 1 {os.major(device)}:{os.minor(device)} / / rw,relatime shared:2 - {kind} /dev/a rw\n"
    )
    row = doctor.disk(tmp_path, mountinfo)
    assert row.verdict is verdict
    assert (kind in row.found) is (verdict is Verdict.WARNING)
