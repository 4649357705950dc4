"""Why a sandbox ended."""

from datetime import UTC, datetime

import pytest

from gateway.wire.states import DeathReason
from node_agent.runtime.runsc.death import judge

NOW = datetime(2026, 1, 1, tzinfo=UTC)
OK, THREE, KILLED = 0, 3 << 8, 9


@pytest.mark.parametrize(
    ("status", "oom_kills", "disk_full", "reason", "code"),
    [
        (OK, 0, False, DeathReason.EXITED, 0),
        (THREE, 0, False, DeathReason.EXITED, 3),
        (KILLED, 0, False, DeathReason.EXITED, 137),
        (None, 0, False, DeathReason.EXITED, None),
        (None, 1, False, DeathReason.OOM, None),
        (KILLED, 1, False, DeathReason.OOM, 137),
        (OK, 1, False, DeathReason.EXITED, 0),
        (THREE, 0, True, DeathReason.DISK_FULL, 3),
        (OK, 0, True, DeathReason.EXITED, 0),
        (None, 0, True, DeathReason.EXITED, None),
        (THREE, 1, True, DeathReason.OOM, 3),
    ],
)
def test_death(status: int | None, oom_kills: int, disk_full: bool, reason: DeathReason, code: int | None) -> None:
    death = judge(status, oom_kills=oom_kills, disk_full=disk_full, ended_at=NOW)

    assert (death.reason, death.exit_code, death.ended_at) == (reason, code, NOW)
    assert death.detail
