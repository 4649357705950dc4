"""The README's example as a program: what a reader sees when the service refuses, or is not there."""

import subprocess
import sys
from pathlib import Path

import pytest

from gateway.wire.errors import ErrorCode
from tests.fakes.gateway import Gateway, error

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "hello.py"


def run_example() -> tuple[int, str, str]:
    done = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


def test_an_image_that_cannot_be_pulled_is_one_line(environment: dict[str, str], gateway: Gateway) -> None:
    gateway.next("POST", "/v1/sandboxes", error(ErrorCode.IMAGE_ERROR, "image python:3.12-slim: no registry answers"))
    assert run_example() == (1, "", "error: image python:3.12-slim: no registry answers\n")


def test_a_service_that_is_not_named_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("UCLOUD_SANDBOX_URL", "UCLOUD_SANDBOX_API_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    code, out, err = run_example()
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "UCLOUD_SANDBOX_URL" in err
