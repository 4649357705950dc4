"""The fake is judged by the same suite as the real ones."""

from collections.abc import Callable

import pytest

from providers.testing.contract import Harness, ProviderContract
from providers.testing.fake import FakeCloud, FakeProvider


class FakeHarness(Harness):
    def __init__(self) -> None:
        self.cloud = FakeCloud()

    def provider(self, deployment: str) -> FakeProvider:
        return FakeProvider(self.cloud, deployment)

    def settle(self, condition: Callable[[], bool]) -> None:
        for _ in range(100):
            if condition():
                return
            self.cloud.advance(1)
        raise TimeoutError("100 s of the cloud's time were not enough")

    def exhaust_rate(self) -> None:
        self.cloud.rate_exhausted = True


class TestFake(ProviderContract):
    @pytest.fixture
    def harness(self) -> Harness:
        return FakeHarness()
