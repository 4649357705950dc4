"""Input and output of processes: byte-exact, bounded, and over when the process is."""

import contextlib
import hashlib
import os
from pathlib import Path

import pytest

from gateway.wire import limits
from gateway.wire.errors import ErrorCode
from node_agent.errors import RuntimeFailure
from tests.contract.runtime.lab import Box, read_all, read_until
from tests.contract.runtime.marks import also_on_runc

MIB = 1024 * 1024


@also_on_runc
def test_stdout_and_stderr_are_kept_apart(box: Box) -> None:
    result = box.sh("echo out; echo err >&2; exit 3")

    assert (result.code, result.stdout, result.stderr) == (3, b"out\n", b"err\n")


@also_on_runc
def test_first_output_is_never_lost(box: Box) -> None:
    for number in range(10):
        assert box.run("echo", str(number)).stdout == f"{number}\n".encode()


def test_characters_split_across_writes_arrive_byte_exact(box: Box) -> None:
    script = r"printf '\342'; read x; printf '\202'; read x; printf '\254\n'"
    with contextlib.closing(box.exec("sh", "-c", script, stdin=True)) as process:
        seen = read_until(process, b"\xe2")
        process.write(b"\n")
        seen += read_until(process, b"\x82")
        process.write(b"\n")
        seen += read_all(process)[0]

    assert seen == "€\n".encode()


@also_on_runc
def test_binary_output_is_byte_exact(box: Box) -> None:
    box.text("head -c 3000000 /dev/urandom >/workspace/noise")

    data = box.run("cat", "/workspace/noise").stdout

    assert hashlib.sha256(data).hexdigest() == box.text("sha256sum </workspace/noise").split()[0]


def test_hundred_megabytes_of_output_take_constant_memory(box: Box) -> None:
    total, digest, largest = 0, hashlib.sha256(), 0
    before = _resident()
    with contextlib.closing(box.exec("sh", "-c", "yes 0123456789abcdef | head -c 100000000")) as process:
        while (chunk := process.read()) is not None:
            total += len(chunk.data)
            digest.update(chunk.data)
            largest = max(largest, len(chunk.data))
        growth = _resident() - before

    assert total == 100_000_000
    assert digest.digest() == hashlib.sha256((b"0123456789abcdef\n" * (total // 17 + 1))[:total]).digest()
    assert largest <= limits.EXEC_CHUNK
    assert growth < 20 * MIB


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@also_on_runc
def test_background_child_does_not_hold_the_exec(box: Box) -> None:
    result = box.sh("sleep 86399 & echo $!")

    child = result.stdout.decode().strip()
    assert result.code == 0
    assert box.text(f"tr '\\0' ' ' </proc/{child}/cmdline") == "sleep 86399 "
    box.text(f"kill {child}")


@also_on_runc
def test_background_child_that_writes_on_does_not_hold_the_exec(box: Box) -> None:
    result = box.sh("yes background & echo $! >&2; exit 5")

    assert result.code == 5
    box.sh(f"kill {result.stderr.decode().strip()}")  # it may have ended by itself: nobody reads any more


def test_output_written_before_the_end_is_read_whole(box: Box) -> None:
    result = box.sh("sleep 86398 & head -c 5000000 /dev/zero; echo $! >&2")

    box.text(f"kill {result.stderr.decode().strip()}")
    assert len(result.stdout) == 5_000_000


@also_on_runc
def test_stdin_is_empty_unless_asked_for(box: Box) -> None:
    assert box.run("cat").stdout == b""


@also_on_runc
def test_stdin_is_echoed_back_and_closed(box: Box) -> None:
    with contextlib.closing(box.exec("cat", stdin=True)) as process:
        process.write(b"one\n")
        assert read_until(process, b"one\n") == b"one\n"
        process.write(b"two\n")
        assert read_until(process, b"two\n") == b"two\n"
        process.close_stdin()
        process.close_stdin()
        assert read_all(process) == (b"", b"")
        assert process.wait().code == 0


@also_on_runc
def test_large_input_arrives_byte_exact(box: Box) -> None:
    data = os.urandom(8 * MIB)

    result = box.run("sha256sum", stdin=data)

    assert result.stdout.decode().split()[0] == hashlib.sha256(data).hexdigest()


def test_input_that_nobody_reads_does_not_block_for_ever(box: Box) -> None:
    assert box.run("true", stdin=b"x" * (8 * MIB)).code == 0


def test_write_after_the_end_does_nothing(box: Box) -> None:
    with contextlib.closing(box.exec("true", stdin=True)) as process:
        read_all(process)
        process.write(b"late")
        process.close_stdin()
        process.signal(15)
        process.kill()
        assert process.wait().code == 0


@also_on_runc
def test_signal_reaches_the_group(box: Box) -> None:
    script = "trap 'echo caught; exit 7' TERM; echo ready; while :; do sleep 1; done"
    with contextlib.closing(box.exec("sh", "-c", script)) as process:
        read_until(process, b"ready\n")
        process.signal(15)
        assert read_all(process)[0] == b"caught\n"
        assert process.wait().code == 7


@also_on_runc
def test_kill_ends_the_group_and_everything_below_it(box: Box) -> None:
    # A child, its child in a session of its own, and one whose parent is gone: all are found by the argument of sleep.
    script = "setsid sh -c 'sleep 77001 & sleep 77002' & sleep 77003 & (sleep 77004 &) ; echo so far; sleep 77005"
    with contextlib.closing(box.exec("sh", "-c", script)) as process:
        read_until(process, b"so far\n")
        read_process_list = "ps -o args | grep -c '^sleep 7700'"
        while box.sh(read_process_list).stdout.strip() != b"5":
            pass
        process.kill()
        read_all(process)
        ended = process.wait()

    assert (ended.code, ended.signal) == (137, 9)
    assert box.sh(read_process_list).stdout.strip() == b"0"


@also_on_runc
def test_output_before_a_kill_is_readable(box: Box) -> None:
    with contextlib.closing(box.exec("sh", "-c", "echo one; echo two >&2; sleep 77010")) as process:
        while box.sh("ps -o args | grep -c '^sleep 77010'").stdout.strip() != b"1":
            pass
        process.kill()
        out, err = read_all(process)

    assert (out, err) == (b"one\n", b"two\n")


@also_on_runc
def test_many_execs_at_once(box: Box) -> None:
    processes = [box.exec("cat", stdin=True) for _ in range(8)]
    for number, process in enumerate(processes):
        process.write(str(number).encode())
        process.close_stdin()

    outputs = [read_all(process)[0] for process in processes]
    for process in processes:
        process.close()

    assert outputs == [str(number).encode() for number in range(8)]


def test_close_lets_a_blocked_reader_go(box: Box) -> None:
    process = box.exec("sleep", "77020")
    process.kill()
    process.close()
    process.close()


@also_on_runc
def test_exec_is_lost_when_its_sandbox_goes(box: Box) -> None:
    with box.lab.sandbox() as other:
        process = other.exec("sh", "-c", "echo ready; sleep 77030")
        read_until(process, b"ready\n")
        box.lab.runtime.delete(other.id)
        rest = read_all(process)
        with pytest.raises(RuntimeFailure) as failure:
            process.wait()
        process.close()

    assert failure.value.code is ErrorCode.EXEC_LOST

    assert rest == (b"", b"")
