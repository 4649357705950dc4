"""GPUs, end to end over the cloud that sells them: who gets the dear machine, and what if it has none after all."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.emulated_clouds import UCloud, ucloud_cloud
from tests.integration.emulated_fleet import Fleet, Pool, fleet_of
from tests.integration.emulated_machines import Nodes

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    return Nodes(tmp_path / "vms")


@pytest.fixture
def cloud(nodes: Nodes) -> Iterator[UCloud]:
    with ucloud_cloud(nodes) as made:
        yield made
    assert nodes.running() == []


@pytest.fixture
def fleet(tmp_path: Path, cloud: UCloud) -> Iterator[Fleet]:
    # The dear pool stands first: it is not the order of the pools that keeps it free.
    gpu = Pool(cloud, "gpu", {"gpus": 1, **cloud.sells_gpus()})
    with fleet_of(tmp_path, [gpu, Pool(cloud, "cpu", {"max": 1})]) as made:
        yield made


def test_gpu_work_goes_to_the_gpu_pool_and_no_other_work_does(fleet: Fleet, cloud: UCloud, nodes: Nodes) -> None:
    with fleet.autoscaler():
        assert fleet.create("plain") == "cpu"
        assert fleet.create("train", gpus=1) == "gpu"
        (node,) = [each for each in fleet.client.nodes() if each.pool == "gpu"]
        assert (node.total.gpus, node.reserved.gpus) == (1, 1)
        assert fleet.client.sandbox("train").runtime == "docker"
        # The machine with the GPU has as much room for this one as the other, and is as full.
        assert fleet.create("plain-too") == "cpu"
        assert (len(cloud.here("gpu")), len(cloud.here("cpu"))) == (1, 1)
        for name in ("train", "plain", "plain-too"):
            fleet.client.delete_sandbox(name)
        fleet.until(lambda: cloud.here() == [], "the end of the idle machines")
        fleet.until(lambda: fleet.client.nodes() == [], "the gateway's farewell to its nodes")
        fleet.until(lambda: nodes.running() == [], "the end of the node agents")
    assert (len(cloud.ever("gpu")), len(cloud.ever("cpu"))) == (1, 1)
    paid = cloud.cost()
    cloud.later()
    assert cloud.cost() == paid > 0


def test_a_machine_that_was_sold_with_a_gpu_and_has_none_is_bought_once_and_given_back(
    fleet: Fleet, cloud: UCloud
) -> None:
    cloud.remote.fault("no_gpu", "boot", times=None)
    with fleet.autoscaler():
        answer = fleet.ask("train", gpus=1)
        assert answer.status_code == 422, f"{answer.text}\n{fleet.log()}"
        assert "gpus 0 of 1" in answer.text
        fleet.until(lambda: cloud.here() == [], "the end of the machine that is good for nothing")
    assert len(cloud.ever("gpu")) == 1
