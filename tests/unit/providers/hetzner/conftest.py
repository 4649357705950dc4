"""Emulated projects."""

from collections.abc import Iterator

import pytest

from tests.fakes.hetzner.emulator import emulator
from tests.unit.providers.hetzner.lab import Lab


@pytest.fixture
def lab() -> Iterator[Lab]:
    with emulator() as cloud:
        yield Lab(cloud)


@pytest.fixture(scope="module")
def shared() -> Iterator[Lab]:
    """One project for the whole module, for tests that leave nothing in it."""
    with emulator() as cloud:
        yield Lab(cloud)
