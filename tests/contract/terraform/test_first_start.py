"""A whole fleet starts for the first time: the gateway's machine from Terraform's script, nodes by cloud-init.

The machines run a real systemd in namespaces of this machine (`tests/machines.py`). They install everything from the
distributions' mirrors, from a package index and from the gateway, as machines of a cloud do.
"""

import hashlib
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pytest
import requests

from autoscaler import user_data
from gateway.client import GatewayClient
from gateway.wire.nodes import JoinTokenRequest, NodeRecord
from providers.local.network import Namespace, Network
from tests import machines
from tests.contract.terraform.conftest import ROOT, Workspace
from tests.contract.terraform.variables import BEHIND_A_PROXY, FULL, STATE
from tests.waiting import wait_until

pytestmark = [pytest.mark.soak, pytest.mark.engine, pytest.mark.timeout(2400)]
SUBNET: Final = "10.217.9.0/28"
PORT: Final = 8090
INSTALL_SECONDS: Final = 900.0
NODES: Final = {"node-debian": machines.DEBIAN_13, "node-ubuntu": machines.UBUNTU_24_04}
# No ssh server and no lsb-release are in these small file systems, and nobody tells them of a network.
CLOUD_INIT: Final = "network: {config: disabled}\ndatasource_list: [NoCloud]\napt: {preserve_sources_list: true}\n"
UNITS: Final = ("sandbox-gateway.service", "sandbox-autoscaler.path", "caddy.service", "nftables.service")


@dataclass(frozen=True)
class Fleet:
    """A gateway that has set itself up, and where more machines of its network can be made."""

    gateway: machines.Machine
    address: str
    init_script: str
    network: Network
    place: Path

    @property
    def url(self) -> str:
        """Of the private network."""
        return f"http://{self.address}:{PORT}"

    def token(self, name: str) -> str:
        return self.gateway.told("cat", f"{STATE}/tokens/{name}").strip()

    @property
    def operator(self) -> GatewayClient:
        return GatewayClient(self.url, self.token("operator"))

    def sandboxes(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """The command line, here, as a client."""
        return subprocess.run(
            [sys.executable, "-m", "sandboxes", *words],
            cwd=ROOT,
            env={
                "UCLOUD_SANDBOX_URL": self.url,
                "UCLOUD_SANDBOX_API_TOKEN": self.token("client"),
                "PATH": machines.PATH,
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


@contextmanager
def attached(network: Network, slot: int) -> Iterator[Namespace]:
    taken: set[str] = set()
    for _ in range(slot + 1):
        namespace = network.free(taken)
        taken.add(namespace.name)
    network.attach(namespace)
    try:
        yield namespace
    finally:
        network.detach(namespace.name)


def wheel(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, timeout=300)
    return next(folder.glob("*.whl"))


def timed(what: str, machine: machines.Machine, *words: str, text: str | None = None) -> None:
    began = time.monotonic()
    machine.told(*words, text=text, seconds=INSTALL_SECONDS)
    print(f"{what}: {time.monotonic() - began:.0f} s")


@dataclass(frozen=True)
class Site:
    """Where machines can be made, and what their gateway installs."""

    workspace: Workspace
    network: Network
    place: Path
    wheel: Path

    @contextmanager
    def gateway(
        self, name: str, namespace: Namespace, wanted: machines.Distribution, variables: Mapping[str, Any]
    ) -> Iterator[tuple[machines.Machine, str]]:
        """A machine on which the rendered init script has run, and that script."""
        with machines.prepared(wanted, self.place / name) as root:
            shutil.copy(self.wheel, root / "root")
            own = {
                "state_device": None,  # a volume would be shown by udev, which only a real machine has
                "wheel_url": f"file:///root/{self.wheel.name}",
                "wheel_sha256": hashlib.sha256(self.wheel.read_bytes()).hexdigest(),
            }
            script = self.workspace.rendered(name, {**variables, **own})["init_script"]
            with machines.started(root, f"sb-{name}-{self.place.name}", namespace) as machine:
                timed(f"{name}: first start", machine, "bash", "-s", text=script)
                yield machine, script


@pytest.fixture(scope="module")
def site(workspace: Workspace, engines: None, tmp_path_factory: pytest.TempPathFactory) -> Site:
    place = tmp_path_factory.mktemp("fleet")
    return Site(workspace, Network(place, SUBNET), place, wheel(place / "wheel"))


@pytest.fixture(scope="module")
def fleet(site: Site) -> Iterator[Fleet]:
    with attached(site.network, 0) as own:
        here = {"listen_host": own.address, "public_ipv4": own.address, "private_network": SUBNET}
        with site.gateway("gateway", own, machines.DEBIAN_12, {**FULL, **here}) as (machine, script):
            yield Fleet(machine, own.address, script, site.network, site.place)


def assert_well(machine: machines.Machine, *units: str) -> None:
    """All units become active, and none of ours has failed; others may lack a part of a whole machine."""
    try:
        wait_until(lambda: machine.run("systemctl", "is-active", *units).stdout == "active\n" * len(units), 60)
    except AssertionError:
        raise AssertionError(machine.run("systemctl", "status", "--no-pager", *units).stdout) from None
    assert machine.told("systemctl", "list-units", "--failed", "--no-legend", "--plain", "sandbox-*") == ""


def test_the_gateway_answers_over_tls_and_shows_nodes_its_port_only(fleet: Fleet) -> None:
    assert_well(fleet.gateway, *UNITS)
    authority = f"{STATE}/caddy/pki/authorities/local/root.crt"
    patient = ("curl", "-sS", "--fail", "--retry", "30", "--retry-all-errors", "--retry-delay", "1")  # it just started
    answer = fleet.gateway.told(*patient, "--cacert", authority, f"https://{fleet.address}/healthz")
    assert '"ok":true' in answer
    with attached(fleet.network, 1) as node:
        look = "curl --silent --show-error --max-time 3 {}"
        reached = subprocess.run(node.entered(tuple(look.format(f"{fleet.url}/healthz").split())), check=False)
        assert reached.returncode == 0
        closed = subprocess.run(node.entered(tuple(look.format(f"https://{fleet.address}").split())), check=False)
        assert closed.returncode == 28, "a node reaches the proxy"
    assert fleet.gateway.run("sh", "-c", "ls /usr/local/share/ca-certificates").stdout == ""


def test_its_script_may_run_again(fleet: Fleet) -> None:
    """As for a newer release, and after a failure."""
    token = fleet.token("client")
    timed("gateway: again", fleet.gateway, "bash", "-s", text=fleet.init_script)
    assert_well(fleet.gateway, *UNITS)
    assert fleet.token("client") == token


def test_the_autoscaler_starts_when_the_clouds_token_arrives(fleet: Fleet) -> None:
    config = "/etc/sandbox-fleet/autoscaler.toml"
    nowhere = r's|^\[providers.hetzner\]|&\nendpoint = "http://127.0.0.1:9/v1"|'
    fleet.gateway.told("sed", "-i", nowhere, config)
    put = ("install", "-m", "0600", "-o", "sandbox-autoscaler", "/dev/stdin", f"{STATE}/autoscaler/hcloud.token")
    fleet.gateway.told(*put, text="secret\n")
    said = ("journalctl", "--no-pager", "--unit", "sandbox-autoscaler")
    wait_until(lambda: "provider hetzner cannot be listed" in fleet.gateway.run(*said).stdout, 60)
    assert_well(fleet.gateway, "sandbox-autoscaler.service")


def ordered(fleet: Fleet, root: Path, name: str) -> None:
    """What a provider would do: user data for the machine that it makes."""
    operator = fleet.operator
    token = operator.join_token(JoinTokenRequest(instance=name, pool="cpu", operation_id=f"op-{name}")).token
    boot = user_data.NodeBoot(
        gateway_url=fleet.url,
        join_token=token,
        instance=name,
        pool="cpu",
        role="sandbox",
        # Loop devices and control groups are this kernel's, so each node has a root of its own.
        settings={"runtimes": ["runsc"], "root": f"/var/lib/{name}", "memory_mb": 1024, "disk_mb": 2048},
        bundle_sha256=operator.bundle().sha256,
    )
    seed = root / "var/lib/cloud/seed/nocloud"
    seed.mkdir(parents=True)
    (seed / "user-data").write_text(user_data.for_cloud_init(boot))
    (seed / "meta-data").write_text(f"instance-id: {name}\n")
    (root / "etc/cloud/cloud.cfg.d/99-test.cfg").write_text(CLOUD_INIT)


def joined(fleet: Fleet, machine: machines.Machine, name: str) -> NodeRecord:
    """The node, once the gateway has its first heartbeat."""
    operator = fleet.operator

    def there() -> list[NodeRecord]:
        return [node for node in operator.nodes() if node.instance == name and node.heartbeat_at is not None]

    try:
        wait_until(lambda: bool(there()), INSTALL_SECONDS)
    except AssertionError:
        raise AssertionError(
            machine.run("journalctl", "--no-pager", "--unit", "sandbox-fleet-*").stdout[-5000:]
        ) from None
    return there()[0]


def heartbeat(fleet: Fleet, name: str) -> datetime | None:
    return next(node.heartbeat_at for node in fleet.operator.nodes() if node.instance == name)


@pytest.mark.parametrize("name", NODES)
def test_a_machine_becomes_a_node_and_runs_a_sandbox(fleet: Fleet, name: str) -> None:
    with ExitStack() as stack:
        namespace = stack.enter_context(attached(fleet.network, 1))
        root = stack.enter_context(machines.prepared(NODES[name], fleet.place / name))
        ordered(fleet, root, name)
        began = time.clock_gettime(time.CLOCK_BOOTTIME)
        machine = stack.enter_context(machines.started(root, f"sb-{name}-{fleet.place.name}", namespace))
        node = joined(fleet, machine, name)
        stages = node.stages
        assert stages is not None
        moments = {stage: moment for stage, moment in stages.model_dump().items() if moment is not None}
        print(name, {stage: round(moment - began, 1) for stage, moment in moments.items()})
        assert len(moments) == 6 and list(moments.values()) == sorted(moments.values())
        assert_well(machine, "sandbox-fleet-node.service")

        image(machine)
        create = ("run", "--keep", "--name", name, "--memory", "256", "--disk", "256", "tiny:1", "--")
        done = fleet.sandboxes(*create, "sh", "-c", "echo here >/tmp/x; dmesg")
        assert done.returncode == 0 and "gVisor" in done.stdout, done.stdout + done.stderr
        machine.told("systemctl", "restart", "sandbox-fleet-node.service")
        heard = heartbeat(fleet, name)
        wait_until(lambda: heartbeat(fleet, name) != heard, 60)
        done = fleet.sandboxes("exec", name, "--", "sh", "-c", "cat /tmp/x")
        assert done.stdout == "here\n", done.stderr
        assert fleet.sandboxes("rm", name).returncode == 0


def image(machine: machines.Machine) -> None:
    """An image of nothing but busybox, in the machine's own Docker engine."""
    programs = "mkdir -p /tmp/i/bin && cd /tmp/i && cp $(command -v busybox) bin/"
    links = "for name in sh sleep dmesg cat echo; do ln -sf busybox bin/$name; done"
    machine.told("sh", "-c", f"{programs} && {links} && tar c . | docker import - tiny:1")


def test_a_gateway_without_cloud_init_on_the_image_that_ucloud_has(site: Site) -> None:
    with (
        attached(site.network, 1) as own,
        site.gateway("gateway-ubuntu", own, machines.UBUNTU_24_04, BEHIND_A_PROXY) as (machine, _),
    ):
        assert_well(machine, "sandbox-gateway.service", "sandbox-autoscaler.path")
        answer = requests.get(f"http://{own.address}:{PORT}/healthz", timeout=10)
        assert answer.json()["ok"] is True
