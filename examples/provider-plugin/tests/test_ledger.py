"""The suite that every provider passes, over the class that is installed."""

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from providers import registry
from providers.base import ComputeProvider, Instance
from providers.testing.contract import Harness, ProviderContract

SECONDS = 10.0


class LedgerHarness(Harness):
    def __init__(self, path: Path) -> None:
        self._path = path
        self.settings = {"path": str(path)}

    def provider(self, deployment: str) -> ComputeProvider:
        return registry.build("ledger", self.settings, deployment=deployment, environ={})

    def settle(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{SECONDS:.0f} s were not enough")
            time.sleep(0.05)

    def user_data_of(self, instance: Instance) -> str:
        with closing(sqlite3.connect(self._path)) as db:
            return db.execute("SELECT user_data FROM vm WHERE id = ?", (instance.id,)).fetchone()[0]


class TestLedger(ProviderContract):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> Harness:
        return LedgerHarness(tmp_path / "ledger.db")
