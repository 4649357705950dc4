"""Terraform's own checks of the modules, offline."""

import json
import subprocess
from pathlib import Path

import pytest

from autoscaler.settings import AutoscalerSettings
from gateway.settings import GatewaySettings
from providers.hetzner.provider import HetznerProvider
from tests.contract.terraform.conftest import Workspace

MODULES = ("modules/render", "modules/hetzner", "examples/hetzner", "examples/ucloud")
# Many starts of Terraform and of the stand-in, on a machine that may be busy.
pytestmark = pytest.mark.timeout(300)


def output(done: subprocess.CompletedProcess[str]) -> str:
    return done.stdout + done.stderr


def test_the_files_have_their_one_format(workspace: Workspace) -> None:
    done = workspace.terraform(".", "fmt", "-check", "-recursive", "-diff")
    assert done.returncode == 0, output(done)


@pytest.mark.parametrize("module", MODULES)
def test_it_is_valid(workspace: Workspace, module: str) -> None:
    workspace.ready(module)
    done = workspace.terraform(module, "validate", "-no-color")
    assert done.returncode == 0, output(done)


@pytest.mark.parametrize("module", MODULES)
def test_its_own_tests_pass(workspace: Workspace, module: str) -> None:
    workspace.ready(module)
    done = workspace.terraform(module, "test", "-no-color")
    assert done.returncode == 0, output(done)
    assert " passed, 0 failed." in done.stdout, output(done)


def test_the_outputs_of_the_hetzner_module_are_settings(workspace: Workspace, tmp_path: Path) -> None:
    """Planned against a mocked provider; both daemons and the provider take what would be put on the machine."""
    workspace.ready("modules/hetzner")
    done = workspace.terraform("modules/hetzner", "test", "-json", "-verbose")
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    plans = [message["test_plan"]["output_changes"] for message in messages if "test_plan" in message]
    plans = [outputs for outputs in plans if "gateway_toml" in outputs]  # where no refusal is tested
    assert len(plans) >= 5, done.stderr
    token = tmp_path / "token"
    token.write_text("secret\n")
    for number, plan in enumerate(plans):
        values = {name: change["after"] for name, change in plan.items()}
        folder = tmp_path / str(number)
        folder.mkdir()
        for name in ("gateway", "autoscaler"):
            (folder / f"{name}.toml").write_text(values[f"{name}_toml"])
        gateway = GatewaySettings.load(folder / "gateway.toml", environ={})
        settings = AutoscalerSettings.load(folder / "autoscaler.toml", environ={})
        assert settings.gateway_url == f"http://{gateway.host}:{gateway.port}"
        assert gateway.host == values["gateway_private_ip"]
        table = {**settings.providers["hetzner"], "token_file": str(token)}
        assert (table["networks"], table["ssh_keys"]) == ([values["network_id"]], [values["ssh_key_id"]])
        HetznerProvider.from_settings(table, deployment=settings.deployment, environ={})
