"""The contract over the emulator: with both kinds of credential, and with GPUs."""

from collections.abc import Callable, Iterator

import pytest

from providers.base import USER_DATA_LABEL, Instance
from providers.testing.contract import Harness, ProviderContract
from providers.ucloud.provider import UCloudProvider
from tests.fakes.ucloud.auth import API_TOKEN, REFRESH_TOKEN
from tests.fakes.ucloud.lab import ENVIRON, GPU, Lab, lab


class UCloudHarness(Harness):
    image = "vm-ubuntu/24.04"
    user_data = '{"gateway_url": "http://10.0.0.1:8080"}'
    secrets = (API_TOKEN, REFRESH_TOKEN)

    def __init__(self, account: Lab, **settings: object) -> None:
        self._account = account
        self.settings = account.settings(**settings)
        self.environ = ENVIRON

    def provider(self, deployment: str) -> UCloudProvider:
        return UCloudProvider.from_settings(self.settings, deployment=deployment, environ=self.environ)

    def settle(self, condition: Callable[[], bool]) -> None:
        self._account.settle(condition)

    def user_data_of(self, instance: Instance) -> str:
        return str(self._account.remote.truth()["jobs"][instance.id]["labels"][USER_DATA_LABEL])


@pytest.fixture
def account() -> Iterator[Lab]:
    with lab() as made:
        yield made


class TestWithAnApiToken(ProviderContract):
    @pytest.fixture
    def harness(self, account: Lab) -> Harness:
        return UCloudHarness(account, api_token_env="API")


class TestWithARefreshToken(ProviderContract):
    @pytest.fixture
    def harness(self, account: Lab) -> Harness:
        return UCloudHarness(account, refresh_token_env="REFRESH")


class TestWithGpus(ProviderContract):
    @pytest.fixture
    def harness(self, account: Lab) -> Harness:
        account.remote.ask("product", name=GPU, vm=True)
        return UCloudHarness(account, allow_gpu=True)
