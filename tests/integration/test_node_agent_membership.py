"""The node's membership: registration, heartbeats, and what the gateway orders by them."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from gateway.wire.errors import ErrorCode
from gateway.wire.nodes import HeartbeatAnswer, Removal
from gateway.wire.states import DeathReason
from node_agent.host.process import CommandError
from tests.fakes.gateway import Gateway, error
from tests.fakes.node import served
from tests.fakes.runtime import FakeRuntime
from tests.fakes.scripted import Drop


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "node"
    fake = FakeRuntime(tmp_path / "node" / "fake")
    for sandbox in fake.found():
        fake.delete(sandbox.order.sandbox_id)


@pytest.fixture(autouse=True)
def fast_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node_agent.membership.FIRST_BACKOFF", 0.01)


def test_registers_once_and_keeps_its_credential_for_root_only(root: Path) -> None:
    with Gateway() as gateway:
        for _ in range(2):
            with served(root, gateway=gateway):
                pass
    assert len(gateway.registered) == 1
    assert set(gateway.node_tokens) == {"join-1", "credential"}
    assert (root / "identity.json").stat().st_mode & 0o777 == 0o600
    request = gateway.registered[0]
    assert request.total.memory_mb == 10_000
    assert [report.name for report in request.runtimes] == ["runsc"]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_a_disk_that_runs_full_takes_no_new_sandbox_and_is_reported(tmp_path: Path) -> None:
    disk, image = tmp_path / "disk", tmp_path / "disk.ext4"
    disk.mkdir()
    with image.open("wb") as file:
        file.truncate(160 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(disk)], check=True)
    try:
        with served(disk / "node", given={"least_disk_mb": 40}) as node:
            assert node.create("before").status_code == 200
            with (disk / "ballast").open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, 120 << 20)
            refused = node.create("late")
            assert (refused.status_code, refused.json()["code"]) == (503, "node_refused")
            node.node.heartbeats.poke()
            node.gateway.wait_for("it is reported", lambda: node.gateway.heartbeats[-1].draining)
            assert node.exec("before", ["true"]).json()["session"]["exit_code"] == 0
            assert node.create("before", generation=2).status_code == 200
            (disk / "ballast").unlink()
            node.node.heartbeats.poke()
            node.gateway.wait_for("it has room again", lambda: not node.gateway.heartbeats[-1].draining)
            assert node.create("late").status_code == 200
            node.remove_all()
    finally:
        subprocess.run(["umount", str(disk)], check=True)


class BreakableFirewall:
    """Cannot be put in place while ``broken``."""

    table = "sandbox_breakable"

    def __init__(self) -> None:
        self.broken = False
        self.problem: str | None = None

    def check(self) -> bool:
        if self.broken:
            raise CommandError(["nft"], "failed")
        self.problem = None
        return False

    def cut(self, problem: str) -> None:
        self.problem = problem


def test_a_node_without_its_firewall_takes_no_new_sandbox_and_reports_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    firewall = BreakableFirewall()
    monkeypatch.setattr(FakeRuntime, "firewalls", lambda _: [firewall])
    with served(root) as node:
        assert node.create("before").status_code == 200
        firewall.broken = True
        node.node.heartbeats.poke()  # its heartbeat has the rules looked at
        node.gateway.wait_for("it is reported", lambda: node.gateway.heartbeats[-1].draining)
        refused = node.create("late")
        assert (refused.status_code, refused.json()["code"]) == (503, "node_refused")
        assert node.exec("before", ["true"]).json()["session"]["exit_code"] == 0
        firewall.broken = False
        node.gateway.wait_for("it stands again", lambda: not node.gateway.heartbeats[-1].draining)
        assert node.create("late").status_code == 200
        node.remove_all()


def test_heartbeats_are_complete_and_counted(root: Path) -> None:
    with served(root) as node:
        node.create("a")
        node.exec("a", ["sleep", "60"], wait=0)
        node.gateway.wait_for("running", lambda: node.gateway.reported("a") == "running")
        node.node.heartbeats.poke()
        node.gateway.wait_for("a live exec", lambda: node.gateway.heartbeats[-1].inventory[0].live_execs == 1)
        beats = node.gateway.heartbeats
        assert [beat.sequence for beat in beats] == list(range(1, len(beats) + 1))
        assert len({beat.boot_id for beat in beats}) == 1
        assert beats[-1].reserved.memory_mb == 64
        node.node.heartbeats.poke()
        node.gateway.wait_for("the images", lambda: beats[-1].images == ["sha256:fake"])


def test_a_death_is_reported_at_once(root: Path) -> None:
    with Gateway() as gateway, served(root, gateway=gateway) as node:
        gateway.wanted = HeartbeatAnswer(heartbeat_seconds=3600.0)
        node.create("a")
        node.runtime.die("a", DeathReason.OOM, "too much")
        gateway.wait_for("failed", lambda: gateway.reported("a") == "failed")
        item = gateway.heartbeats[-1].inventory[0]
        assert (item.reason, item.detail, item.exit_code) == (DeathReason.OOM, "too much", 137)
        assert gateway.heartbeats[-1].reserved.memory_mb == 0


def test_an_orphan_is_removed_in_that_generation_only(root: Path) -> None:
    with served(root) as node:
        node.create("old")
        node.create("new", generation=2)
        node.gateway.wanted = HeartbeatAnswer(
            heartbeat_seconds=0.05,
            remove=[Removal(sandbox_id="old", generation=1), Removal(sandbox_id="new", generation=1)],
        )
        node.node.heartbeats.poke()
        node.gateway.wait_for("old is gone", lambda: node.gateway.reported("old") is None)
        assert node.gateway.reported("new") == "running"


def test_a_draining_node_refuses_new_ones_and_goes_on(root: Path) -> None:
    with served(root) as node:
        node.create("here")
        node.gateway.wanted = HeartbeatAnswer(heartbeat_seconds=0.05, draining=True)
        node.node.heartbeats.poke()
        node.gateway.wait_for("draining", lambda: node.gateway.heartbeats[-1].draining)
        answer = node.create("more")
        assert (answer.status_code, answer.json()["code"]) == (503, "node_refused")
        assert node.exec("here", ["true"]).json()["session"]["exit_code"] == 0
        assert node.create("here", generation=2).status_code == 200
        assert requests.get(f"{node.url}/healthz", timeout=10).json()["state"] == "draining"


def test_sandboxes_outlive_an_unreachable_gateway(root: Path) -> None:
    with served(root) as node:
        node.create("a")
        before = len(node.gateway.heartbeats)
        node.gateway.node_failures = [Drop()] * 3
        node.node.heartbeats.poke()
        node.gateway.wait_for("it is back", lambda: len(node.gateway.heartbeats) > before)
        assert node.exec("a", ["true"]).json()["session"]["exit_code"] == 0


def test_a_refused_credential_registers_again_with_a_new_join_token(root: Path) -> None:
    with served(root) as node:
        node.create("a")
        node.gateway.node_failures = [error(ErrorCode.UNAUTHORIZED)]
        node.node.heartbeats.poke()
        node.gateway.wait_for("the refusal", lambda: not node.gateway.node_failures)
        assert len(node.gateway.registered) == 1
        (root / "join-token").write_text("join-2")
        node.node.heartbeats.poke()
        node.gateway.wait_for("registered again", lambda: len(node.gateway.registered) == 2)
        node.gateway.wait_for("a heartbeat again", lambda: node.gateway.node_tokens[-1] == "credential")
        assert "join-2" in node.gateway.node_tokens
        assert node.exec("a", ["true"]).status_code == 200


def test_every_call_is_refused_before_registration(root: Path) -> None:
    with Gateway() as gateway:
        gateway.node_failures = [Drop()] * 1000
        with served(root, gateway=gateway) as node:
            assert node.create("a").status_code == 401
            assert requests.get(f"{node.url}/healthz", timeout=10).json() == {
                "ok": True,
                "node_id": None,
                "state": "starting",
            }
