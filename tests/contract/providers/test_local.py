"""The contract over real supervisor processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from providers.testing.contract import Harness, ProviderContract
from tests.contract.providers.harnesses import LocalHarness


class TestLocal(ProviderContract):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> Iterator[Harness]:
        harness = LocalHarness(tmp_path / "vms")
        yield harness
        harness.close()
