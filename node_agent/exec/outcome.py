"""How an exec session ends: its status, its exit code, and the sentence that explains it.  Pure."""

from dataclasses import dataclass

from gateway.wire.errors import ErrorCode
from gateway.wire.states import DeathReason, ExecStatus
from node_agent.errors import RuntimeFailure, StartFault
from node_agent.runtime.base import Death, Exit

EXIT_TIMEOUT = 124  # as timeout(1)
EXIT_NOT_EXECUTABLE = 126  # as a POSIX shell
EXIT_NOT_FOUND = 127  # as a POSIX shell
EXIT_KILLED = 137  # 128 + SIGKILL
EXIT_UNKNOWN = -1

_KILLERS = frozenset(DeathReason) - {DeathReason.NODE_LOST, DeathReason.START_ERROR, DeathReason.IMAGE_ERROR}


@dataclass(frozen=True)
class ExecOutcome:
    """The end of a session.  ``error`` is empty when the process ended by itself."""

    status: ExecStatus
    exit_code: int
    signal: int | None = None
    timed_out: bool = False
    error: str = ""


def ended(exit_: Exit) -> ExecOutcome:
    """Return the outcome of a process that ended by itself or by somebody's signal."""
    return ExecOutcome(ExecStatus.EXITED, exit_.code, exit_.signal)


def timed_out(seconds: float, *, note: str = "") -> ExecOutcome:
    """Return the outcome of a process that was killed after ``seconds``, its timeout."""
    sentence = f"killed: it ran longer than its timeout of {seconds:g} s{note}"
    return ExecOutcome(ExecStatus.FAILED, EXIT_TIMEOUT, timed_out=True, error=sentence)


def refused(failure: RuntimeFailure) -> ExecOutcome:
    """Return the outcome of a process that could not be started."""
    code = EXIT_UNKNOWN
    if failure.code is ErrorCode.START_ERROR:
        code = EXIT_NOT_FOUND if failure.start_fault is StartFault.NOT_FOUND else EXIT_NOT_EXECUTABLE
    return ExecOutcome(ExecStatus.FAILED, code, error=failure.message)


def lost(message: str, death: Death | None) -> ExecOutcome:
    """Return the outcome of a process whose end was not seen; the sandbox's death explains it where there is one.

    A sandbox that ends takes its processes along by SIGKILL, so their exit code is 137; without a death nothing is
    known and the code is -1.
    """
    if death is None:
        return ExecOutcome(ExecStatus.FAILED, EXIT_UNKNOWN, error=message)
    sentence = f"the sandbox ended ({death.reason})" + (f": {death.detail}" if death.detail else "")
    if death.reason in _KILLERS:
        return ExecOutcome(ExecStatus.FAILED, EXIT_KILLED, signal=9, error=sentence)
    return ExecOutcome(ExecStatus.FAILED, EXIT_UNKNOWN, error=sentence)


def forgotten() -> ExecOutcome:
    """Return the outcome of a session of an earlier life of the agent that had not ended then."""
    sentence = "the node agent restarted; how the process ended is unknown"
    return ExecOutcome(ExecStatus.FAILED, EXIT_UNKNOWN, error=sentence)
