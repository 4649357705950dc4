"""The node agent's decisions."""

from datetime import UTC, datetime

import pytest

from gateway.wire.errors import ErrorCode
from gateway.wire.resources import Shape
from gateway.wire.states import DeathReason, ExecStatus
from node_agent.errors import RuntimeFailure, StartFault
from node_agent.exec import outcome
from node_agent.host.machine import disk_is_short, parse_meminfo, parse_pressure
from node_agent.runtime.base import Death, Exit
from node_agent.sandboxes.manager import shortfall

NODE = Shape(cpus=4, memory_mb=1000, disk_mb=1000, slots=2)
SMALL = Shape(cpus=1, memory_mb=400, disk_mb=100, slots=1)


def test_takes_what_fits() -> None:
    assert shortfall(NODE, SMALL) is None


def test_refuses_and_names_what_is_short() -> None:
    assert shortfall(NODE.minus(SMALL + SMALL), SMALL) == (
        "this node has no room: memory_mb 400 of 200 free, slots 1 of 0 free"
    )


def test_large_numbers_are_written_out() -> None:
    wanted = Shape(cpus=0.1 + 0.2, memory_mb=10_000_000, disk_mb=1, slots=1)
    assert shortfall(Shape(cpus=0.25, memory_mb=9_999_999, disk_mb=1, slots=1), wanted) == (
        "this node has no room: cpus 0.3 of 0.25 free, memory_mb 10000000 of 9999999 free"
    )


@pytest.mark.parametrize(
    ("free", "was_short", "short"), [(100, False, False), (99, False, True), (199, True, True), (200, True, False)]
)
def test_a_full_disk_is_short_until_twice_the_least_is_free(free: int, was_short: bool, short: bool) -> None:
    assert disk_is_short(free_mb=free, least_mb=100, was_short=was_short) is short


def death(reason: DeathReason) -> Death:
    return Death(reason, 137, "of something", datetime.now(UTC))


@pytest.mark.parametrize(
    ("result", "status", "code", "signal"),
    [
        (outcome.ended(Exit(3)), ExecStatus.EXITED, 3, None),
        (outcome.ended(Exit(143, 15)), ExecStatus.EXITED, 143, 15),
        (outcome.timed_out(2), ExecStatus.FAILED, 124, None),
        (outcome.lost("gone", None), ExecStatus.FAILED, -1, None),
        (outcome.lost("gone", death(DeathReason.OOM)), ExecStatus.FAILED, 137, 9),
        (outcome.lost("gone", death(DeathReason.NODE_LOST)), ExecStatus.FAILED, -1, None),
        (outcome.forgotten(), ExecStatus.FAILED, -1, None),
    ],
)
def test_how_a_session_ends(result: outcome.ExecOutcome, status: ExecStatus, code: int, signal: int | None) -> None:
    assert (result.status, result.exit_code, result.signal) == (status, code, signal)
    assert bool(result.error) == (status is ExecStatus.FAILED)


def test_the_death_of_the_sandbox_explains_a_lost_process() -> None:
    assert outcome.lost("gone", death(DeathReason.OOM)).error == "the sandbox ended (oom): of something"


@pytest.mark.parametrize(
    ("fault", "code"), [(StartFault.NOT_FOUND, 127), (StartFault.NOT_EXECUTABLE, 126), (None, 126)]
)
def test_a_program_that_does_not_start_has_a_shells_exit_code(fault: StartFault | None, code: int) -> None:
    failure = RuntimeFailure(ErrorCode.START_ERROR, "not found in PATH, permission denied", start_fault=fault)
    assert outcome.refused(failure).exit_code == code


def test_reads_the_kernels_files() -> None:
    assert parse_meminfo("MemTotal:  2048000 kB\nMemAvailable: 1024 kB\nHugePages_Total: 0\n")["MemTotal"] == 2000
    text = "some avg10=1.50 avg60=0.00 avg300=0.00 total=1\nfull avg10=9.00 avg60=0 avg300=0 total=0\n"
    assert parse_pressure(text) == 1.5
    assert parse_pressure("") is None
