"""The contract over real supervisor processes."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from providers.base import Instance, Ref
from providers.local.provider import LocalProvider
from providers.testing.contract import Harness, ProviderContract

SECONDS = 30.0
NODE = (sys.executable, "-c", "import signal; signal.pause()")


def note(text: str) -> str:
    """User data of one file."""
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


class TestLocal(ProviderContract):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> Iterator[Harness]:
        harness = LocalHarness(tmp_path / "vms")
        yield harness
        harness.close()
