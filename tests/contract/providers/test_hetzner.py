"""The contract over the emulated API."""

from collections.abc import Callable, Iterator

import pytest

from providers.base import Instance
from providers.hetzner.provider import HetznerProvider
from providers.testing.contract import Harness, ProviderContract
from tests.fakes.hetzner.control import Control
from tests.fakes.hetzner.emulator import emulator


class HetznerHarness(Harness):
    image = "debian-12"

    def __init__(self, cloud: Control) -> None:
        self.cloud = cloud
        self.secrets = (cloud.token,)
        self.settings = {"endpoint": cloud.api, "ssh_keys": ["fleet"], "leftovers_seconds": 0}
        self.environ = {"HCLOUD_TOKEN": cloud.token}

    def provider(self, deployment: str) -> HetznerProvider:
        return HetznerProvider.from_settings(self.settings, deployment=deployment, environ=self.environ)

    def settle(self, condition: Callable[[], bool]) -> None:
        for _ in range(100):
            if condition():
                return
            self.cloud.advance(1)
        raise TimeoutError("100 s of the cloud's time were not enough")

    def exhaust_rate(self) -> None:
        self.cloud.ask("budget", left=0)

    def user_data_of(self, instance: Instance) -> str:
        return str(next(server["user_data"] for server in self.cloud.here() if str(server["id"]) == instance.id))


class TestHetzner(ProviderContract):
    @pytest.fixture
    def harness(self) -> Iterator[Harness]:
        with emulator() as cloud:
            yield HetznerHarness(cloud)
