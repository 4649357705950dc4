"""Harnesses of the contract that several test modules use."""

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from providers.base import Caps, Instance, Ref
from providers.local.provider import LocalProvider
from providers.testing.contract import Harness
from providers.testing.fake import CAPS, FakeCloud, FakeProvider

OF_LABELS = replace(CAPS, unique_names=False, deleted_vanish=False, settle_seconds=10.0)
"""A cloud whose names are labels, and whose deleted instances stay listed."""
SECONDS = 30.0
NODE = (sys.executable, "-c", "import signal; signal.pause()")


class FakeHarness(Harness):
    settings: Mapping[str, object] = {}

    def __init__(self, caps: Caps = CAPS) -> None:
        self.cloud = FakeCloud(caps=caps)

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

    def user_data_of(self, instance: Instance) -> str:
        return next(machine.user_data for machine in self.cloud.made if machine.instance.id == instance.id)


def note(text: str) -> str:
    """Return user data of one file."""
    return json.dumps({"files": [{"path": "note", "content": text}]}, ensure_ascii=False)


class LocalHarness(Harness):
    user_data = note("naïve \\ %s\n\n")

    def __init__(self, root: Path) -> None:
        self.root = root
        self.settings = {"root": root, "node_command": NODE, "cleanup_command": (), "max_instances": 16}
        self.providers: list[LocalProvider] = []

    def provider(self, deployment: str) -> LocalProvider:
        made = LocalProvider.from_settings(self.settings, deployment=deployment, environ={})
        self.providers.append(made)
        return made

    def settle(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{SECONDS:.0f} s were not enough")
            time.sleep(0.02)

    def user_data_of(self, instance: Instance) -> str:
        return note((self.root / instance.name / "note").read_text())

    def close(self) -> None:
        for provider in self.providers:
            for instance in provider.list().instances:
                provider.delete(Ref(id=instance.id))
        for provider in self.providers:
            self.settle(lambda: not provider.list().instances)  # noqa: B023 - used within its own round
