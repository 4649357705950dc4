"""The lock of the one autoscaler that acts."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from autoscaler import lock
from autoscaler.errors import LockedError


def test_a_second_holder_is_refused_and_the_first_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a" / "lock"
    assert lock.owner(path) is None
    with lock.held(path):
        with pytest.raises(LockedError, match=f"process {os.getpid()}, since .*; stop it first"), lock.held(path):
            raise AssertionError
        assert str(os.getpid()) in str(lock.owner(path))
    assert lock.owner(path) is None
    with lock.held(path):
        assert path.stat().st_mode & 0o777 == 0o600


def test_looking_up_the_owner_keeps_nobody_from_taking_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, asked, taken = tmp_path / "lock", fcntl.fcntl, list[str]()
    path.touch()

    def at_that_moment(file: IO[str], command: int, argument: bytes) -> int | bytes:
        answer = asked(file, command, argument)
        if not taken:
            taken.append("by one that starts")
            with lock.held(path):
                pass
        return answer

    monkeypatch.setattr(fcntl, "fcntl", at_that_moment)
    assert lock.owner(path) is None
    assert taken


def test_the_kernel_frees_the_lock_of_a_killed_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    code = f"""
import sys; sys.path[:] = {sys.path!r}
from pathlib import Path; from autoscaler import lock
with lock.held(Path({str(path)!r})): print('held', flush=True); sys.stdin.read()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        with pytest.raises(LockedError, match=f"process {child.pid}"), lock.held(path):
            raise AssertionError
        child.kill()
        child.wait(timeout=30)
    with lock.held(path):
        pass
