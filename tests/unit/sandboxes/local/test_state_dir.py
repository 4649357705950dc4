"""The state directory: closed to others, locked by one service, its files replaced atomically."""

import subprocess
import sys
from pathlib import Path

import pytest
from click import ClickException

from sandboxes.local.state_dir import LONGEST_ROOT, StateDir, locked, open_log, write_private


def test_directories_are_closed_to_others(short: Path) -> None:
    directory = StateDir(short / "state")
    directory.make()
    directory.make()
    for path in (
        directory.root,
        directory.gateway,
        directory.autoscaler,
        directory.instances,
        directory.tokens,
        directory.logs,
    ):
        assert path.stat().st_mode & 0o077 == 0, path


def test_socket_below_the_longest_root_fits_into_linux(short: Path) -> None:
    directory = StateDir(Path("/" + "x" * (LONGEST_ROOT - 1)))
    assert len(str(directory.docker_socket)) < 107


def test_longer_root_is_refused(short: Path) -> None:
    with pytest.raises(ClickException, match="--state-dir"):
        StateDir(short / ("x" * LONGEST_ROOT)).make()


def test_unmake_removes_empty_directories(short: Path) -> None:
    directory = StateDir(short / "state")
    assert directory.make()
    with locked(directory.lock):
        directory.unmake()
    assert not directory.root.exists()


def test_unmake_keeps_directories_with_files(short: Path) -> None:
    directory = StateDir(short / "state")
    directory.make()
    (directory.logs / "docker.log").write_text("why it failed")
    with locked(directory.lock):
        directory.unmake()
    assert (directory.logs / "docker.log").exists() and directory.tokens.exists()
    assert not directory.make()


def test_log_is_private_and_appended_to(tmp_path: Path) -> None:
    for word in (b"one ", b"two"):
        with open_log(tmp_path / "log") as file:
            file.write(word)
    assert (tmp_path / "log").read_bytes() == b"one two"
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600
    with pytest.raises(ClickException):
        open_log(tmp_path / "none" / "log")


def test_private_file_is_replaced_atomically(tmp_path: Path) -> None:
    path = tmp_path / "token"
    write_private(path, "one")
    write_private(path, "two")
    assert path.read_text() == "two"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ClickException):
        write_private(tmp_path / "none" / "token", "one")


def test_lock_has_one_holder(tmp_path: Path) -> None:
    lock = tmp_path / "up.lock"
    holder = "import sys; from pathlib import Path; from sandboxes.local.state_dir import locked\n"
    holder += f"with locked(Path({str(lock)!r})): print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(ClickException, match=str(other.pid)), locked(lock):
            pass
        other.kill()
    with locked(lock):
        pass
