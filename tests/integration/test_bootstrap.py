"""A machine becomes a node: a real gateway serves a real bundle, and the real scripts install and start the agent.

The machine is this one: the scripts get other directories than a VM's, and a stand-in takes the place of the packages.
"""

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests

from autoscaler import user_data
from gateway.bundle import sums_of
from gateway.client import GatewayClient
from gateway.wire.errors import ErrorCode
from gateway.wire.nodes import BundleFile, BundleManifest, JoinTokenRequest, NodeRecord
from tests.gateway_process import GatewayProcess, gateway_process, new_token, sandboxes

pytestmark = pytest.mark.timeout(300)
ROOT = Path(__file__).parents[2]
INSTANCE = "vm-1"


@dataclass(frozen=True)
class Service:
    """A gateway with a bundle."""

    gateway: GatewayProcess
    operator: GatewayClient
    bundle: Path

    def join_token(self, instance: str = INSTANCE, operation: str = "op-1") -> str:
        request = JoinTokenRequest(instance=instance, pool="cpu", operation_id=operation)
        return self.operator.join_token(request).token

    def get(self, name: str, token: str) -> requests.Response:
        headers = {"Authorization": f"Bearer {token}"}
        return requests.get(f"{self.gateway.url}/v1/bundle/{name}", headers=headers, timeout=30)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    state = tmp_path_factory.mktemp("gateway")
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    made = sandboxes(
        "gateway", "bundle", "--state-dir", str(state), "--python", python, "--source", str(ROOT), "--json"
    )
    assert made.returncode == 0, made.stderr
    operator = new_token(state, "operator")
    with gateway_process(state) as gateway:
        yield Service(gateway, GatewayClient(gateway.url, operator), state / "bundle")


def code_of(answer: requests.Response) -> ErrorCode:
    return ErrorCode(answer.json()["code"])


def test_the_manifest_describes_every_file(service: Service) -> None:
    manifest = service.operator.bundle()
    listed = {item.file: item for item in manifest.files}
    on_disk = {path.name for path in service.bundle.iterdir()} - {"manifest.json", "SHA256SUMS"}
    assert set(listed) == on_disk
    assert {"install.sh", "packages.sh", "sandbox-fleet-node.service"} < on_disk
    for name, item in listed.items():
        data = (service.bundle / name).read_bytes()
        assert (hashlib.sha256(data).hexdigest(), len(data)) == (item.sha256, item.size)
    assert manifest.sha256 == hashlib.sha256((service.bundle / "SHA256SUMS").read_bytes()).hexdigest()
    assert any(item.python == "py3" for item in manifest.files)


def test_an_unused_join_token_opens_the_bundle_and_stays_unused(service: Service) -> None:
    token = service.join_token("vm-a")
    assert service.get("install.sh", token).content == (service.bundle / "install.sh").read_bytes()
    assert service.get("manifest", token).status_code == 200


def test_a_token_of_an_older_order_does_not_open_the_bundle(service: Service) -> None:
    old = service.join_token("vm-b", "op-1")
    service.join_token("vm-b", "op-2")
    refused = service.get("install.sh", old)
    assert (refused.status_code, code_of(refused)) == (401, ErrorCode.UNAUTHORIZED)


@pytest.mark.parametrize("name", ["..%2Fgateway.db", "manifest.json", "nothing", "%2Fetc%2Fpasswd"])
def test_only_what_the_manifest_lists_is_served(service: Service, name: str) -> None:
    answer = service.get(name, service.join_token("vm-c"))
    assert (answer.status_code, code_of(answer)) == (404, ErrorCode.NOT_FOUND)


def test_a_file_of_another_size_is_not_served(service: Service) -> None:
    path = service.bundle / "packages.sh"
    whole = path.read_bytes()
    path.write_bytes(whole + b"#")
    try:
        answer = service.get("packages.sh", service.join_token("vm-d"))
        assert (answer.status_code, code_of(answer)) == (404, ErrorCode.NOT_FOUND)
    finally:
        path.write_bytes(whole)


@dataclass(frozen=True)
class Machine:
    """Directories of a machine that is to become a node."""

    directory: Path

    @property
    def environment(self) -> dict[str, str]:
        places = {name: str(self.directory / name.lower()) for name in ("CONFIG", "PREFIX", "RUN", "UNITS")}
        return {f"SANDBOX_FLEET_{name}": path for name, path in places.items()} | {"PATH": os.environ["PATH"]}

    def order(self, service: Service, token: str, **changes: object) -> None:
        """What the provider would give a new machine: the files of its user data."""
        boot = user_data.NodeBoot(
            gateway_url=service.gateway.url,
            join_token=token,
            instance=INSTANCE,
            pool="cpu",
            role="sandbox",
            settings={
                "root": str(self.directory / "node"),
                "port": 0,
                "join_token_file": str(self.directory / "config/join.token"),
                "boot_stages_file": str(self.directory / "run/boot-stages"),
                "runtimes": ["runsc"],
                "memory_mb": 512,
                "disk_mb": 1024,
            },
            **{"bundle_sha256": service.operator.bundle().sha256, **changes},
        )
        for name in ("config", "units"):
            (self.directory / name).mkdir(exist_ok=True)
        for name, content in json.loads(user_data.for_ucloud(boot))["files"].items():
            (self.directory / "config" / name).write_text(content)

    def bootstrap(self) -> "subprocess.CompletedProcess[str]":
        script = ROOT / "autoscaler/templates/bootstrap.sh"
        return subprocess.run(
            ["bash", str(script)], env=self.environment, capture_output=True, text=True, timeout=200, check=False
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def no_packages(service: Service) -> Iterator[None]:
    """A bundle whose script for the distribution's packages brings none: they belong to this machine, not to a test."""
    kept = {path.name: path.read_bytes() for path in service.bundle.iterdir() if path.suffix != ".whl"}
    (service.bundle / "packages.sh").write_text("#!/bin/sh\n")
    resummed(service.bundle)
    yield
    for name, content in kept.items():
        (service.bundle / name).write_bytes(content)


def resummed(bundle: Path) -> None:
    """Writes the manifest and the digests again."""
    manifest = BundleManifest.model_validate_json((bundle / "manifest.json").read_bytes())
    files = [described(bundle / item.file, item.python) for item in manifest.files]
    (bundle / "SHA256SUMS").write_text(sums_of(files))
    digest = hashlib.sha256(sums_of(files).encode()).hexdigest()
    new = manifest.model_copy(update={"files": files, "sha256": digest})
    (bundle / "manifest.new").write_text(new.model_dump_json())
    (bundle / "manifest.new").replace(bundle / "manifest.json")


def described(path: Path, python: str | None) -> BundleFile:
    data = path.read_bytes()
    return BundleFile(file=path.name, sha256=hashlib.sha256(data).hexdigest(), size=len(data), python=python)


def test_another_bundle_than_the_ordered_one_is_not_run(service: Service, machine: Machine) -> None:
    machine.order(service, service.join_token(), bundle_sha256="0" * 64)
    done = machine.bootstrap()
    assert done.returncode != 0
    assert "SHA256SUMS" in done.stdout + done.stderr
    assert not (machine.directory / "prefix").exists()


@pytest.mark.usefixtures("no_packages")
def test_a_file_that_was_changed_on_the_way_is_not_installed(service: Service, machine: Machine) -> None:
    machine.order(service, service.join_token())
    wheel = next(service.bundle.glob("typer-*.whl"))
    whole = wheel.read_bytes()
    wheel.write_bytes(b"\0" + whole[1:])
    try:
        done = machine.bootstrap()
    finally:
        wheel.write_bytes(whole)
    assert done.returncode != 0
    assert wheel.name in done.stdout + done.stderr
    assert not (machine.directory / "prefix/venv").exists()


@pytest.mark.engine
@pytest.mark.usefixtures("no_packages")
def test_a_machine_becomes_a_node_and_reports_its_boot_stages(service: Service, machine: Machine) -> None:
    machine.order(service, service.join_token())
    done = machine.bootstrap()
    assert done.returncode == 0, done.stdout + done.stderr
    assert (machine.directory / "units/sandbox-fleet-node.service").exists()
    environment = (machine.directory / "config/node.env").read_text()
    assert environment == "SANDBOXES_NODE_HOST=127.0.0.1\n"
    key, _, value = environment.strip().partition("=")

    command = [str(machine.directory / "prefix/venv/bin/sandboxes"), "node", "run", "--config"]
    command.append(str(machine.directory / "config/node.toml"))
    with (machine.directory / "agent.log").open("wb") as log:
        agent = subprocess.Popen(
            command, env={**machine.environment, key: value}, cwd=machine.directory, stdout=log, stderr=log
        )
    try:
        node = heard(service, machine)
    finally:
        agent.terminate()
        agent.wait(30)
    assert (node.instance, node.operation_id) == (INSTANCE, "op-1")
    stages = node.stages
    assert stages is not None
    times = [stages.cloud_init, stages.engines, stages.bundle, stages.agent, stages.registered, stages.heartbeat]
    known = [moment for moment in times if moment is not None]
    assert known == sorted(known) and len(known) == 6, times
    late = service.get("install.sh", (machine.directory / "config/join.token").read_text().strip())
    assert code_of(late) is ErrorCode.TOKEN_USED

    # A second time there is nothing to fetch, as on an image that was prepared.
    again = machine.bootstrap()
    assert again.returncode == 0, again.stdout + again.stderr


def heard(service: Service, machine: Machine) -> NodeRecord:
    deadline = time.monotonic() + 60
    while True:
        nodes = [node for node in service.operator.nodes() if node.heartbeat_at is not None]
        if nodes:
            return nodes[0]
        assert time.monotonic() < deadline, (machine.directory / "agent.log").read_text()
        time.sleep(0.1)
