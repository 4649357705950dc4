"""The audit log over a disk that is full for a while."""

import asyncio
import logging
import threading
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from gateway.errors import ApiError
from gateway.services import audit
from gateway.services.audit import AuditLog
from gateway.services.tasks import SystemClock
from gateway.store.audit_files import AuditFiles
from gateway.wire.audit import AuditActor, AuditEntry, AuditQuery
from gateway.wire.errors import ErrorCode


class FullDisk(AuditFiles):
    """Files on a disk that is full while ``full`` is set."""

    full = True

    def append(self, lines: Sequence[bytes], day: date) -> int:
        if self.full:
            raise OSError(28, "No space left on device")
        return super().append(lines, day)


class SlowDisk(AuditFiles):
    """Files on a disk that writes once ``go`` is set."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, max_bytes=10**9, days=9)
        self.begun, self.go = threading.Event(), threading.Event()

    def append(self, lines: Sequence[bytes], day: date) -> int:
        self.begun.set()
        assert self.go.wait(10)
        return super().append(lines, day)


def entry(number: int) -> AuditEntry:
    time = datetime(2026, 1, 31, tzinfo=UTC)
    return AuditEntry(time=time, actor=AuditActor.CLIENT, target={"number": str(number)})


def refused(log: AuditLog, *, makes: bool) -> bool:
    try:
        log.require_room(makes=makes)
    except ApiError as error:
        assert error.code is ErrorCode.DISK_FULL
        assert error.retryable
        return True
    return False


async def test_nothing_new_is_made_unaudited_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(audit, "MAX_HELD", 3)
    caplog.set_level(logging.WARNING)
    files = FullDisk(tmp_path, max_bytes=10**9, days=9)
    log = AuditLog(files, SystemClock())
    assert not refused(log, makes=True)
    await log.write(entry(0))
    assert (refused(log, makes=True), refused(log, makes=False)) == (True, False)
    for number in (1, 2):
        await log.write(entry(number))
    assert (refused(log, makes=True), refused(log, makes=False)) == (True, True)
    await log.write(entry(3))  # a delete, which is never refused
    assert sum('"number": "3"' in record.getMessage() for record in caplog.records) == 1
    files.full = False
    await log.flush()
    await log.write(entry(4))
    assert not refused(log, makes=True)
    page = await log.page(AuditQuery(limit=100))
    told = [found.target.get("number") or (found.event, found.count) for found in page.entries]
    assert told == ["0", "1", "2", ("lines_in_the_log_only", 1), "4"]
    log.close()


async def test_who_waits_for_the_log_and_is_cancelled_takes_no_line_with_him(tmp_path: Path) -> None:
    files = SlowDisk(tmp_path)
    log = AuditLog(files, SystemClock())
    log.note(entry(0))
    waiting = asyncio.create_task(log.write_counts())
    await asyncio.to_thread(files.begun.wait, 10)
    log.note(entry(1))
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    files.go.set()
    await log.flush()
    page = await log.page(AuditQuery(limit=10))
    log.close()
    assert [line.target for line in page.entries] == [{"number": "0"}, {"number": "1"}]
