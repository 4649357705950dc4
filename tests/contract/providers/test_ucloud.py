"""The contract over the emulator, with both kinds of credential."""

from collections.abc import Callable, Iterator

import pytest

from providers.testing.contract import Harness, ProviderContract
from providers.ucloud import UCloudProvider
from tests.fakes.ucloud.auth import API_TOKEN, PROJECT, REFRESH_TOKEN
from tests.fakes.ucloud.emulator import Emulator, emulated
from tests.fakes.ucloud.remote import Remote

STEP = 5.0
STEPS = 200


class UCloudHarness(Harness):
    image = "vm-ubuntu/24.04"
    user_data = '{"gateway": "http://10.0.0.1:8080"}'

    def __init__(self, emulator: Emulator, remote: Remote, settings: dict[str, object]) -> None:
        self.remote = remote
        self._settings = {
            "base_url": emulator.url,
            "project": PROJECT,
            "bootstrap_folder": "/12/bootstrap/ab12",
            "page_size": 4,
            **settings,
        }

    def provider(self, deployment: str) -> UCloudProvider:
        environ = {"API": API_TOKEN, "REFRESH": REFRESH_TOKEN}
        return UCloudProvider.from_settings(self._settings, deployment=deployment, environ=environ)

    def settle(self, condition: Callable[[], bool]) -> None:
        for _ in range(STEPS):
            if condition():
                return
            self.remote.advance(STEP)
        raise TimeoutError(f"{STEP * STEPS:.0f} s of the emulator's time were not enough")


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    with emulated() as running:
        yield running


@pytest.fixture
def remote(emulator: Emulator) -> Iterator[Remote]:
    handle = Remote(emulator.control_url)
    handle.do("history", count=120)
    handle.do("job", do="foreign", labels={"sandbox-fleet/deployment": "somebody"})
    yield handle
    handle.close()


class TestWithAnApiToken(ProviderContract):
    @pytest.fixture
    def harness(self, emulator: Emulator, remote: Remote) -> Harness:
        return UCloudHarness(emulator, remote, {"api_token_env": "API"})


class TestWithARefreshToken(ProviderContract):
    @pytest.fixture
    def harness(self, emulator: Emulator, remote: Remote) -> Harness:
        return UCloudHarness(emulator, remote, {"refresh_token_env": "REFRESH"})


class TestWithGpus(ProviderContract):
    @pytest.fixture
    def harness(self, emulator: Emulator, remote: Remote) -> Harness:
        remote.do("product", name="gpu-nvidia-b200-1-gpu", vm=True)
        return UCloudHarness(emulator, remote, {"api_token_env": "API", "allow_gpu": True})
