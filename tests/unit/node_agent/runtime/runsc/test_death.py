"""Why a sandbox ended."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.wire.states import DeathReason
from node_agent.runtime.runsc.death import CrashReport, EngineLogs, MemoryEvents, ObservedEnd, death_of

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


@pytest.mark.parametrize(
    ("status", "crash", "told"),
    [
        (KILLED, None, "by signal 9"),
        (KILLED, CrashReport("unable to read", "a.1.log"), "by signal 9"),  # it complained, and was killed
        (2 << 8, CrashReport("panic: oops", "a.1.log"), "engine-logs/a.1.log"),
        (None, CrashReport("panic: oops", ""), "panic: oops"),
        (2 << 8, None, "exit code 2"),
        (None, None, "was killed"),
    ],
)
def test_detail_tells_a_kill_from_a_crash(status: int | None, crash: CrashReport | None, told: str) -> None:
    end = ObservedEnd(killed=True, engine_status=status)

    death = death_of(end, memory=NO_KILL, disk_full=False, ended_at=NOW, crash=crash)

    assert death.reason is DeathReason.EVICTED
    assert told in death.detail


def test_logs_of_crashes_are_bounded(tmp_path: Path) -> None:
    logs, source = EngineLogs(tmp_path / "engine-logs"), tmp_path / "engine"
    source.write_bytes(b"\n\x1b[31mpanic: " + b"x" * 10**6)

    reports = [logs.keep(f"t-{number}.1.log", source) for number in range(120)]

    assert reports[-1] == CrashReport("[31mpanic: " + "x" * (200 - len("[31mpanic: ")), "t-119.1.log")
    kept = list((tmp_path / "engine-logs").iterdir())
    assert len(kept) == 100
    assert {file.stat().st_size for file in kept} == {256 * 1024}


def test_engine_that_wrote_nothing_did_not_crash(tmp_path: Path) -> None:
    logs, source = EngineLogs(tmp_path / "engine-logs"), tmp_path / "engine"

    assert logs.keep("t-1.1.log", source) is None
    source.write_bytes(b"\n")
    assert logs.keep("t-1.1.log", source) is None
    assert not (tmp_path / "engine-logs").exists()


def test_detail_tells_the_sandboxs_memory_from_the_nodes() -> None:
    own, host = (
        death_of(ObservedEnd(killed=True), memory=m, disk_full=False, ended_at=NOW) for m in (OWN_LIMIT, HOST_FULL)
    )

    assert "memory_mb" in own.detail
    assert "the node ran out of memory" in host.detail
