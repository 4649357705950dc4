"""Marks of the contract suite."""

from collections.abc import Callable
from typing import Any, TypeVar

Test = TypeVar("Test", bound=Callable[..., Any])


def also_on_runc(test: Test) -> Test:
    """Run a test on Docker with plain runc too."""
    test.also_on_runc = True  # type: ignore[attr-defined]
    return test


def docker_only(test: Test) -> Test:
    """Run a test on Docker alone, with gVisor."""
    test.docker_only = True  # type: ignore[attr-defined]
    return test


def runsc_only(test: Test) -> Test:
    """Run a test on the direct runtime alone."""
    test.runsc_only = True  # type: ignore[attr-defined]
    return test
