"""What a new node is found is what cloud-init, systemd and the shell understand."""

import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from autoscaler import user_data
from tests import systemd
from tests.borrowed import borrowed

ROOT: Final = Path(__file__).resolve().parents[3]
INSTALL: Final = ROOT / "node_agent/install"
AGENT: Final = "sandbox-fleet-node.service"
BOOTSTRAP: Final = "sandbox-fleet-bootstrap.service"
BOOT: Final = user_data.NodeBoot(
    gateway_url="http://10.0.0.2:8090",
    join_token="sbxj_secret",
    instance="fleet-cpu-abcdefgh2345",
    pool="cpu",
    role="sandbox",
    settings={"runtimes": ["runsc"], "slots": 40, "labels": {"team": "a b"}},
    bundle_sha256="5" * 64,
    default_route="10.0.0.1",
    resolvers=("192.0.2.53",),
)


def schema(document: str, tmp_path: Path) -> "subprocess.CompletedProcess[str]":
    path = tmp_path / "user-data"
    path.write_text(document)
    command = [borrowed("cloud-init"), "schema", "--config-file", str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def test_cloud_init_takes_the_document(tmp_path: Path) -> None:
    done = schema(user_data.for_cloud_init(BOOT), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("change", ["runcmd: 7", "write_files: [{content: nowhere}]", "hostname: [a]"])
def test_cloud_init_refuses_a_wrong_one(tmp_path: Path, change: str) -> None:
    key = change.partition(":")[0]
    document: dict[str, Any] = yaml.safe_load(user_data.for_cloud_init(BOOT))
    document[key] = yaml.safe_load(change)[key]
    done = schema("#cloud-config\n" + yaml.safe_dump(document), tmp_path)
    assert done.returncode != 0 and key in done.stdout + done.stderr


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A node's units, as its user data and the bundle bring them."""
    units = tmp_path / systemd.UNITS
    units.mkdir(parents=True)
    document = yaml.safe_load(user_data.for_cloud_init(BOOT))
    (text,) = [file["content"] for file in document["write_files"] if file["path"].endswith(BOOTSTRAP)]
    (units / BOOTSTRAP).write_text(text)
    (units / AGENT).write_bytes((INSTALL / AGENT).read_bytes())
    return tmp_path


def test_systemd_takes_the_units(machine: Path) -> None:
    assert systemd.verify(machine, [BOOTSTRAP, AGENT]) == ""


def test_systemd_refuses_a_wrong_one(machine: Path) -> None:
    unit = machine / systemd.UNITS / AGENT
    unit.write_text(unit.read_text().replace("Restart=always", "Restat=always"))
    assert "Restat" in systemd.verify(machine, [AGENT])


def scripts() -> dict[str, str]:
    return {
        "install.sh": (INSTALL / "install.sh").read_text(),
        "packages.sh": (INSTALL / "packages.sh").read_text(),
        "bootstrap.sh": (ROOT / "autoscaler/templates/bootstrap.sh").read_text(),
        "ucloud-init.sh": user_data.ucloud_init_script(),
    }


@pytest.mark.parametrize("name", scripts())
def test_scripts_are_clean(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(scripts()[name])
    for command in (["bash", "-n", str(path)], [borrowed("shellcheck"), str(path)]):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
