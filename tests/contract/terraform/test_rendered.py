"""What the render module makes is what the daemons, systemd, cloud-init and the shell understand."""

import os
import shutil
import stat
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from autoscaler.settings import AutoscalerSettings
from gateway.settings import GatewaySettings
from providers.base import DEPLOYMENT_LABEL, OPERATION_LABEL
from providers.hetzner.mapping import MAX_USER_DATA
from providers.hetzner.provider import HetznerProvider
from providers.ucloud.provider import UCloudProvider
from tests import systemd
from tests.borrowed import borrowed
from tests.contract.terraform.conftest import Workspace
from tests.contract.terraform.variables import BEHIND_A_PROXY, FULL, STATE

pytestmark = pytest.mark.timeout(300)

PROVIDERS: Final = {"hetzner": HetznerProvider, "ucloud": UCloudProvider}
CASES: Final = {"full": FULL, "behind-a-proxy": BEHIND_A_PROXY}


@dataclass(frozen=True)
class Rendered:
    """One machine's outputs, and its files below ``root``."""

    outputs: Mapping[str, Any]
    root: Path

    def path(self, name: str) -> Path:
        """Where a file of the machine lies here."""
        return self.root / name.lstrip("/")


@pytest.fixture(scope="module", params=list(CASES))
def rendered(
    request: pytest.FixtureRequest, workspace: Workspace, tmp_path_factory: pytest.TempPathFactory
) -> Rendered:
    folder = tmp_path_factory.mktemp(request.param)
    outputs = workspace.rendered(request.param, CASES[request.param])
    root = folder / "root"
    for name, file in outputs["files"].items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file["content"])
        path.chmod(int(file["mode"], 8))
    return Rendered(outputs, root)


def test_the_gateway_takes_its_settings(rendered: Rendered) -> None:
    settings = GatewaySettings.load(rendered.path("/etc/sandbox-fleet/gateway.toml"), environ={})
    assert str(settings.state_dir) == f"{STATE}/gateway"
    assert settings.port == 8090
    assert settings.host in {"10.20.0.2", "0.0.0.0"}


def test_the_autoscaler_takes_its_settings(rendered: Rendered) -> None:
    settings = AutoscalerSettings.load(rendered.path("/etc/sandbox-fleet/autoscaler.toml"), environ={})
    assert str(settings.token_file) == f"{STATE}/autoscaler/operator.token"
    assert settings.deployment == rendered.outputs["labels"][DEPLOYMENT_LABEL]
    assert {pool.provider for pool in settings.pools} == set(settings.providers)
    if settings.deployment == "prod":
        assert [(offer.type, offer.location) for offer in settings.pools[0].offers] == [
            ("cx43", "fsn1"),
            ("cx33", "nbg1"),
        ]
        assert settings.pools[1].node == {"spool_mb": 1024}
        assert settings.tick_seconds == 5


def test_the_provider_takes_its_table(rendered: Rendered, tmp_path: Path) -> None:
    settings = AutoscalerSettings.load(rendered.path("/etc/sandbox-fleet/autoscaler.toml"), environ={})
    token = tmp_path / "token"
    token.write_text("secret\n")
    for kind, table in settings.providers.items():
        here = {key: str(token) if key.endswith("token_file") else value for key, value in table.items()}
        provider = PROVIDERS[kind].from_settings(here, deployment=settings.deployment, environ={})
        assert provider.kind == kind


def test_the_user_data_fits_and_holds_no_secret(rendered: Rendered) -> None:
    user_data = rendered.outputs["user_data"]
    assert len(user_data.encode()) <= MAX_USER_DATA
    assert OPERATION_LABEL not in rendered.outputs["gateway_labels"]
    assert "HCLOUD_TOKEN" not in user_data


def test_cloud_init_takes_the_user_data(rendered: Rendered, tmp_path: Path) -> None:
    path = tmp_path / "user-data"
    path.write_text(rendered.outputs["user_data"])
    done = subprocess.run(
        [borrowed("cloud-init"), "schema", "--config-file", str(path)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_init_script_writes_every_file_as_it_is(rendered: Rendered, tmp_path: Path) -> None:
    """Run with every path below a directory of its own, and without the installation at its end."""
    script = rendered.outputs["init_script"]
    body, found, install = script.rpartition("\nexec ")
    assert found and install == "/usr/local/lib/sandbox-fleet/install\n"
    here = body.replace('/dev/stdin "$1"', f'/dev/stdin "{tmp_path}$1"')
    assert here != body
    done = subprocess.run(["bash", "-c", here], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    for name, file in rendered.outputs["files"].items():
        path = tmp_path / name.lstrip("/")
        assert path.read_text() == file["content"]
        assert stat.S_IMODE(path.stat().st_mode) == int(file["mode"], 8)


def test_the_scripts_are_clean(rendered: Rendered, tmp_path: Path) -> None:
    init = tmp_path / "init.sh"
    init.write_text(rendered.outputs["init_script"])
    scripts = [
        init,
        *(path for path in rendered.root.rglob("*") if path.is_file() and path.read_bytes()[:11] == b"#!/bin/bash"),
    ]
    assert len(scripts) >= 3
    done = subprocess.run([borrowed("shellcheck"), *scripts], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout


def test_systemd_takes_the_units(rendered: Rendered, tmp_path: Path) -> None:
    machine = tmp_path / "machine"
    shutil.copytree(rendered.root, machine)
    units = [path.name for path in (machine / systemd.UNITS).iterdir() if path.is_file()]
    assert len(units) >= 4
    assert systemd.verify(machine, units) == ""


@pytest.mark.engine
def test_nftables_takes_the_rules(rendered: Rendered) -> None:
    """In a network namespace of its own, twice: the second load replaces the first."""
    path = rendered.path("/etc/nftables.conf")
    if not path.exists():
        assert "private_network" not in BEHIND_A_PROXY
        return
    load = f"nft -f {path} && nft -f {path} && nft list table ip sandbox_fleet"
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", load], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("masquerade") == 1


PROXIED: Final = """
set -eu
ip link set lo up
ip address add 192.0.2.10/32 dev lo
ip address add 10.20.0.2/32 dev lo
echo through >"$1/index.html"
python3 -m http.server --bind 10.20.0.2 --directory "$1" 8090 &
"$4" run --config "$2" --adapter caddyfile &
trap 'kill %1 %2; wait' EXIT
curl --silent --show-error --fail --retry 60 --retry-all-errors --retry-delay 1 --retry-max-time 60 \
    --cacert "$3" https://192.0.2.10/index.html
"""


TLS: Final = {
    "internal": {"mode": "internal"},
    "sslip": {"mode": "sslip", "email": "ops@example.org"},
    "domain": {"mode": "domain", "domain": "fleet.example.org"},
}


@pytest.mark.parametrize("mode", TLS)
def test_the_proxy_takes_its_settings(workspace: Workspace, mode: str, tmp_path: Path) -> None:
    outputs = workspace.rendered(f"caddy-{mode}", {**FULL, "tls": TLS[mode]})
    caddyfile = tmp_path / "Caddyfile"
    caddyfile.write_text(outputs["files"]["/etc/caddy/Caddyfile"]["content"].replace(STATE, str(tmp_path / "state")))
    command = [borrowed("caddy"), "validate", "--adapter", "caddyfile", "--config", str(caddyfile)]
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    caddyfile.write_text(caddyfile.read_text().replace("reverse_proxy", "reverse_poxy"))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0 and "reverse_poxy" in done.stderr


@pytest.mark.engine
def test_a_client_trusts_the_address_without_any_name(rendered: Rendered, tmp_path: Path) -> None:
    """The real proxy with its own authority, in a network namespace that has the gateway's addresses."""
    written = rendered.path("/etc/caddy/Caddyfile")
    if not written.exists():
        assert "ca_file" not in rendered.outputs  # null outputs are not listed
        return
    caddyfile, served = tmp_path / "Caddyfile", tmp_path / "served"
    caddyfile.write_text(written.read_text().replace(f"{STATE}/caddy", str(tmp_path / "caddy")))
    served.mkdir()
    authority = rendered.outputs["ca_file"].replace(f"{STATE}/caddy", str(tmp_path / "caddy"))
    trusted = sorted(Path("/usr/local/share/ca-certificates").glob("*"))
    done = subprocess.run(
        ["unshare", "--net", "bash", "-c", PROXIED, "proxied", served, caddyfile, authority, borrowed("caddy")],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("through\n")
    assert sorted(Path("/usr/local/share/ca-certificates").glob("*")) == trusted, "the machine trusts it now"
