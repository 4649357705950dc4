"""The whole path in each cloud: an empty pool, an order, a machine that becomes a node, a sandbox, and the way back.

Gateway and autoscaler are processes, the cloud is its emulator, and an emulated machine starts a node agent from the
user data that it was ordered with, and from nothing else.
"""

import base64
import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from string import Template
from typing import Protocol

import pytest
import requests
import yaml

from autoscaler.bootstrap import ucloud_init_script
from gateway.client import GatewayClient
from gateway.services.bundle import sums_of
from gateway.wire.bundle import BundleFile, BundleManifest
from gateway.wire.states import NodeState, SandboxState
from tests.fakes import hetzner
from tests.fakes.booting import Booter, Machine
from tests.fakes.gateway_process import GatewayProcess, gateway_process, new_token, sandboxes
from tests.fakes.ucloud import lab
from tests.fakes.ucloud.auth import API_TOKEN, PROJECT
from tests.integration.autoscaler_node import COMMAND
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(180)
ROOT = Path(__file__).parents[2]
CONFIG = "/etc/sandbox-fleet/"
SPEED = 60.0
"""Seconds of the cloud for each real one."""
SECONDS = 60.0
LIFE = ["planned", "calling", "booting", "running", "ready", "draining", "deleting", "gone", "forgotten"]
"""What the autoscaler's journal tells of one machine."""


class Nodes:
    """Machines whose operating system does what the user data says: it starts a node agent over the fake runtime."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._agents: dict[str, subprocess.Popen[bytes]] = {}
        self.booted: list[str] = []

    def address(self, name: str) -> str | None:
        return "127.0.0.1"

    def boot(self, machine: Machine) -> None:
        home = self._root / machine.name
        home.mkdir(parents=True)
        for name, content in told(machine.user_data).items():
            (home / name).write_bytes(content)
        # All machines share one file system and one address, so each gets other places than the user data names.
        places = {
            "ROOT": str(home / "node"),
            "JOIN_TOKEN_FILE": str(home / "join.token"),
            "BOOT_STAGES_FILE": str(home / "boot-stages"),
            "HOST": machine.ipv4,
            "PORT": "0",
        }
        with (home / "log").open("wb") as log:
            self._agents[machine.name] = subprocess.Popen(
                [Template(word).safe_substitute(dir=home) for word in COMMAND],
                env={**os.environ, **{f"SANDBOXES_NODE_{key}": value for key, value in places.items()}},
                stdout=log,
                stderr=log,
            )
        self.booted.append(machine.name)

    def stop(self, name: str) -> None:
        agent = self._agents.pop(name, None)
        if agent is not None:
            agent.kill()  # a machine that is deleted says no good-bye
            agent.wait(20)

    def running(self) -> list[str]:
        return sorted(self._agents)


def told(user_data: str) -> dict[str, bytes]:
    """Files of the node's configuration, as the machine's own way of starting would write them."""
    if not user_data.startswith("#cloud-config"):
        return {name: text.encode() for name, text in json.loads(user_data)["files"].items()}
    files = yaml.safe_load(user_data)["write_files"]
    return {
        file["path"].removeprefix(CONFIG): base64.b64decode(file["content"])
        for file in files
        if file["path"].startswith(CONFIG)
    }


class Cloud(Protocol):
    """One emulated account."""

    settings: str
    """TOML of the provider's table and of the pool's offers and image."""
    environ: dict[str, str]

    def here(self) -> list[str]:
        """Operations whose machines are there now, as the cloud itself knows it; one for each machine."""

    def ever(self) -> list[str]:
        """Operations of all machines that there ever were."""

    def cost(self) -> float:
        """Seconds paid for until now."""

    def later(self) -> None:
        """Lets two hours pass."""

    def lose_answer(self) -> None:
        """The next order is carried out, and its answer is lost."""


class Hetzner:
    def __init__(self, control: hetzner.Control) -> None:
        self._control = control
        self.environ = {"HCLOUD_TOKEN": control.token}
        self.settings = f"""
[providers.cloud]
kind = "hetzner"
endpoint = "{control.api}"
ssh_keys = ["fleet"]
leftovers_seconds = 0
[[pools]]
image = "debian-12"
offers = [{{ type = "cpx62", location = "fsn1" }}]
billing_margin_seconds = 3600
"""

    def here(self) -> list[str]:
        return [server["labels"]["sandbox-fleet/op"] for server in self._control.here()]

    def ever(self) -> list[str]:
        return [server["labels"]["sandbox-fleet/op"] for server in self._control.audit()["servers"]]

    def cost(self) -> float:
        return float(sum(server["billed_seconds"] for server in self._control.audit()["servers"]))

    def later(self) -> None:
        self._control.advance(7200)

    def lose_answer(self) -> None:
        self._control.fault("lost", on="POST /servers")


class UCloud:
    def __init__(self, account: lab.Lab) -> None:
        self._remote = account.remote
        self._remote.do("files", **{f"{lab.FOLDER}/init.sh": ucloud_init_script()})
        self.environ = {"API": API_TOKEN}
        self.settings = f"""
[providers.cloud]
kind = "ucloud"
base_url = "{account.url}"
project = "{PROJECT}"
api_token_env = "API"
bootstrap_folder = "{lab.FOLDER}"
[[pools]]
image = "vm-ubuntu/24.04"
offers = [{{ type = "{lab.CPU}", location = "ucloud" }}]
"""

    def here(self) -> list[str]:
        truth = self._remote.truth()
        ended = [job for job, machine in truth["machines"].items() if machine["phase"] == "ended"]
        return [op for op, jobs in truth["started"].items() for job in jobs if job not in ended] + list(
            truth["orphans"]
        )

    def ever(self) -> list[str]:
        return [operation for operation, jobs in self._remote.truth()["started"].items() for _ in jobs]

    def cost(self) -> float:
        truth = self._remote.truth()
        return float(sum(truth["billed_seconds"].get(job, 0) for jobs in truth["started"].values() for job in jobs))

    def later(self) -> None:
        self._remote.advance(7200)

    def lose_answer(self) -> None:
        self._remote.fault("lost_response", "submit")


@contextlib.contextmanager
def hetzner_cloud(booter: Booter) -> Iterator[Cloud]:
    with hetzner.emulator(pace=SPEED, booter=booter) as control:
        yield Hetzner(control)


@contextlib.contextmanager
def ucloud_cloud(booter: Booter) -> Iterator[Cloud]:
    with lab.lab(speed=SPEED, booter=booter) as account:
        yield UCloud(account)


class Fleet:
    """Gateway and autoscaler over one cloud."""

    def __init__(self, directory: Path, gateway: GatewayProcess, operator: str, cloud: Cloud, nodes: Nodes) -> None:
        self.gateway, self.cloud, self.nodes = gateway, cloud, nodes
        self.client = GatewayClient(gateway.url, operator)
        self._headers = {"Authorization": f"Bearer {operator}"}
        self._directory = directory
        self._config = directory / "autoscaler.toml"
        token = directory / "operator"
        token.write_text(operator)
        self._config.write_text(f"""
deployment = "test"
gateway_url = "{gateway.url}"
token_file = "{token}"
state_dir = "{directory / "as"}"
tick_seconds = 0.2
list_seconds = 0.2
heartbeat_seconds = 0.5
{cloud.settings}
name = "cpu"
provider = "cloud"
max = 2
idle_seconds = 1.0
pressure_percent = 100  # this machine's own load is no part of the test
runtimes = ["runsc"]
node = {{ memory_mb = 2048, disk_mb = 4096 }}
""")

    @contextlib.contextmanager
    def autoscaler(self) -> Iterator[None]:
        """The daemon, until the ``with`` block ends; it must end clean."""
        command = [sys.executable, "-m", "gateway.cli", "autoscaler", "run", "--config", str(self._config), "--execute"]
        with (self._directory / "as.log").open("wb") as log:
            process = subprocess.Popen(
                command, cwd=ROOT, env={**os.environ, **self.cloud.environ}, stdout=log, stderr=log
            )
        try:
            wait_until(lambda: "acting" in self.log() or process.poll() is not None, SECONDS)
            assert process.poll() is None, self.log()
            yield
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        finally:
            process.kill()
            process.wait(20)

    def ask(self, name: str, **spec: object) -> requests.Response:
        """The answer to a create, which is asked for again under its own id where it takes long."""
        body = {"id": name, "image": "fake", "command": ["sleep", "600"], "memory_mb": 64, "disk_mb": 64, **spec}
        for _ in range(3):
            answer = requests.post(f"{self.gateway.url}/v1/sandboxes", json=body, headers=self._headers, timeout=40)
            if answer.status_code != 503:
                break
        return answer

    def create(self, name: str) -> None:
        """A sandbox that runs."""
        answer = self.ask(name)
        assert answer.status_code == 201, f"{answer.text}\n{self.log()}"
        assert self.client.sandbox(name).state is SandboxState.RUNNING

    def until(self, condition: Callable[[], bool], what: str) -> None:
        try:
            wait_until(condition, SECONDS)
        except AssertionError:
            plan = sandboxes("autoscaler", "plan", "--config", str(self._config), **self.cloud.environ)
            pytest.fail(f"{what} did not happen\n{self.log()}\n{plan.stdout}{plan.stderr}")

    def log(self) -> str:
        return (self._directory / "as.log").read_text()[-6000:]

    def history(self) -> list[str]:
        """Kinds of the autoscaler's events, oldest first."""
        said = sandboxes("autoscaler", "events", "--json", "--config", str(self._config), **self.cloud.environ)
        assert said.returncode == 0, said.stderr
        return [event["kind"] for event in json.loads(said.stdout)]


def make_bundle(directory: Path) -> None:
    """The least that machines can be ordered with: the emulated ones install nothing."""
    directory.mkdir(parents=True)
    script = b"#!/bin/sh\n"
    (directory / "install.sh").write_bytes(script)
    files = [BundleFile(file="install.sh", sha256=hashlib.sha256(script).hexdigest(), size=len(script))]
    sums = sums_of(files)
    (directory / "SHA256SUMS").write_text(sums)
    manifest = BundleManifest(version="0", sha256=hashlib.sha256(sums.encode()).hexdigest(), files=files)
    (directory / "manifest.json").write_text(manifest.model_dump_json())


@pytest.fixture(params=[hetzner_cloud, ucloud_cloud], ids=["hetzner", "ucloud"])
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fleet]:
    operator = new_token(tmp_path / "gw", "operator")
    make_bundle(tmp_path / "gw" / "bundle")
    nodes = Nodes(tmp_path / "vms")
    with gateway_process(tmp_path / "gw") as gateway, request.param(nodes) as cloud:
        yield Fleet(tmp_path, gateway, operator, cloud, nodes)
    assert nodes.running() == []


def test_a_sandbox_makes_a_machine_and_its_end_unmakes_it(fleet: Fleet) -> None:
    assert fleet.cloud.here() == []
    with fleet.autoscaler():
        fleet.create("one")
        (operation,) = fleet.cloud.here()
        (node,) = fleet.client.nodes()
        assert (node.state, node.operation_id) == (NodeState.READY, operation)
        assert fleet.nodes.running() == [node.instance] == fleet.nodes.booted
        fleet.client.delete_sandbox("one")
        fleet.until(lambda: fleet.cloud.here() == [], "the end of the idle machine")
        fleet.until(lambda: fleet.client.nodes() == [], "the gateway's farewell to its node")
        fleet.until(lambda: fleet.nodes.running() == [], "the end of the node agent")
    assert fleet.cloud.ever() == [operation]
    paid = fleet.cloud.cost()
    fleet.cloud.later()
    assert fleet.cloud.cost() == paid > 0
    assert [kind for kind in fleet.history() if kind in LIFE] == LIFE


def test_a_lost_answer_makes_one_machine(fleet: Fleet) -> None:
    fleet.cloud.lose_answer()
    with fleet.autoscaler():
        fleet.create("one")
        assert len(fleet.cloud.here()) == len(fleet.cloud.ever()) == 1
        fleet.client.delete_sandbox("one")
        fleet.until(lambda: fleet.cloud.here() == [], "the end of the idle machine")
    assert len(fleet.cloud.ever()) == len(fleet.nodes.booted) == 1


def test_a_gpu_that_no_pool_has_is_refused_and_orders_nothing(fleet: Fleet) -> None:
    with fleet.autoscaler():
        answer = fleet.ask("with-gpu", gpus=1)
        assert answer.status_code == 422, answer.text
        assert "pool cpu" in answer.text and "gpus" in answer.text
    assert fleet.cloud.ever() == []
