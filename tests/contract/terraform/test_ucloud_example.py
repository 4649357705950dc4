"""The example for UCloud, applied and destroyed for real against the emulator."""

import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from autoscaler.settings import AutoscalerSettings
from gateway.settings import GatewaySettings
from providers.base import Phase
from providers.ucloud.provider import UCloudProvider
from tests.contract.terraform.conftest import Workspace
from tests.fakes.ucloud.auth import API_TOKEN
from tests.fakes.ucloud.lab import CPU, FOLDER, Lab, lab

MODULE = "examples/ucloud"
STEP_SECONDS = 10.0


@pytest.fixture
def account() -> Iterator[Lab]:
    """The emulator, whose time passes by itself for as long as the test runs."""
    ended = threading.Event()
    with lab() as made:

        def pass_time() -> None:
            while not ended.wait(0.1):
                made.remote.advance(STEP_SECONDS)

        clock = threading.Thread(target=pass_time)
        clock.start()
        try:
            yield made
        finally:
            ended.set()
            clock.join(30)


@pytest.mark.timeout(300)
def test_apply_orders_one_machine_and_destroy_ends_it(account: Lab, workspace: Workspace, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(API_TOKEN)
    values = tmp_path / "values.json"
    values.write_text(
        json.dumps(
            {
                "base_url": account.url,
                "api_token_file": str(token),
                "product": CPU,
                "gateway_folder": FOLDER,
                "worker_folder": "/12/bootstrap/worker1",
                "private_network": "77",
                "wheel_url": "https://files.example.org/sandbox_fleet-0.1.0-py3-none-any.whl",
                "wheel_sha256": "a" * 64,
            }
        )
    )
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    words = ("-no-color", "-auto-approve", "-input=false", f"-var-file={values}")
    workspace.ready(MODULE)
    machines = account.provider("fleet-gateway")

    for _ in range(2):  # a second apply finds what the first has ordered
        done = workspace.terraform(MODULE, "apply", *words, PATH=path)
        assert done.returncode == 0, done.stdout + done.stderr
        (machine,) = machines.list().instances
        assert machine.phase is Phase.RUNNING
    assert account.provider("fleet").list().instances == ()
    order = workspace.path / MODULE / "build" / "order.toml"
    assert API_TOKEN not in order.read_text()

    outputs = json.loads(workspace.terraform(MODULE, "output", "-json").stdout)
    for name in ("gateway", "autoscaler"):
        (tmp_path / f"{name}.toml").write_text(outputs[f"{name}_toml"]["value"])
    assert GatewaySettings.load(tmp_path / "gateway.toml", environ={}).port == 8090
    settings = AutoscalerSettings.load(tmp_path / "autoscaler.toml", environ={})
    assert settings.node_gateway_url == outputs["node_gateway_url"]["value"] == "http://fleet-gateway:8090"
    table = {**settings.providers["ucloud"], "api_token_file": str(token)}
    UCloudProvider.from_settings(table, deployment=settings.deployment, environ={})
    script = workspace.path / MODULE / "build" / "init.sh"
    assert script.read_text() == outputs["init_script"]["value"]

    done = workspace.terraform(MODULE, "destroy", *words, PATH=path)
    assert done.returncode == 0, done.stdout + done.stderr
    (machine,) = machines.list().instances
    assert machine.phase is Phase.GONE
