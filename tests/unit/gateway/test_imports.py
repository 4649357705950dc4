"""What the base install must do without: importing the client or the command line brings no server library."""

import subprocess
import sys

import pytest

SERVER_ONLY = {
    "fastapi",
    "starlette",
    "uvicorn",
    "aiohttp",
    "sqlmodel",
    "sqlalchemy",
    "alembic",
    "docker",
    "apscheduler",
}


@pytest.mark.parametrize("module", ["gateway.client", "sandboxes", "sandboxes.app", "gateway.cli", "gateway.wire"])
def test_no_server_library_is_loaded(module: str) -> None:
    code = f"import {module}, sys; print(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert not SERVER_ONLY & set(done.stdout.split())
