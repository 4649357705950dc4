"""Prepared capacity through the SDK and the command line, over a gateway process."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.client import GatewayClient
from gateway.wire.capacity import Ceilings, PoolCeiling
from gateway.wire.resources import Shape
from tests.gateway_process import gateway_process, new_token, sandboxes
from ucloud_sandboxes_sdk import Image, InvalidRequestError, NeverFitsError, SandboxClient

LARGEST = Shape(cpus=16, memory_mb=32_768, disk_mb=200_000, slots=100)


class Here:
    def __init__(self, url: str, directory: Path) -> None:
        self.url = url
        self.token_file = directory / "client"
        self.token_file.write_text(new_token(directory, "client"))
        self.operator = GatewayClient(url, new_token(directory, "operator"))
        pool = PoolCeiling(pool="cpu", shape=LARGEST, runtimes=["runsc"], isolations=["gvisor"], max_nodes=5)
        self.operator.put_ceilings(Ceilings(pools=[pool]))
        self.client = SandboxClient(url, api_token=self.token_file.read_text())

    def cli(self, *words: str, code: int = 0) -> str:
        done = sandboxes("capacity", *words, "--url", self.url, "--token-file", str(self.token_file))
        assert done.returncode == code, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Here]:
    state = tmp_path_factory.mktemp("gateway")
    new_token(state, "operator")
    with gateway_process(state) as gateway:
        yield Here(gateway.url, state)


def test_the_sdk_prepares_lists_and_takes_back(here: Here) -> None:
    image = Image.from_registry("busybox")
    made = here.client.prepare_capacity(count=3, cpus=0.5, memory_mb=512, image=image, prepare_id="burst")
    assert made["prepare"]["count"] == 3
    assert made["demand"]["prepared_resources"]["memory_mb"] == 3 * 512
    assert [item["prepare_id"] for item in here.client.list_prepared_capacity()["prepared"]] == ["burst"]
    assert here.operator.demand().prepared[0].image == "busybox"
    assert here.client.delete_prepared_capacity("burst")["deleted"]["count"] == 3
    assert here.client.delete_prepared_capacity("burst")["deleted"] is None


def test_builders_too(here: Here) -> None:
    made = here.client.prepare_builder(count=2)["prepare"]
    assert made["prepare_id"].startswith("builder-prep-")
    assert here.client.list_prepared_builders()["demand"]["prepared_builder_count"] == 2
    assert here.client.delete_prepared_builder(made["prepare_id"])["deleted"]["count"] == 2


def test_refusals(here: Here) -> None:
    with pytest.raises(NeverFitsError):
        here.client.prepare_capacity(count=1, memory_mb=LARGEST.memory_mb + 1)
    with pytest.raises(InvalidRequestError):
        here.client.prepare_capacity(count=101, cpus=1)
    with pytest.raises(InvalidRequestError):
        here.client.prepare_capacity(count=1)


def test_the_command_line(here: Here) -> None:
    said = here.cli("prepare", "5", "--cpus", "1", "--memory", "256", "--name", "night", "--ttl", "60")
    assert said.startswith("night  5 units until ")
    assert "night  5 × 1 cores, 256 MiB" in here.cli("ls")
    assert json.loads(here.cli("ls", "--json"))["prepared"][0]["prepare_id"] == "night"
    assert "released" in here.cli("rm", "night")
    assert here.cli("rm", "night", code=1) == ""
