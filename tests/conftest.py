"""Fixtures for all tests, and which of them share a process."""

import pytest

from tests.engines.fixtures import docker_daemon, engines, test_images

__all__ = ["docker_daemon", "engines", "test_images"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests on real engines share one process, and so one Docker daemon; of the others, each file stays together."""
    for item in items:
        engine = item.get_closest_marker("engine") is not None
        item.add_marker(pytest.mark.xdist_group("engines" if engine else str(item.path)))
