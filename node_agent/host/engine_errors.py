"""What is wrong when the Docker engine refuses a call: the call, the host's disk, or the engine itself.

The engine answers 500 to almost everything.  What its containerd said stands in its sentence, which ends with the name
of the gRPC status, and what the kernel said stands there as strerror(3) has it.  Nothing else tells.
"""

from enum import StrEnum
from typing import Final

from docker.errors import APIError

from gateway.wire.errors import ErrorCode
from gateway.wire.states import DeathReason
from node_agent.errors import RuntimeFailure
from node_agent.host.disk import says_full

_AWAY: Final = (
    ": unavailable",  # containerd was killed, or is being started
    ": aborted",
    ": context canceled",  # it was killed in the middle of the call
    ": canceled",
    ": context deadline exceeded",
    ": deadline exceeded",
    "transport is closing",
    "ttrpc: closed: unknown",  # the container's shim was killed; the container follows it
    "error reading from server: eof",
)


class EngineFault(StrEnum):
    """What is wrong."""

    REFUSED = "refused"  # what was asked for cannot be done
    DISK_FULL = "disk_full"
    AWAY = "away"  # the same call may succeed in a moment


def fault_in(words: str) -> EngineFault:
    """Return what is wrong by the engine's own sentence."""
    said = words.strip().rstrip(".").lower()
    if says_full(words):
        return EngineFault.DISK_FULL
    return EngineFault.AWAY if said.endswith(_AWAY) else EngineFault.REFUSED


def explanation(error: Exception) -> str:
    """Return the engine's own sentence."""
    if isinstance(error, APIError) and error.explanation:
        return str(error.explanation)
    return str(error)


def refusal(what: str, words: str, code: ErrorCode, reason: DeathReason | None = None) -> RuntimeFailure:
    """Return the failure of a call that the engine refused.

    Args:
        what: names the call in the sentence.
        words: the engine's own sentence.
        code: of a refusal that is the call's own fault.
        reason: why the sandbox is dead, where such a refusal kills it.

    Returns:
        ``BUSY`` where the engine itself is away for a moment, ``DISK_FULL`` where the host's disk is full, else
        ``code``.
    """
    match fault_in(words):
        case EngineFault.AWAY:
            message = f"{what}: the Docker engine cannot answer now: {words}; call again in a moment"
            return RuntimeFailure(ErrorCode.BUSY, message)
        case EngineFault.DISK_FULL:
            full = None if reason is None else DeathReason.DISK_FULL
            return RuntimeFailure(ErrorCode.DISK_FULL, f"{what}: a disk of the node is full: {words}", reason=full)
        case EngineFault.REFUSED:
            return RuntimeFailure(code, f"{what}: {words}", reason=reason)
