"""An emulated project, and providers of it."""

from typing import Any

from providers.base import POOL_LABEL, Create
from providers.hetzner.provider import HetznerProvider
from providers.hetzner.settings import parse
from tests.fakes.hetzner.control import Control

DEPLOYMENT = "unit"


class Lab:
    """One project, with what tests need of it."""

    def __init__(self, cloud: Control) -> None:
        self.cloud = cloud
        self.monotonic = 0.0
        """Real time, as providers see it."""

    def provider(self, deployment: str = DEPLOYMENT, **settings: Any) -> HetznerProvider:
        given = {"endpoint": self.cloud.api, "ssh_keys": ["fleet"], "leftovers_seconds": 0, **settings}
        return HetznerProvider(parse(given), self.cloud.token, deployment=deployment, monotonic=lambda: self.monotonic)

    def advance(self, seconds: float) -> None:
        """Let time pass everywhere."""
        self.monotonic += seconds
        self.cloud.advance(seconds)


def order(number: int | str = 1, **changes: Any) -> Create:
    """Return an order that is fine unless a field says otherwise."""
    given: dict[str, Any] = {
        "name": f"unit-cpu-op{number}",
        "operation_id": f"op{number}",
        "deployment": DEPLOYMENT,
        "pool": "cpu",
        "type": "cx33",
        "location": "fsn1",
        "image": "debian-12",
        "user_data": "#cloud-config\n",
        "labels": {POOL_LABEL: "cpu"},
    }
    return Create(**{**given, **changes})
