"""The state directory: closed to others, held by one, written whole or not at all."""

import subprocess
import sys
from pathlib import Path

import pytest

from sandboxes.errors import CommandFailed
from sandboxes.local.state_dir import LONGEST_ROOT, Layout, held, open_log, write_private


def test_its_directories_are_closed_to_others(short: Path) -> None:
    layout = Layout(short / "state")
    layout.make()
    layout.make()
    for path in (layout.root, layout.gateway, layout.autoscaler, layout.instances, layout.tokens, layout.logs):
        assert path.stat().st_mode & 0o077 == 0, path


def test_the_socket_below_the_longest_root_fits_into_linux(short: Path) -> None:
    layout = Layout(Path("/" + "x" * (LONGEST_ROOT - 1)))
    assert len(str(layout.docker_socket)) < 107


def test_a_longer_root_is_refused(short: Path) -> None:
    with pytest.raises(CommandFailed, match="shorter one with --state-dir"):
        Layout(short / ("x" * LONGEST_ROOT)).make()


def test_a_start_that_failed_at_once_leaves_nothing(short: Path) -> None:
    layout = Layout(short / "state")
    assert layout.make()
    with held(layout.lock):
        layout.unmake()
    assert not layout.root.exists()


def test_what_has_come_into_the_directories_stays(short: Path) -> None:
    layout = Layout(short / "state")
    layout.make()
    (layout.logs / "docker.log").write_text("why it failed")
    with held(layout.lock):
        layout.unmake()
    assert (layout.logs / "docker.log").exists() and layout.tokens.exists()
    assert not layout.make()


def test_a_log_is_closed_to_others_and_goes_on_at_its_end(tmp_path: Path) -> None:
    for word in (b"one ", b"two"):
        with open_log(tmp_path / "log") as file:
            file.write(word)
    assert (tmp_path / "log").read_bytes() == b"one two"
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600
    with pytest.raises(CommandFailed, match="cannot open"):
        open_log(tmp_path / "none" / "log")


def test_a_private_file_is_replaced_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "token"
    write_private(path, "one")
    write_private(path, "two")
    assert path.read_text() == "two"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match=r"cannot write .*: No such file or directory"):
        write_private(tmp_path / "none" / "token", "one")


def test_two_cannot_hold_one_lock(tmp_path: Path) -> None:
    lock = tmp_path / "up.lock"
    holder = "import sys; from pathlib import Path; from sandboxes.local.state_dir import held\n"
    holder += f"with held(Path({str(lock)!r})): print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(CommandFailed, match=rf"process {other.pid}\) runs over"), held(lock):
            pass
        other.kill()
    with held(lock):
        pass
