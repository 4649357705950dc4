"""The command line against a fake gateway."""

import sys
from collections.abc import Iterator

import pytest

from gateway.wire.sandboxes import SandboxSpec
from sandboxes import app
from tests.fakes.gateway import TOKEN, Gateway, sandbox_record
from tests.unit.sandboxes.cli_process import Cli


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with Gateway() as running:
        yield running


@pytest.fixture
def environment(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    own = {"UCLOUD_SANDBOX_URL": gateway.url, "UCLOUD_SANDBOX_API_TOKEN": TOKEN}
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    return own


@pytest.fixture
def cli(environment: dict[str, str], capfdbinary: pytest.CaptureFixture[bytes]) -> Cli:
    """Return a function that runs one command line and returns its exit code, stdout and stderr."""

    def call(*words: str) -> tuple[int, bytes, str]:
        capfdbinary.readouterr()
        code = app.run(list(words))
        sys.stdout.flush()
        out, err = capfdbinary.readouterr()
        return code, out, err.decode()

    return call


@pytest.fixture
def box(gateway: Gateway) -> str:
    gateway.sandboxes["box"] = sandbox_record(SandboxSpec(id="box", image="busybox", labels={"team": "a"}))
    return "box"
