"""An image keeps what is installed and nothing of the machine that it was made on."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from node_agent.cli import app
from node_agent.install.prepare import MachineImage, PrepareError, prepare, run_command

KEPT = ("opt/sandbox-fleet/installed", "opt/sandbox-fleet/install.sh", "opt/sandbox-fleet/venv/bin/sandboxes")
KEPT_TOO = ("etc/systemd/system/sandbox-fleet-node.service", "etc/ssh/sshd_config", "etc/hostname")
OWN = (
    "etc/sandbox-fleet/join.token",
    "etc/sandbox-fleet/node.toml",
    "etc/sandbox-fleet/bootstrap.env",
    "var/lib/sandbox-fleet/node/identity.json",
    "etc/ssh/ssh_host_ed25519_key",
    "etc/ssh/ssh_host_ed25519_key.pub",
    "root/.ssh/authorized_keys",
    "home/user/.ssh/authorized_keys",
    "var/lib/cloud/instance/user-data.txt",
    "var/lib/systemd/random-seed",
    "var/log/cloud-init-output.log",
)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Return a file system with a node in it."""
    for name in (*KEPT, *KEPT_TOO, *OWN, "etc/machine-id"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"content of {name}\n")
    wants = tmp_path / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir()
    (wants / "sandbox-fleet-node.service").symlink_to("../sandbox-fleet-node.service")
    return tmp_path


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()}


def test_prepare_keeps_only_what_is_installed(machine: Path) -> None:
    ran: list[Sequence[str]] = []
    prepare(MachineImage(machine, True, ran.append), lambda _: None, dry_run=False)
    assert files(machine) == {*KEPT, *KEPT_TOO, "etc/machine-id"}
    assert (machine / "etc/machine-id").read_text() == ""
    assert ran[0] == ["bash", str(machine / "opt/sandbox-fleet/install.sh"), "--image"]
    assert ran[1][:3] == ["systemctl", "disable", "--now"]


def test_prepare_can_run_twice(machine: Path) -> None:
    image = MachineImage(machine, False, lambda _: None)
    prepare(image, lambda _: None, dry_run=False)
    prepare(image, lambda _: None, dry_run=False)
    assert files(machine) == {*KEPT, *KEPT_TOO, "etc/machine-id"}


def test_a_dry_run_lists_every_step_and_changes_nothing(machine: Path) -> None:
    before = {name: (machine / name).read_bytes() for name in files(machine)}
    done = CliRunner().invoke(app, ["prepare-image", "--root", str(machine), "--dry-run"])
    assert done.exit_code == 0, done.output
    assert {name: (machine / name).read_bytes() for name in files(machine)} == before
    for word in ("--image", "ssh_host_", "machine-id", "etc/sandbox-fleet", "var/lib/cloud"):
        assert word in done.output


def test_prepare_image_needs_yes(machine: Path) -> None:
    before = files(machine)
    done = CliRunner().invoke(app, ["prepare-image", "--root", str(machine)])
    assert done.exit_code == 1
    assert "--yes" in done.output
    assert files(machine) == before


def test_prepare_removes_nothing_where_nothing_was_installed(machine: Path) -> None:
    (machine / "opt/sandbox-fleet/installed").unlink()
    before = files(machine)
    with pytest.raises(PrepareError, match="no complete installation"):
        prepare(MachineImage(machine, True, lambda _: None), lambda _: None, dry_run=False)
    assert files(machine) == before


def test_a_link_is_removed_and_not_followed(machine: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "data").write_text("stays")
    (machine / "var/lib/dhcp").mkdir()
    (machine / "var/lib/dhcp/link").symlink_to(elsewhere)
    prepare(MachineImage(machine, False, lambda _: None), lambda _: None, dry_run=False)
    assert (elsewhere / "data").read_text() == "stays"
    assert not (machine / "var/lib/dhcp/link").is_symlink()


def test_a_step_that_fails_stops_the_preparation(machine: Path) -> None:
    (machine / "opt/sandbox-fleet/install.sh").write_text("echo no space >&2; exit 3\n")
    with pytest.raises(PrepareError, match="no space"):
        prepare(MachineImage(machine, False, run_command), lambda _: None, dry_run=False)
    assert "etc/sandbox-fleet/join.token" in files(machine)
