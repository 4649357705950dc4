"""``sandboxes up`` that cannot work prints one line with the reason and leaves nothing half-started."""

import contextlib
import json
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxes.local import residue
from sandboxes.local.demo import free_port
from sandboxes.local.state_dir import StateDir, locked
from tests.gateway_process import gateway_process, new_token
from tests.stack import state

pytestmark = pytest.mark.engine

UP = [sys.executable, "-m", "sandboxes", "up"]


@pytest.fixture
def directory(engines: None) -> Iterator[StateDir]:
    with state() as made:
        yield made


def refusal(root: Path, *options: str, before: tuple[str, ...] = ()) -> str:
    """Run ``sandboxes up``, which must fail and leave nothing, and return its one line."""
    done = subprocess.run(
        [*before, *UP, "--state-dir", str(root), *options],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode not in {0, -9}, done.stdout
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert list(residue.processes((f"{root}/",))) == []
    assert list(residue.mount_points((f"{root}/",))) == []
    return errors[0]


def test_taken_port(directory: StateDir) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        said = refusal(directory.root, "--port", str(number))
    assert f"port {number}" in said
    assert "--port" in said


def test_port_of_another_gateway(directory: StateDir, tmp_path: Path) -> None:
    new_token(tmp_path, "operator")
    with gateway_process(tmp_path) as other:
        number = other.url.rpartition(":")[2]
        said = refusal(directory.root, "--port", number)
    assert f"port {number}" in said
    assert "--port" in said


def test_locked_state_directory(directory: StateDir) -> None:
    directory.make()
    with locked(directory.lock):
        said = refusal(directory.root, "--port", str(free_port()))
    assert "--state-dir" in said


def test_too_long_path(directory: StateDir) -> None:
    said = refusal(directory.root / ("x" * 40), "--port", str(free_port()))
    assert "--state-dir" in said


def test_path_that_is_a_file(directory: StateDir) -> None:
    (directory.root / "file").touch()
    assert str(directory.root / "file") in refusal(directory.root / "file", "--port", str(free_port()))


@pytest.mark.parametrize("size", ["64k", "1m"])
def test_full_disk(directory: StateDir, size: str) -> None:
    disk = directory.root / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", disk], check=True, timeout=10)
    try:
        with contextlib.suppress(OSError):
            (disk / "filling").write_bytes(b"x" * 2**20)
        said = refusal_on(disk)
    finally:
        subprocess.run(["umount", disk], check=True, timeout=10)
    assert "disk" in said or "space" in said


def refusal_on(disk: Path) -> str:
    return refusal(disk / "s", "--port", str(free_port()))


def test_missing_engine(directory: StateDir) -> None:
    hide = ("unshare", "-m", "sh", "-c", 'mount --bind /dev/null "$(command -v runsc)" && exec "$@"', "sh")
    said = refusal(directory.root, "--port", str(free_port()), before=hide)
    assert "gVisor" in said or "runsc" in said


def test_unknown_setting(directory: StateDir) -> None:
    said = refusal(directory.root, "--port", str(free_port()), before=("env", "SANDBOXES_GATEWAY_COLOUR=red"))
    assert "colour" in said


def test_node_that_cannot_start(directory: StateDir) -> None:
    command = ["sh", "-c", "echo 'sandboxes node: no engine works on this machine' >&2; exit 1"]
    local = {"local": {"root": str(directory.instances), "node_command": command, "cleanup_command": []}}
    before = ("env", f"SANDBOXES_AUTOSCALER_PROVIDERS={json.dumps(local)}")
    said = refusal(directory.root, "--port", str(free_port()), before=before)
    assert "no engine works on this machine" in said
    (log,) = directory.logs.glob("*local*.log")
    assert str(log) in said and "no engine works" in log.read_text()


@pytest.mark.soak
def test_autoscaler_that_cannot_start(directory: StateDir) -> None:
    before = ("env", "SANDBOXES_AUTOSCALER_TICK_SECONDS=never")
    said = refusal(directory.root, "--port", str(free_port()), before=before)
    assert "autoscaler" in said and "tick_seconds" in said


def test_database_of_a_newer_version(directory: StateDir) -> None:
    directory.make()
    create = ["token", "create", "--name", "x", "--scope", "client", "--state-dir", str(directory.gateway)]
    subprocess.run([*UP[:-1], *create], check=True, timeout=60, capture_output=True)
    with contextlib.closing(sqlite3.connect(directory.gateway / "gateway.db")) as database:
        database.execute("UPDATE alembic_version SET version_num = 'v9999'")
        database.commit()
    said = refusal(directory.root, "--port", str(free_port()))
    assert "newer" in said


@pytest.mark.parametrize("port", ["0", "65536", "http"])
def test_invalid_port(directory: StateDir, port: str) -> None:
    done = subprocess.run(
        [*UP, "--state-dir", str(directory.root), "--port", port],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "--port" in done.stderr
