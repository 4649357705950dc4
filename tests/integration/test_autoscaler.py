"""The autoscaler as a process, with a real gateway, the `local` provider, and whole node agents over a fake runtime."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from autoscaler.observe import NO_GATEWAY
from gateway.client import GatewayClient
from gateway.wire.states import NodeState
from providers.base import Phase
from providers.local.home import processes_of, signal_lock_holder
from providers.local.provider import LocalProvider
from tests.gateway_process import GatewayProcess, gateway_process, new_token, sandboxes
from tests.integration.autoscaler_node import COMMAND

pytestmark = pytest.mark.timeout(240)
ROOT = Path(__file__).parents[2]


def until(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


class Scaled:
    """One gateway and the autoscaler beside it; the autoscaler can be killed and started at will."""

    def __init__(self, directory: Path, gateway: GatewayProcess, operator: str) -> None:
        self.directory = directory
        self.gateway = gateway
        self.operator = operator
        self.client = GatewayClient(gateway.url, operator)
        self.config = directory / "autoscaler.toml"
        self.process: subprocess.Popen[bytes] | None = None
        token = directory / "operator"
        token.write_text(operator)
        self.provider_settings = {"root": str(directory / "i"), "node_command": list(COMMAND), "cleanup_command": []}
        self.provider = LocalProvider.from_settings(self.provider_settings, deployment="test", environ={})

    def configure(self, *, least: int = 0, most: int = 2, idle: float = 1.0, more: str = "", gateway: str = "") -> None:
        provider = "\n".join(f"{key} = {json.dumps(value)}" for key, value in self.provider_settings.items())
        self.config.write_text(f"""
deployment = "test"
gateway_url = "{gateway or self.gateway.url}"
token_file = "{self.directory / "operator"}"
state_dir = "{self.directory / "as"}"
tick_seconds = 0.2
heartbeat_seconds = 0.2
[providers.local]
{provider}
[[pools]]
name = "cpu"
provider = "local"
min = {least}
max = {most}
idle_seconds = {idle}
pressure_percent = 100  # this machine's own load is no part of the test
runtimes = ["runsc"]
node = {{ memory_mb = 2048, disk_mb = 4096 }}
{more}
""")

    def insist(self, sandbox: str) -> requests.Response:
        """Create as clients do: ask again for what waits for room."""
        for _ in range(20):
            answer = self.create_sandbox(sandbox)
            if answer.status_code != 503:
                break
        return answer

    def beginnings(self) -> int:
        """Return how many processes have got as far as their first look."""
        log = self.directory / "as.log"
        return log.read_text().count("pools, executing") if log.exists() else 0

    def start(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "sandboxes", "autoscaler", "run", "--config", str(self.config), "--execute"]
        with (self.directory / "as.log").open("ab") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        return self.process

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(20)

    def command(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return sandboxes("autoscaler", *words, "--config", str(self.config))

    def ready(self) -> list[str]:
        return [node.instance for node in self.client.nodes() if node.state is NodeState.READY]

    def instances(self) -> dict[str, Phase]:
        return {instance.name: instance.phase for instance in self.provider.list().instances}

    def planned(self) -> list[str]:
        """Return every instance that was ever ordered."""
        events = json.loads(self.command("events", "--json", "--limit", "1000").stdout)
        return [event["subject"] for event in events if event["kind"] == "planned"]

    def create_sandbox(self, name: str, **spec: object) -> requests.Response:
        body = {"id": name, "image": "fake", "command": ["sleep", "600"], "memory_mb": 64, "disk_mb": 64, **spec}
        headers = {"Authorization": f"Bearer {self.operator}"}
        for _ in range(4):  # a create that takes long is asked for again under its own id
            answer = requests.post(f"{self.gateway.url}/v1/sandboxes", json=body, headers=headers, timeout=40)
            if answer.status_code != 503:
                break
        return answer


@pytest.fixture
def scaled(tmp_path: Path) -> Iterator[Scaled]:
    operator = new_token(tmp_path / "gw", "operator")
    with gateway_process(tmp_path / "gw") as gateway:
        made = Scaled(tmp_path, gateway, operator)
        made.configure()
        try:
            yield made
        finally:
            made.kill()
            left = made.command("release")
            assert left.returncode == 0, left.stderr
            assert made.instances() == {}


def test_demand_boots_one_node_and_idleness_deletes_it_through_crashes(scaled: Scaled) -> None:
    with ThreadPoolExecutor(1) as pool:
        creating = pool.submit(scaled.insist, "one")
        while not creating.done():
            began = scaled.beginnings()
            scaled.start()
            until(lambda known=began: scaled.beginnings() > known or creating.done(), "the autoscaler began")
            time.sleep(1.0)  # not awaited: the moment of death is to be any
            scaled.kill()
        assert creating.result().status_code == 201, creating.result().text
    scaled.start()
    (name,) = scaled.instances()
    scaled.client.delete_sandbox("one")
    until(lambda: scaled.instances() == {}, "the idle node was stopped")
    until(lambda: scaled.client.nodes() == [], "the gateway forgot its node")
    assert scaled.planned() == [name]


def test_a_sandbox_larger_than_any_pool_is_refused_at_once(scaled: Scaled) -> None:
    scaled.start()
    until(lambda: scaled.create_sandbox("huge", memory_mb=500_000).status_code == 422, "the ceilings were published")
    assert scaled.instances() == {}


def test_the_minimum_is_restored_when_a_machine_dies(scaled: Scaled) -> None:
    scaled.configure(least=1)
    scaled.start()
    until(lambda: len(scaled.ready()) == 1, "the first node registered")
    (first,) = scaled.instances()
    home = scaled.directory / "i" / first
    agents = [*processes_of(home)]
    # Its node alone would be started again, and its supervisor's successor would adopt the node.
    assert signal_lock_holder(home / "vm.lock", signal.SIGKILL)
    for agent in agents:
        os.kill(agent, signal.SIGKILL)
    until(lambda: scaled.ready() not in ([], [first]), "another node took its place")
    until(lambda: first not in scaled.instances(), "the dead one was removed")


def test_a_node_agent_that_dies_is_the_same_node_again(scaled: Scaled) -> None:
    scaled.configure(least=1)
    scaled.start()
    until(lambda: len(scaled.ready()) == 1, "the node registered")
    (before,) = scaled.client.nodes()
    home = scaled.directory / "i" / before.instance
    (agent,) = processes_of(home)
    os.kill(agent, signal.SIGKILL)
    until(lambda: [*processes_of(home)] not in ([], [agent]), "it was started again")
    until(lambda: scaled.client.nodes()[0].node_url != before.node_url, "it beats again")
    assert [node.id for node in scaled.client.nodes()] == [before.id]


def test_only_one_acts_and_it_exits_cleanly(scaled: Scaled) -> None:
    process = scaled.start()
    until(lambda: "pools, executing" in (scaled.directory / "as.log").read_text(), "it runs")
    second = scaled.command("run", "--execute")
    assert second.returncode == 1
    assert f"process {process.pid}, since" in second.stderr
    assert scaled.command("release").returncode == 1
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0


@pytest.fixture
def deaf() -> Iterator[str]:
    """Accept every connection and never answer."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_an_unresponsive_provider_blocks_neither_the_others_nor_the_exit(
    scaled: Scaled, deaf: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAR_TOKEN", "t" * 64)
    far = f"""
[providers.far]
kind = "hetzner"
endpoint = "{deaf}"
token_env = "FAR_TOKEN"
ssh_keys = ["k"]
read_seconds = 300
[[pools]]
name = "far"
provider = "far"
min = 1
image = "debian-12"
"""
    scaled.configure(more=far)
    process = scaled.start()
    assert scaled.insist("one").status_code == 201
    scaled.client.delete_sandbox("one")
    until(lambda: scaled.instances() == {}, "the idle node was stopped")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0, "it ends long before its call does"
    scaled.configure()


def test_an_unresponsive_gateway_blocks_neither_ticks_nor_the_exit(scaled: Scaled, deaf: str) -> None:
    scaled.configure(least=1)
    scaled.start()
    until(lambda: len(scaled.ready()) == 1, "the node registered")
    scaled.kill()
    scaled.configure(least=1, gateway=deaf)
    process = scaled.start()
    until(lambda: NO_GATEWAY in (scaled.directory / "as.log").read_text(), "a tick has ended all the same")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert len(scaled.instances()) == 1, "nothing was concluded"
    scaled.configure(least=1)


def test_the_plan_is_shown_but_not_carried_out(scaled: Scaled) -> None:
    scaled.configure(least=1)
    assert "local@here" in scaled.command("plan").stdout
    (action,) = json.loads(scaled.command("plan", "--json").stdout)["actions"]
    assert (action["kind"], action["pool"]) == ("boot", "cpu")
    assert scaled.instances() == {}
    assert scaled.planned() == []


def test_status_and_pools_show_the_fleet(scaled: Scaled) -> None:
    scaled.configure(least=1)
    scaled.start()
    until(lambda: len(scaled.ready()) == 1, "the node registered")
    until(lambda: "ready" in scaled.command("status").stdout, "its row says so")
    status = json.loads(scaled.command("status", "--json").stdout)
    assert [intent["state"] for intent in status["intents"]] == ["ready"]
    assert "process" in status["running"]
    assert "1 of 1–2" in scaled.command("pools").stdout
    assert json.loads(scaled.command("pools", "--json").stdout)[0]["instances"] == 1
    plan = scaled.command("plan")
    assert (plan.returncode, plan.stdout) == (0, "nothing to do\n"), (
        "one look sees the fleet as it is, not as a process that has just started"
    )
    assert "registered" in scaled.command("events").stdout
