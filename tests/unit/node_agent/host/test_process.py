"""Host commands: their output, their deadline, and what is left of them."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from node_agent.host.process import CommandError, ended_within, how_ended, kill_group, readable, run, start


def test_stdout_is_returned_whole_and_input_is_fed() -> None:
    data = bytes(range(256)) * 4096

    assert run(["cat"], stdin=data) == data


def test_failure_carries_exit_code_and_both_outputs() -> None:
    with pytest.raises(CommandError) as error:
        run(["sh", "-c", "echo out; echo err >&2; exit 3"])

    assert error.value.code == 3
    assert error.value.output == "err\nout\n"


@pytest.mark.parametrize("program", ["/not/there", "/etc/passwd"])
def test_command_that_cannot_start_has_no_exit_code(program: str) -> None:
    with pytest.raises(CommandError) as error:
        run([program])

    assert error.value.code is None


def test_deadline_kills_the_whole_group() -> None:
    held, inherited = os.pipe()
    try:
        with pytest.raises(CommandError) as error:
            run(["sh", "-c", "sleep 1000 & exec sleep 1000"], timeout=0.2, pass_fds=[inherited])
        os.close(inherited)
        assert error.value.code is None
        assert readable(held, 10), "a process of the group still holds the pipe"
        assert os.read(held, 1) == b""
    finally:
        os.close(held)


def test_background_child_is_not_waited_for() -> None:
    pid = int(run(["sh", "-c", "sleep 1000 & echo $!"], timeout=600))

    os.kill(pid, signal.SIGKILL)


def test_command_leaves_no_descriptor_behind() -> None:
    run(["true"])
    before = len(list(Path("/proc/self/fd").iterdir()))
    run(["true"])
    with pytest.raises(CommandError):
        run(["false"])

    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_end_is_awaited_and_the_exit_code_known() -> None:
    process = start(
        ["sh", "-c", "exit 5"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )

    assert ended_within(process, 60)
    assert process.returncode == 5
    assert ended_within(process, 0)


def test_killed_group_is_reaped() -> None:
    process = start(["sleep", "1000"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    assert not ended_within(process, 0)
    kill_group(process)
    kill_group(process)

    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize(("script", "status"), [("exit 3", 3 << 8), ("kill -9 $$", 9)])
def test_end_of_a_process_that_its_parent_has_not_asked_for_is_known(script: str, status: int) -> None:
    process = subprocess.Popen(["sh", "-c", script])
    handle = os.pidfd_open(process.pid)
    try:
        assert how_ended(handle, 60) == status
    finally:
        os.close(handle)
        process.wait()


def test_end_of_a_process_that_runs_is_not_known() -> None:
    handle = os.pidfd_open(os.getpid())
    try:
        assert how_ended(handle, 0) is None
    finally:
        os.close(handle)


def test_end_of_a_process_that_its_parent_has_asked_for_is_never_told_wrongly() -> None:
    """Linux tells it from 6.15 on."""
    process = subprocess.Popen(["sh", "-c", "exit 3"])
    handle = os.pidfd_open(process.pid)
    try:
        process.wait()
        assert how_ended(handle, 0) in (3 << 8, None)
    finally:
        os.close(handle)
