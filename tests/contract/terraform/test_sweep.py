"""The sweep at destroy, against the emulated API and with a stand-in for ssh that records its arguments."""

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autoscaler.core import naming
from providers.base import DEPLOYMENT_LABEL, OPERATION_LABEL, ROLE_LABEL, Create
from providers.hetzner.provider import HetznerProvider
from tests.contract.terraform.conftest import TERRAFORM, Workspace
from tests.fakes.hetzner.control import Control
from tests.fakes.hetzner.emulator import emulator

SWEEP = TERRAFORM / "modules" / "hetzner" / "sweep.py"
HOST = "192.0.2.10"


@pytest.fixture
def cloud() -> Iterator[Control]:
    with emulator(pace=200) as made:
        yield made


@pytest.fixture
def ssh(tmp_path: Path) -> Path:
    """A program ``ssh`` that writes its arguments down and exits as ``SSH_ANSWER`` says."""
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >"{tmp_path}/told"\nexit "${{SSH_ANSWER:-0}}"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return tmp_path / "told"


def sweep(cloud: Control, ssh: Path, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": f"{ssh.parent / 'bin'}:{os.environ['PATH']}",
        "SWEEP_DEPLOYMENT": "prod",
        "SWEEP_HOST": HOST,
        "SWEEP_PROTECTED": "false",
        "SWEEP_PAUSE_SECONDS": "0.05",
        "SWEEP_SECONDS": "20",
        "HCLOUD_TOKEN": cloud.token,
        "HCLOUD_ENDPOINT": cloud.api,
        **more,
    }
    return subprocess.run(
        [sys.executable, SWEEP], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def worker(cloud: Control, deployment: str, operation: str) -> str:
    """One worker, as the autoscaler makes it."""
    provider = HetznerProvider.from_settings(
        {"endpoint": cloud.api, "ssh_keys": ["fleet"]}, deployment=deployment, environ={"HCLOUD_TOKEN": cloud.token}
    )
    want = Create(
        name=naming.instance_name(deployment, "cpu", operation),
        operation_id=operation,
        deployment=deployment,
        pool="cpu",
        type="cx43",
        location="fsn1",
        image="debian-12",
        user_data="",
        labels=naming.labels(deployment, "cpu", "sandbox", operation),
    )
    return provider.create(want).name


def alive(cloud: Control) -> set[str]:
    """Names of servers that are there."""
    return {row["name"] for row in cloud.ask("audit")["servers"] if row["gone_at"] is None}


def test_it_deletes_the_fleets_workers_and_nothing_else(cloud: Control, ssh: Path) -> None:
    mine = {worker(cloud, "prod", f"op{number:010d}") for number in range(60)}  # more than a page
    others = {worker(cloud, "prod2", "opa"), worker(cloud, "staging", "opb")}
    assert alive(cloud) == mine | others
    done = sweep(cloud, ssh)
    assert done.returncode == 0, done.stdout + done.stderr
    assert alive(cloud) == others


def test_the_gateways_own_machine_stays(cloud: Control, ssh: Path) -> None:
    """Terraform deletes it itself; it has the fleet's label and none of an operation."""
    gateway = worker(cloud, "prod", "opa")
    cloud.ask("server", name=gateway, labels={DEPLOYMENT_LABEL: "prod", ROLE_LABEL: "gateway"})
    done = sweep(cloud, ssh)
    assert done.returncode == 0, done.stderr
    assert alive(cloud) == {gateway}


def test_volumes_and_addresses_of_workers_go_too(cloud: Control, ssh: Path) -> None:
    labels = {DEPLOYMENT_LABEL: "prod", OPERATION_LABEL: "opa"}
    kept = cloud.ask("add", kind="volumes", row={"name": "state", "labels": {DEPLOYMENT_LABEL: "prod"}})
    cloud.ask("add", kind="volumes", row={"name": "scratch", "labels": labels})
    done = sweep(cloud, ssh)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row["id"] for row in cloud.ask("audit")["volumes"]] == [kept["id"]]


def test_the_daemon_is_stopped_before_anything_is_deleted(cloud: Control, ssh: Path) -> None:
    name = worker(cloud, "prod", "opa")
    done = sweep(cloud, ssh, SSH_ANSWER="255", SWEEP_SSH_ARGS="-i key")
    assert done.returncode == 1
    assert "SWEEP_WITHOUT_GATEWAY" in done.stderr
    assert alive(cloud) == {name}
    told = ssh.read_text().splitlines()
    assert told[-4:-1] == ["-i", "key", f"root@{HOST}"]
    stop, _, release = told[-1].partition(" || exit 3; ")
    assert stop == "systemctl disable --now sandbox-autoscaler.path sandbox-autoscaler.service"
    assert "sandboxes autoscaler release --config /etc/sandbox-fleet/autoscaler.toml" in release


def test_a_gateway_that_is_gone_can_be_left_out(cloud: Control, ssh: Path) -> None:
    worker(cloud, "prod", "opa")
    done = sweep(cloud, ssh, SSH_ANSWER="255", SWEEP_WITHOUT_GATEWAY="yes")
    assert done.returncode == 0, done.stderr
    assert alive(cloud) == set()
    assert not ssh.exists()


def test_a_protected_fleet_is_not_touched(cloud: Control, ssh: Path) -> None:
    name = worker(cloud, "prod", "opa")
    done = sweep(cloud, ssh, SWEEP_PROTECTED="true")
    assert done.returncode == 1
    assert "terraform apply -var protect=false" in done.stderr
    assert alive(cloud) == {name}
    assert not ssh.exists()


def test_a_bad_token_is_told_at_once(cloud: Control, ssh: Path) -> None:
    done = sweep(cloud, ssh, HCLOUD_TOKEN="wrong")
    assert done.returncode == 1
    assert "401" in done.stderr


def test_trouble_of_the_api_is_waited_out(cloud: Control, ssh: Path) -> None:
    worker(cloud, "prod", "opa")
    for fault in (
        {"do": "error", "on": "GET /servers", "status": 429, "code": "rate_limit_exceeded"},
        {"do": "html", "on": "GET /servers", "status": 503},
        {"do": "drop", "on": "GET /servers"},
        {"do": "error", "on": "DELETE /servers/*", "status": 423, "code": "locked"},
        {"do": "lost", "on": "DELETE /servers/*"},
    ):
        cloud.ask("fault", **fault)
    done = sweep(cloud, ssh)
    assert done.returncode == 0, done.stdout + done.stderr
    for sign in ("429", "503", "423"):
        assert sign in done.stdout
    assert alive(cloud) == set()


DESTROYED = """
run "made_and_destroyed" {
  variables {
    protect = false
  }
  assert {
    condition     = terraform_data.sweep.output.deployment == "prod"
    error_message = "the sweep is made"
  }
}
"""


@pytest.mark.timeout(300)
def test_a_destroy_begins_with_the_sweep(cloud: Control, ssh: Path, workspace: Workspace) -> None:
    """Terraform applies and destroys the module with a mocked provider; the sweep at the destroy is the real one."""
    worker(cloud, "prod", "opa")
    module = "swept/hetzner"
    shutil.copytree(workspace.path / "modules" / "hetzner", workspace.path / module)
    shutil.copytree(workspace.path / "modules" / "render", workspace.path / "swept" / "render")
    tests = workspace.path / module / "tests" / "hetzner.tftest.hcl"
    given = tests.read_text().partition("\nrun ")[0]
    tests.write_text(given.replace("override_during = plan", "") + DESTROYED)
    workspace.ready(module)
    done = workspace.terraform(
        module,
        "test",
        "-no-color",
        PATH=f"{ssh.parent / 'bin'}:{os.environ['PATH']}",
        HCLOUD_TOKEN=cloud.token,
        HCLOUD_ENDPOINT=cloud.api,
        SWEEP_PAUSE_SECONDS="0.05",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert alive(cloud) == set()
    assert ssh.exists()
