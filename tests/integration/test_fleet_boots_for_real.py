"""From an empty pool to a command in a real gVisor sandbox, and back to nothing, with nothing played but the cloud.

The emulated VM is a set of namespaces on this machine's kernel.  It boots from its user data alone: the real scripts
fetch the real bundle from the gateway, check it, install it and start the agent's unit, over the real engines.  What
cannot be real here: cloud-init, UCloud's agent and systemd themselves, and the packages, which this machine has.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from gateway.wire.nodes import BootStages
from node_agent.settings import tag_of
from tests.engines import leftovers
from tests.engines.dockerd import Daemon
from tests.engines.images import TestImages
from tests.gateway_process import sandboxes
from tests.integration.emulated_clouds import Cloud, hetzner_cloud, ucloud_cloud
from tests.integration.emulated_fleet import Fleet, Pool, fleet_of
from tests.integration.emulated_vms import Vms
from ucloud_sandboxes_sdk import SandboxClient

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]
ROOT = Path(__file__).parents[2]
SUBNET = "10.215.97.0/28"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return what a gateway serves to new machines, made from this checkout."""
    state = tmp_path_factory.mktemp("bundle")
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    made = sandboxes("gateway", "bundle", "--state-dir", str(state), "--python", python, "--source", str(ROOT))
    assert made.returncode == 0, made.stderr
    return state / "bundle"


@pytest.fixture
def vms(engines: None, tmp_path: Path) -> Vms:
    return Vms(tmp_path / "vms", SUBNET)


@pytest.fixture(params=[hetzner_cloud, ucloud_cloud], ids=["hetzner", "ucloud"])
def cloud(request: pytest.FixtureRequest, vms: Vms) -> Iterator[Cloud]:
    with request.param(vms) as made:
        yield made
    assert vms.running() == []


@pytest.fixture
def root() -> Path:
    """Where a machine's node keeps everything, as the machine sees it; its tag is this test's own."""
    return Path(f"/var/lib/sandbox-fleet/{uuid4().hex[:8]}")


@pytest.fixture
def fleet(tmp_path: Path, cloud: Cloud, vms: Vms, bundle: Path, docker_daemon: Daemon, root: Path) -> Iterator[Fleet]:
    node = {"root": str(root), "docker_url": docker_daemon.url, "memory_mb": 1024, "disk_mb": 2048}
    with fleet_of(tmp_path, [Pool(cloud, settings={"node": node})], bundle=bundle, host=vms.host) as made:
        yield made


def test_a_machine_boots_runs_a_command_and_leaves_nothing(
    fleet: Fleet, cloud: Cloud, vms: Vms, test_images: TestImages, root: Path
) -> None:
    with fleet.autoscaler(), SandboxClient(fleet.url, api_token=fleet.operator) as client:
        assert fleet.create("one", image=test_images.busybox, disk_mb=128) == "cpu"
        sandbox = client.attach("one")
        # gVisor prints its own kernel's first lines, whatever the host's are.
        found = sandbox.exec(["sh", "-c", "echo hello; busybox dmesg | head -n 1"], timeout_seconds=60)
        assert found.exit_code == 0
        assert found.stdout.startswith("hello\n") and "Starting gVisor" in found.stdout
        (node,) = fleet.client.nodes()
        assert node.node_url == f"http://{vms.address(node.instance)}:8091"
        assert node.stages is not None
        assert loops(root) != [], "the sandbox's disk"
        print(f"{cloud.name}: {timed(node.stages, vms.booted_at[node.instance])}")

        sandbox.delete()
        fleet.until(lambda: cloud.here() == [], "the end of the idle machine")
        fleet.until(lambda: fleet.client.nodes() == [], "the gateway's farewell to its node")
        fleet.until(lambda: vms.running() == [], "the end of the machine")
    assert leftovers.of_node(root, tag_of(root)) == []
    assert loops(root) == []
    assert not Path("/sys/class/net", vms.network.bridge).exists()


def timed(stages: BootStages, booted_at: float) -> str:
    """Return the stages in seconds from the start of the machine, each after the one before."""
    names = ("cloud_init", "engines", "bundle", "agent", "registered", "heartbeat")
    times = [getattr(stages, name) for name in names]
    assert None not in times, stages
    assert [booted_at, *times] == sorted([booted_at, *times]), stages
    return ", ".join(f"{name} {moment - booted_at:.1f} s" for name, moment in zip(names, times, strict=True))


def loops(root: Path) -> list[str]:
    """Loop devices over a node's files.  The first parts of their paths depend on who asks the kernel."""
    backed = [path.read_text() for path in Path("/sys/block").glob("loop*/loop/backing_file")]
    return [text for text in backed if f"/{root.name}/" in text]
