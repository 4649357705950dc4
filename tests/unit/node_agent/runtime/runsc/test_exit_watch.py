"""Why a sandbox ended."""

from datetime import UTC, datetime

import pytest

from gateway.wire.states import DeathReason
from node_agent.runtime.runsc.exit_watch import MemoryEvents, ObservedEnd, death_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)
OK, THREE, KILLED = 0, 3 << 8, 9
NO_KILL, OWN_LIMIT, HOST_FULL = MemoryEvents(), MemoryEvents(1, True), MemoryEvents(1, False)


@pytest.mark.parametrize(
    ("end", "memory", "disk_full", "reason", "code"),
    [
        (ObservedEnd(OK), NO_KILL, False, DeathReason.EXITED, 0),
        (ObservedEnd(THREE), NO_KILL, False, DeathReason.EXITED, 3),
        (ObservedEnd(KILLED), NO_KILL, False, DeathReason.EXITED, 137),
        (ObservedEnd(), NO_KILL, False, DeathReason.EXITED, None),
        (ObservedEnd(killed=True), NO_KILL, False, DeathReason.EVICTED, None),
        (ObservedEnd(KILLED, killed=True), NO_KILL, False, DeathReason.EVICTED, 137),
        (ObservedEnd(killed=True), NO_KILL, True, DeathReason.EVICTED, None),
        (ObservedEnd(killed=True), OWN_LIMIT, False, DeathReason.OOM, None),
        (ObservedEnd(killed=True), HOST_FULL, False, DeathReason.OOM, None),
        (ObservedEnd(KILLED), OWN_LIMIT, False, DeathReason.OOM, 137),
        (ObservedEnd(OK), OWN_LIMIT, False, DeathReason.EXITED, 0),
        (ObservedEnd(THREE), NO_KILL, True, DeathReason.DISK_FULL, 3),
        (ObservedEnd(OK), NO_KILL, True, DeathReason.EXITED, 0),
        (ObservedEnd(), NO_KILL, True, DeathReason.EXITED, None),
        (ObservedEnd(THREE), OWN_LIMIT, True, DeathReason.OOM, 3),
    ],
)
def test_death(end: ObservedEnd, memory: MemoryEvents, disk_full: bool, reason: DeathReason, code: int | None) -> None:
    death = death_of(end, memory=memory, disk_full=disk_full, ended_at=NOW)

    assert (death.reason, death.exit_code, death.ended_at) == (reason, code, NOW)
    assert death.detail


def test_detail_tells_the_sandboxs_memory_from_the_nodes() -> None:
    own, host = (
        death_of(ObservedEnd(killed=True), memory=m, disk_full=False, ended_at=NOW) for m in (OWN_LIMIT, HOST_FULL)
    )

    assert "memory_mb" in own.detail
    assert "the node ran out of memory" in host.detail
