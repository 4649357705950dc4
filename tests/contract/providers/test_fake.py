"""The fake cloud passes the same suite as the real ones, in both kinds of clouds."""

import pytest

from providers.testing.contract import Harness, ProviderContract
from tests.contract.providers.harnesses import OF_LABELS, FakeHarness


class TestFake(ProviderContract):
    @pytest.fixture
    def harness(self) -> Harness:
        return FakeHarness()


class TestFakeOfLabels(ProviderContract):
    @pytest.fixture
    def harness(self) -> Harness:
        return FakeHarness(OF_LABELS)
