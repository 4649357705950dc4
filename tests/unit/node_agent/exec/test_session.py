"""How a session ends."""

from datetime import UTC, datetime

import pytest

from gateway.wire.errors import ErrorCode
from gateway.wire.states import DeathReason, ExecStatus
from node_agent.errors import RuntimeFailure, StartFault
from node_agent.exec.session import ExecOutcome
from node_agent.runtime.base import Death, Exit


def death(reason: DeathReason) -> Death:
    return Death(reason, 137, "of something", datetime.now(UTC))


@pytest.mark.parametrize(
    ("result", "status", "code", "signal"),
    [
        (ExecOutcome.ended(Exit(3)), ExecStatus.EXITED, 3, None),
        (ExecOutcome.ended(Exit(143, 15)), ExecStatus.EXITED, 143, 15),
        (ExecOutcome.expired(2), ExecStatus.FAILED, 124, None),
        (ExecOutcome.lost("gone", None), ExecStatus.FAILED, -1, None),
        (ExecOutcome.lost("gone", death(DeathReason.OOM)), ExecStatus.FAILED, 137, 9),
        (ExecOutcome.lost("gone", death(DeathReason.NODE_LOST)), ExecStatus.FAILED, -1, None),
        (ExecOutcome.forgotten(), ExecStatus.FAILED, -1, None),
    ],
)
def test_how_a_session_ends(result: ExecOutcome, status: ExecStatus, code: int, signal: int | None) -> None:
    assert (result.status, result.exit_code, result.signal) == (status, code, signal)
    assert bool(result.error) == (status is ExecStatus.FAILED)


def test_the_death_of_the_sandbox_explains_a_lost_process() -> None:
    assert ExecOutcome.lost("gone", death(DeathReason.OOM)).error == "the sandbox ended (oom): of something"


def test_a_process_that_is_no_longer_followed_may_still_be_running() -> None:
    error = ExecOutcome.forgotten().error
    assert "it may still be running" in error
    assert "end it from another exec (kill), or restart or delete the sandbox" in error


@pytest.mark.parametrize(
    ("fault", "code"), [(StartFault.NOT_FOUND, 127), (StartFault.NOT_EXECUTABLE, 126), (None, 126)]
)
def test_a_program_that_does_not_start_has_a_shells_exit_code(fault: StartFault | None, code: int) -> None:
    failure = RuntimeFailure(ErrorCode.START_ERROR, "not found in PATH, permission denied", start_fault=fault)
    assert ExecOutcome.refused(failure).exit_code == code
