"""A whole fleet over emulated clouds: gateway and autoscaler as processes, and pools of some clouds."""

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import requests

from gateway.bundle import sums_of
from gateway.client import GatewayClient
from gateway.wire.nodes import BundleFile, BundleManifest
from gateway.wire.states import SandboxState
from tests.gateway_process import GatewayProcess, gateway_process, new_token, sandboxes
from tests.integration.emulated_clouds import Cloud
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
SECONDS = 90.0
HEARTBEAT = 0.5
"""Seconds between two heartbeats of a node."""


@dataclass(frozen=True)
class Pool:
    """One pool of a fleet.  ``settings`` win over those of its cloud."""

    cloud: Cloud
    name: str = "cpu"
    settings: Mapping[str, object] = field(default_factory=dict)

    def table(self) -> str:
        """Return its part of the settings file."""
        common: dict[str, object] = {
            "name": self.name,
            "provider": self.cloud.name,
            "max": 2,
            "idle_seconds": 1.0,
            "pressure_percent": 100,  # this machine's own load is no part of the test
            "runtimes": ["runsc"],
            "node": {"memory_mb": 2048, "disk_mb": 4096},
        }
        return "[[pools]]\n" + _lines({**common, **self.cloud.pool, **self.settings})


class Fleet:
    """Gateway and autoscaler over clouds."""

    def __init__(
        self, directory: Path, gateway: GatewayProcess, operator: str, pools: list[Pool], host: str | None
    ) -> None:
        port = gateway.url.rpartition(":")[2]
        self.url = f"http://127.0.0.1:{port}"
        self.operator = operator
        self.client = GatewayClient(self.url, operator)
        self._headers = {"Authorization": f"Bearer {operator}"}
        self._directory = directory
        self._config = directory / "autoscaler.toml"
        clouds = {pool.cloud.name: pool.cloud for pool in pools}
        self._environ = {key: value for cloud in clouds.values() for key, value in cloud.environ.items()}
        token = directory / "operator"
        token.write_text(operator)
        common: dict[str, object] = {
            "deployment": "test",
            "gateway_url": self.url,
            "node_gateway_url": f"http://{host or '127.0.0.1'}:{port}",
            "token_file": str(token),
            "state_dir": str(directory / "as"),
            "tick_seconds": 0.2,
            "list_seconds": 0.2,
            "heartbeat_seconds": HEARTBEAT,
        }
        providers = [f"[providers.{name}]\n{_lines(cloud.provider)}" for name, cloud in clouds.items()]
        self._config.write_text("\n".join([_lines(common), *providers, *(pool.table() for pool in pools)]))

    @contextlib.contextmanager
    def autoscaler(self) -> Iterator[None]:
        """Run the daemon until the ``with`` block ends; it must end clean."""
        command = [sys.executable, "-m", "sandboxes", "autoscaler", "run", "--config", str(self._config), "--execute"]
        with (self._directory / "as.log").open("wb") as log:
            process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **self._environ}, stdout=log, stderr=log)
        try:
            wait_until(lambda: "pools, executing" in self.log() or process.poll() is not None, SECONDS)
            assert process.poll() is None, self.log()
            yield
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()
            process.wait(20)

    def ask(self, name: str, **spec: object) -> requests.Response:
        """Return the answer to a create, which is repeated under its own id where it takes long."""
        body = {"id": name, "image": "fake", "command": ["sleep", "600"], "memory_mb": 64, "disk_mb": 64, **spec}
        for _ in range(3):
            answer = self.post("/v1/sandboxes", **body)
            if answer.status_code != 503:
                break
        return answer

    def post(self, path: str, **body: object) -> requests.Response:
        """Return the answer to any call with a body."""
        return requests.post(f"{self.url}{path}", json=body, headers=self._headers, timeout=60)

    def create(self, name: str, **spec: object) -> str:
        """Create a sandbox that runs, and return the pool of its node."""
        answer = self.ask(name, **spec)
        assert answer.status_code in (200, 201), f"{answer.text}\n{self.log()}"
        record = self.client.sandbox(name)
        assert record.state is SandboxState.RUNNING
        (pool,) = [node.pool for node in self.client.nodes() if node.id == record.node_id]
        return pool

    def until(self, condition: Callable[[], bool], what: str) -> None:
        try:
            wait_until(condition, SECONDS)
        except AssertionError:
            plan = sandboxes("autoscaler", "plan", "--config", str(self._config), **self._environ)
            pytest.fail(f"{what} did not happen\n{self.log()}\n{plan.stdout}{plan.stderr}")

    def log(self) -> str:
        return (self._directory / "as.log").read_text()[-6000:]

    def history(self) -> list[str]:
        """Return the kinds of the autoscaler's events, oldest first."""
        said = sandboxes("autoscaler", "events", "--json", "--config", str(self._config), **self._environ)
        assert said.returncode == 0, said.stderr
        return [event["kind"] for event in json.loads(said.stdout)]


@contextlib.contextmanager
def fleet_of(
    directory: Path, pools: list[Pool], *, bundle: Path | None = None, host: str | None = None, **gateway: object
) -> Iterator[Fleet]:
    """Yield a gateway with a bundle, and the settings of an autoscaler for these pools.

    Args:
        directory: for all that they keep.
        pools: all of the fleet's.
        bundle: what machines install; by default there is nothing in it.
        host: address at which machines reach this one; by default they are on its loopback.
        gateway: settings of the gateway.
    """
    state = directory / "gw"
    operator = new_token(state, "operator")
    if bundle is None:
        bundle = state / "bundle"
        empty_bundle(bundle)
    given = {"heartbeat_interval": HEARTBEAT, "bundle_dir": bundle, **gateway}
    given |= {"host": "0.0.0.0"} if host is not None else {}
    environ = {f"SANDBOXES_GATEWAY_{key.upper()}": str(value) for key, value in given.items()}
    with gateway_process(state, environ=environ) as made:
        yield Fleet(directory, made, operator, pools, host)


def empty_bundle(directory: Path) -> None:
    """Make the least that machines can be ordered with: the emulated ones install nothing."""
    directory.mkdir(parents=True)
    script = b"#!/bin/sh\n"
    (directory / "install.sh").write_bytes(script)
    files = [BundleFile(file="install.sh", sha256=hashlib.sha256(script).hexdigest(), size=len(script))]
    sums = sums_of(files)
    (directory / "SHA256SUMS").write_text(sums)
    manifest = BundleManifest(version="0", sha256=hashlib.sha256(sums.encode()).hexdigest(), files=files)
    (directory / "manifest.json").write_text(manifest.model_dump_json())


def _lines(values: Mapping[str, object]) -> str:
    return "".join(f"{key} = {_inline(value)}\n" for key, value in values.items())


def _inline(value: object) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_inline(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_inline(item) for item in value) + "]"
    return json.dumps(value)  # TOML's basic values are written as JSON's
