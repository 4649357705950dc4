"""The whole path in each cloud: an empty pool, an order, a machine that becomes a node, a sandbox, and the way back.

Gateway and autoscaler are processes, the cloud is its emulator, and an emulated machine starts a node agent from the
user data that it was ordered with, and from nothing else.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.wire.states import DeathReason, NodeState, SandboxState
from tests.integration.emulated_clouds import Cloud, hetzner_cloud, ucloud_cloud
from tests.integration.emulated_fleet import Fleet, Pool, fleet_of
from tests.integration.emulated_machines import Nodes

pytestmark = pytest.mark.timeout(240)
LIFE = ["planned", "calling", "booting", "running", "ready", "draining", "deleting", "gone", "forgotten"]
"""What the autoscaler's journal holds about one machine."""


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    return Nodes(tmp_path / "vms")


@pytest.fixture(params=[hetzner_cloud, ucloud_cloud], ids=["hetzner", "ucloud"])
def cloud(request: pytest.FixtureRequest, nodes: Nodes) -> Iterator[Cloud]:
    with request.param(nodes) as made:
        yield made
    assert nodes.running() == []


@pytest.fixture
def fleet(tmp_path: Path, cloud: Cloud) -> Iterator[Fleet]:
    with fleet_of(tmp_path, [Pool(cloud)]) as made:
        yield made


@pytest.fixture
def building(tmp_path: Path, cloud: Cloud) -> Iterator[Fleet]:
    """Yield a fleet with a second pool, whose nodes only build."""
    with fleet_of(tmp_path, [Pool(cloud), Pool(cloud, "builder", {"role": "builder"})]) as made:
        yield made


def test_a_sandbox_makes_a_machine_and_its_end_unmakes_it(fleet: Fleet, cloud: Cloud, nodes: Nodes) -> None:
    assert cloud.here() == []
    with fleet.autoscaler():
        fleet.create("one")
        (operation,) = cloud.here()
        (node,) = fleet.client.nodes()
        assert (node.state, node.operation_id) == (NodeState.READY, operation)
        assert nodes.running() == [node.instance] == nodes.booted
        fleet.client.delete_sandbox("one")
        fleet.until(lambda: cloud.here() == [], "the end of the idle machine")
        fleet.until(lambda: fleet.client.nodes() == [], "the gateway's farewell to its node")
        fleet.until(lambda: nodes.running() == [], "the end of the node agent")
    assert cloud.ever() == [operation]
    assert_cost_stands_still(cloud)
    assert [kind for kind in fleet.history() if kind in LIFE] == LIFE


def test_a_lost_answer_makes_one_machine(fleet: Fleet, cloud: Cloud, nodes: Nodes) -> None:
    cloud.lose_answer()
    with fleet.autoscaler():
        fleet.create("one")
        assert len(cloud.here()) == len(cloud.ever()) == 1
        fleet.client.delete_sandbox("one")
        fleet.until(lambda: cloud.here() == [], "the end of the idle machine")
    assert len(cloud.ever()) == len(nodes.booted) == 1


def test_a_gpu_that_no_pool_has_is_refused_and_orders_nothing(fleet: Fleet, cloud: Cloud) -> None:
    with fleet.autoscaler():
        answer = fleet.ask("with-gpu", gpus=1)
        assert answer.status_code == 422, answer.text
        assert "pool cpu" in answer.text and "gpus" in answer.text
    assert cloud.ever() == []


def test_builders_come_when_they_are_asked_for_and_go_when_nobody_asks_any_more(
    building: Fleet, cloud: Cloud, nodes: Nodes
) -> None:
    with building.autoscaler():
        prepared = building.post("/v1/builders/prepare", id="soon", count=1, ttl_seconds=600)
        assert prepared.status_code == 201, prepared.text
        building.until(lambda: [n.state for n in building.client.nodes()] == [NodeState.READY], "a builder")
        (builder,) = building.client.nodes()
        assert (builder.pool, builder.role) == ("builder", "builder")
        assert cloud.here("builder") == [builder.operation_id] == cloud.ever()

        # It is ready and empty, and there is no other node; still the sandbox waits for one of its own kind.
        assert building.create("one") == "cpu"
        assert [n.sandboxes for n in building.client.nodes() if n.id == builder.id] == [0]
        assert len(cloud.here("cpu")) == 1
        building.client.delete_sandbox("one")
        building.until(lambda: cloud.here("cpu") == [], "the end of the idle machine")
        assert cloud.here("builder") == [builder.operation_id]

        renewed = building.post("/v1/builders/prepare", id="soon", count=1, ttl_seconds=1)
        assert renewed.status_code == 201, renewed.text
        building.until(lambda: cloud.here() == [], "the end of the builder that nobody asks for any more")
        building.until(lambda: building.client.nodes() == [], "the gateway's farewell to the builder")
        building.until(lambda: nodes.running() == [], "the end of its node agent")
    assert (len(cloud.ever("cpu")), len(cloud.ever("builder"))) == (1, 1)
    assert_cost_stands_still(cloud)


def test_a_machine_that_becomes_no_node_is_given_back_and_its_pool_held_back(tmp_path: Path, nodes: Nodes) -> None:
    with ucloud_cloud(nodes) as cloud:
        # The first machine boots in the middle of an upload, and finds half of its script.
        cloud.remote.fault("cut_script", "boot")
        pools = [Pool(cloud, "first", {"boot_seconds": 3.0, "extend_seconds": 0}), Pool(cloud, "second")]
        with fleet_of(tmp_path, pools) as fleet, fleet.autoscaler():
            assert fleet.create("one") == "second"
            assert cloud.here("first") == []
            assert (len(cloud.ever("first")), len(cloud.ever("second")), len(nodes.booted)) == (1, 1, 2)


def test_a_quota_that_is_reached_takes_the_machines_and_no_storm_of_orders_follows(
    tmp_path: Path, nodes: Nodes
) -> None:
    quick = {"unreachable_after": 2.0, "lost_after": 4.0, "create_wait": 5.0}
    with ucloud_cloud(nodes) as cloud, fleet_of(tmp_path, [Pool(cloud)], **quick) as fleet, fleet.autoscaler():
        fleet.until(lambda: fleet.ask("one").status_code in (200, 201), "the sandbox")
        cloud.remote.ask("wallet", category="cpu-amd-zen5", quota=0)
        fleet.until(lambda: fleet.client.sandbox("one").state is SandboxState.LOST, "the loss of the sandbox")
        fleet.until(lambda: cloud.here() == [] == fleet.client.nodes(), "the end of the suspended machine")
        assert fleet.client.sandbox("one").reason is DeathReason.NODE_LOST

        answer = fleet.ask("two")  # asks for it again and again, for longer than many looks of the autoscaler
        assert (answer.status_code, answer.json()["code"]) == (503, "no_room")
        assert cloud.remote.calls("submit") == 2, "the machine, and one order that was refused"
        assert len(cloud.ever()) == 1


def assert_cost_stands_still(cloud: Cloud) -> None:
    """Assert that nothing that was ever ordered is paid for any more."""
    paid = cloud.cost()
    cloud.later()
    assert cloud.cost() == paid > 0
