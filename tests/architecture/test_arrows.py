"""Imports: the contracts in pyproject.toml hold, and light modules load no heavy dependency."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_every_import_contract_holds() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-logo", "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("gateway.wire.nodes", ["fastapi", "starlette", "sqlmodel", "aiohttp", "requests", "typer"]),
        ("gateway.client", ["fastapi", "starlette", "sqlmodel", "aiohttp"]),
        ("gateway.cli", ["fastapi", "starlette", "uvicorn", "sqlmodel", "sqlalchemy", "alembic", "aiohttp"]),
        ("sandboxes.app", ["fastapi", "starlette", "sqlmodel", "aiohttp", "docker", "apscheduler"]),
        ("providers.base", ["gateway", "pydantic", "requests"]),
        (
            "ucloud_sandboxes_sdk",
            ["gateway", "node_agent", "autoscaler", "providers", "sandboxes", "pydantic"],
        ),
    ],
)
def test_import_loads_no_heavy_dependency(module: str, unwanted: list[str]) -> None:
    code = f"import sys, {module}; print(*(set(sys.modules) & set({unwanted!r})))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
