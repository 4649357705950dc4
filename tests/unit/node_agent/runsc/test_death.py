"""Why a sandbox ended."""

from datetime import UTC, datetime

import pytest

from gateway.wire.states import DeathReason
from node_agent.runtime.runsc.death import End, Memory, judge

NOW = datetime(2026, 1, 1, tzinfo=UTC)
OK, THREE, KILLED = 0, 3 << 8, 9
NO_KILL, OWN_LIMIT, HOST_FULL = Memory(), Memory(1, True), Memory(1, False)


@pytest.mark.parametrize(
    ("end", "memory", "disk_full", "reason", "code"),
    [
        (End(OK), NO_KILL, False, DeathReason.EXITED, 0),
        (End(THREE), NO_KILL, False, DeathReason.EXITED, 3),
        (End(KILLED), NO_KILL, False, DeathReason.EXITED, 137),
        (End(), NO_KILL, False, DeathReason.EXITED, None),
        (End(killed=True), NO_KILL, False, DeathReason.EVICTED, None),
        (End(KILLED, killed=True), NO_KILL, False, DeathReason.EVICTED, 137),
        (End(killed=True), NO_KILL, True, DeathReason.EVICTED, None),
        (End(killed=True), OWN_LIMIT, False, DeathReason.OOM, None),
        (End(killed=True), HOST_FULL, False, DeathReason.OOM, None),
        (End(KILLED), OWN_LIMIT, False, DeathReason.OOM, 137),
        (End(OK), OWN_LIMIT, False, DeathReason.EXITED, 0),
        (End(THREE), NO_KILL, True, DeathReason.DISK_FULL, 3),
        (End(OK), NO_KILL, True, DeathReason.EXITED, 0),
        (End(), NO_KILL, True, DeathReason.EXITED, None),
        (End(THREE), OWN_LIMIT, True, DeathReason.OOM, 3),
    ],
)
def test_death(end: End, memory: Memory, disk_full: bool, reason: DeathReason, code: int | None) -> None:
    death = judge(end, memory=memory, disk_full=disk_full, ended_at=NOW)

    assert (death.reason, death.exit_code, death.ended_at) == (reason, code, NOW)
    assert death.detail


def test_memory_of_the_sandbox_and_of_the_node_are_told_apart() -> None:
    own, host = (judge(End(killed=True), memory=m, disk_full=False, ended_at=NOW) for m in (OWN_LIMIT, HOST_FULL))

    assert "memory_mb" in own.detail
    assert "the node ran out of memory" in host.detail
