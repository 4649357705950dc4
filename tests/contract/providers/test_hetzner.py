"""The contract over the emulated API."""

from collections.abc import Callable, Iterator

import pytest

from providers.hetzner import HetznerProvider
from providers.testing.contract import Harness, ProviderContract
from tests.fakes.hetzner import Control, emulator


class HetznerHarness(Harness):
    image = "debian-12"

    def __init__(self, cloud: Control) -> None:
        self.cloud = cloud
        self.secrets = (cloud.token,)

    def provider(self, deployment: str) -> HetznerProvider:
        settings = {"endpoint": self.cloud.api, "ssh_keys": ["fleet"], "leftovers_seconds": 0}
        return HetznerProvider.from_settings(
            settings, deployment=deployment, environ={"HCLOUD_TOKEN": self.cloud.token}
        )

    def settle(self, condition: Callable[[], bool]) -> None:
        for _ in range(100):
            if condition():
                return
            self.cloud.advance(1)
        raise TimeoutError("100 s of the cloud's time were not enough")

    def exhaust_rate(self) -> None:
        self.cloud.ask("budget", left=0)


class TestHetzner(ProviderContract):
    @pytest.fixture
    def harness(self) -> Iterator[Harness]:
        with emulator() as cloud:
            yield HetznerHarness(cloud)
