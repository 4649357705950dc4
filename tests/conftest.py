"""Fixtures for all tests."""

from tests.engines.fixtures import docker_daemon, engines, test_images

__all__ = ["docker_daemon", "engines", "test_images"]
