"""Fixtures for all tests, and how failures are reported."""

import gc
import signal
from collections.abc import Generator

import pytest

from tests.engines.fixtures import docker_daemon, engines, pooler, postgres_server, postgres_url, test_images
from tests.engines.outside import outside

__all__ = ["docker_daemon", "engines", "outside", "pooler", "postgres_server", "postgres_url", "test_images"]


def pytest_configure() -> None:
    """Have SIGINT end the programs that tests start, also where this run ignores it, as under nohup."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Collects no garbage while a failure is put into words.

    Up to Python 3.11.7 `ast.parse`, with which pytest finds the source of a failure, breaks with a `SystemError` when a
    finalizer that the collection runs, or a thread that it lets in, parses as well (python/cpython#106905); that would
    end the whole run without telling what failed.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        return (yield)
    finally:
        if enabled:
            gc.enable()
