"""An emulator and providers for it: what every test of the `ucloud` provider starts from."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from providers.base import DEPLOYMENT_LABEL, POOL_LABEL, Create, Instance, Phase, Ref
from providers.ucloud.provider import UCloudProvider
from tests.fakes.ucloud.auth import API_TOKEN, PROJECT, REFRESH_TOKEN
from tests.fakes.ucloud.control import Remote
from tests.fakes.ucloud.emulator import Emulator, emulated

DEPLOYMENT = "fleet"
CPU = "cpu-amd-zen5-4-vcpu"
GPU = "gpu-nvidia-b200-1-gpu"
ENVIRON = {"API": API_TOKEN, "REFRESH": REFRESH_TOKEN}
FOLDER = "/12/bootstrap/ab12"
STEP = 5.0
STEPS = 200


class Lab:
    """One account.  ``remote`` is the hand on the control port."""

    def __init__(self, emulator: Emulator, remote: Remote) -> None:
        self.url = emulator.url
        self.remote = remote

    def provider(self, deployment: str = DEPLOYMENT, **settings: Any) -> UCloudProvider:
        """Return a provider that signs in with an API token, unless another credential is named."""
        return UCloudProvider.from_settings(self.settings(**settings), deployment=deployment, environ=ENVIRON)

    def settings(self, **settings: Any) -> dict[str, object]:
        """Return the settings that `provider` is made from."""
        if not any(name.startswith(("api_token", "refresh_token")) for name in settings):
            settings["api_token_env"] = "API"
        return {"base_url": self.url, "project": PROJECT, "bootstrap_folder": FOLDER, "page_size": 4, **settings}

    def settle(self, condition: Callable[[], bool]) -> None:
        """Let time pass until the condition holds."""
        for _ in range(STEPS):
            if condition():
                return
            self.remote.advance(STEP)
        raise TimeoutError(f"{STEP * STEPS:.0f} s of the emulator's time were not enough")

    def run(self, provider: UCloudProvider, number: int = 1, **fields: Any) -> Instance:
        """Return a new instance, once it runs."""
        made = provider.create(order(number, **fields))
        self.settle(lambda: phase(provider, made.id) is Phase.RUNNING)
        return made


def order(number: int = 1, **fields: Any) -> Create:
    """Return an order that is fine unless a field says otherwise."""
    given: dict[str, Any] = {
        "name": f"fleet-cpu-op{number}",
        "operation_id": f"op{number}",
        "deployment": DEPLOYMENT,
        "pool": "cpu",
        "type": CPU,
        "location": "ucloud",
        "image": "vm-ubuntu/24.04",
        "user_data": "",
        "labels": {POOL_LABEL: "cpu"},
    }
    return Create(**(given | fields))


def phase(provider: UCloudProvider, instance_id: str) -> Phase | None:
    """Return the phase of one instance; ``None`` when it is not found."""
    found = provider.get(Ref(id=instance_id))
    return found.phase if found is not None else None


@contextlib.contextmanager
def lab(**options: Any) -> Iterator[Lab]:
    """Yield a lab for the length of the ``with`` block, with old jobs of other people in it."""
    with emulated(**options) as emulator:
        remote = Remote(emulator.control_url)
        try:
            remote.ask("history", count=120)
            remote.ask("job", do="foreign", labels={DEPLOYMENT_LABEL: "somebody"})
            yield Lab(emulator, remote)
        finally:
            remote.close()
