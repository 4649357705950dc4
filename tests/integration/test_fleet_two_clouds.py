"""Two clouds at once, one of them in trouble: the other scales up and down, and what runs on the first goes on."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gateway.wire.states import NodeState, SandboxState
from tests.integration.emulated_clouds import Cloud, Trouble, hetzner_cloud, ucloud_cloud
from tests.integration.emulated_fleet import Fleet, Pool, fleet_of
from tests.integration.emulated_machines import Nodes

pytestmark = pytest.mark.timeout(300)
HALF = 1100
"""MiB of which a node has room for one sandbox only."""


@dataclass(frozen=True)
class Pair:
    """Yield a fleet over two clouds, of which one will suffer."""

    fleet: Fleet
    ill: Cloud
    well: Cloud


@pytest.fixture
def pair(tmp_path: Path, ill_one: str) -> Iterator[Pair]:
    nodes = Nodes(tmp_path / "vms")
    with contextlib.ExitStack() as stack:
        clouds: dict[str, Cloud] = {
            "hetzner": stack.enter_context(hetzner_cloud(nodes)),
            "ucloud": stack.enter_context(ucloud_cloud(nodes)),
        }
        ill = clouds.pop(ill_one)
        (well,) = clouds.values()
        # What suffers stands first: its pool is the one that work would rather go to.
        pools = [Pool(ill, "first"), Pool(well, "second")]
        fleet = stack.enter_context(fleet_of(tmp_path, pools))
        stack.enter_context(fleet.autoscaler())
        yield Pair(fleet, ill, well)
    assert nodes.running() == []


@pytest.mark.parametrize(
    ("ill_one", "trouble"),
    [
        ("hetzner", Trouble.DOWN),
        ("ucloud", Trouble.BLIND),
        ("hetzner", Trouble.MAINTENANCE),
        ("ucloud", Trouble.EXPIRED),
        ("hetzner", Trouble.QUOTA),
        # The same by the other cloud's own words; what those mean is tested call by call in `unit/providers`.
        pytest.param("ucloud", Trouble.DOWN, marks=pytest.mark.soak),
        pytest.param("hetzner", Trouble.BLIND, marks=pytest.mark.soak),
        pytest.param("ucloud", Trouble.MAINTENANCE, marks=pytest.mark.soak),
        pytest.param("hetzner", Trouble.EXPIRED, marks=pytest.mark.soak),
        pytest.param("ucloud", Trouble.QUOTA, marks=pytest.mark.soak),
    ],
)
def test_the_other_pool_scales_up_and_down(pair: Pair, trouble: Trouble) -> None:
    fleet, ill, well = pair.fleet, pair.ill, pair.well
    assert fleet.create("stays", memory_mb=HALF) == "first"
    (kept,) = ill.here()
    ill.suffer(trouble)

    assert fleet.create("goes-elsewhere", memory_mb=HALF) == "second"
    fleet.client.delete_sandbox("goes-elsewhere")
    fleet.until(lambda: well.here() == [], "the end of the other cloud's idle machine")
    assert len(well.ever()) == 1

    # Nothing was concluded from the silence: its machine is there, and what runs there runs.
    assert ill.here() == [kept]
    assert fleet.client.sandbox("stays").state is SandboxState.RUNNING
    assert [node.state for node in fleet.client.nodes() if node.pool == "first"] == [NodeState.READY]
    fleet.client.delete_sandbox("stays")
    if trouble is not Trouble.QUOTA:  # deletes go on where they can
        fleet.until(lambda: "second" not in {node.pool for node in fleet.client.nodes()}, "the farewell to its node")
        ill.heal()
    fleet.until(lambda: ill.here() == [], "the end of the first cloud's machine")
    fleet.until(lambda: fleet.client.nodes() == [], "the gateway's farewell to the last node")
    assert ill.ever() == [kept]
