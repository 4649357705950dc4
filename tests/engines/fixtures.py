"""The fixtures: one daemon and one set of images for a whole test run."""

import os
import shutil
from collections.abc import Iterator

import docker
import pytest

from sandboxes.local import residue
from tests.engines import postgres
from tests.engines.dockerd import Daemon, private_daemon
from tests.engines.images import TestImages, import_images
from tests.engines.pgbouncer import pooled

_TOOLS = ("dockerd", "runsc", "busybox", "nft", "ip", "mkfs.ext4")


@pytest.fixture(scope="session")
def engines() -> None:
    """Skips the test where the real engines cannot run."""
    missing = [tool for tool in _TOOLS if shutil.which(tool, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None]
    if os.geteuid() != 0 or missing:
        pytest.skip(f"needs root and {', '.join(missing) or 'nothing else'}; `sandboxes doctor` names the cure")


@pytest.fixture(scope="session")
def docker_daemon(engines: None) -> Iterator[Daemon]:
    """A private Docker daemon.  When it stops it has neither containers nor networks of tests any more."""
    with private_daemon() as daemon:
        yield daemon
        client = docker.APIClient(base_url=daemon.url, timeout=60)
        containers = [entry["Names"] for entry in client.containers(all=True)]
        networks = [entry["Name"] for entry in client.networks() if entry["Driver"] == "bridge"]
        client.close()
    assert not daemon.directory.exists()
    assert list(residue.processes((str(daemon.directory),))) == []
    assert (containers, networks) == ([], []), "tests left these in Docker"


@pytest.fixture(scope="session")
def test_images(docker_daemon: Daemon) -> TestImages:
    """Small images made on this machine."""
    client = docker.APIClient(base_url=docker_daemon.url, timeout=60)
    try:
        return import_images(client)
    finally:
        client.close()


@pytest.fixture(scope="module")
def postgres_server() -> Iterator[postgres.Server]:
    """A PostgreSQL server of this module's own, which its tests may stop, freeze and break."""
    with postgres.own_server() as server:
        yield server


@pytest.fixture(scope="module")
def pooler(postgres_server: postgres.Server) -> Iterator[int]:
    """Port of a PgBouncer before the module's own PostgreSQL."""
    with pooled(postgres_server) as port:
        yield port


@pytest.fixture
def postgres_url() -> Iterator[str]:
    """URL of an empty PostgreSQL database of this test's own."""
    with postgres.database() as url:
        yield url
