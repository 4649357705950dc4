"""One suite, every engine.

A test that asks for ``lab`` or ``box`` runs on both engines with gVisor.  Those marked with `also_on_runc` run on
Docker with plain runc as well.
"""

import hashlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from node_agent.runtime.base import SandboxRuntime
from tests.contract.runtime.lab import Box, Lab
from tests.engines import leftovers
from tests.engines.dockerd import Daemon
from tests.engines.images import TestImages

GVISOR: tuple[str, ...] = ("runsc", "docker")
ALL = (*GVISOR, "docker-runc")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each test its engines."""
    if "lab" in metafunc.fixturenames:
        names = ALL if getattr(metafunc.function, "also_on_runc", False) else GVISOR
        if getattr(metafunc.function, "docker_only", False):
            names = ("docker",)
        if getattr(metafunc.function, "runsc_only", False):
            names = ("runsc",)
        metafunc.parametrize("lab", names, indirect=True, scope="session")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything here: it needs the real engines."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.engine)


@pytest.fixture(scope="session")
def lab(request: pytest.FixtureRequest, docker_daemon: Daemon, test_images: TestImages) -> Iterator[Lab]:
    """Open an engine, and check at the end of its tests that it has left nothing at all."""
    name: str = request.param
    root = Path(tempfile.mkdtemp(prefix="sfn-", dir="/tmp"))
    tag = hashlib.sha256(str(root).encode()).hexdigest()[:8]

    def open_runtime() -> SandboxRuntime:
        if name == "runsc":
            from node_agent.runtime.runsc.runtime import RunscRuntime

            return RunscRuntime(root, tag=tag, base_url=docker_daemon.url)
        from node_agent.runtime.docker_engine.runtime import DockerRuntime

        return DockerRuntime(
            root, tag=tag, base_url=docker_daemon.url, allow_runc_without_user_namespaces=name == "docker-runc"
        )

    def open_another() -> SandboxRuntime:
        others.append(open_runtime())
        return others[-1]

    others: list[SandboxRuntime] = []
    runtime = open_runtime()
    runtime.probe()
    fields = {"runtime": name.partition("-")[0], "isolation": "runc" if name == "docker-runc" else "gvisor"}
    lab = Lab(runtime, open_another, root, tag, test_images, fields)
    yield lab
    lab.delete_all()
    left = [found.order.sandbox_id for found in runtime.found()]
    runtime.sweep()
    for other in (runtime, *others):
        other.close()
    debris = leftovers.of_node(root, tag)
    shutil.rmtree(root)
    assert (left, debris) == ([], []), "the runtime left these"


@pytest.fixture(scope="session")
def client(docker_daemon: Daemon) -> Iterator[docker.APIClient]:
    """Return a client of the engine, for looks behind the runtime's back."""
    made = docker.APIClient(base_url=docker_daemon.url, timeout=60)
    yield made
    made.close()


@pytest.fixture(scope="module")
def box(lab: Lab) -> Iterator[Box]:
    """Create a running sandbox that the tests of a module share."""
    with lab.sandbox() as shared:
        yield shared
