"""The files of the audit log: rotation, bounds, what a full disk leaves, and pages."""

import os
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from gateway.errors import ApiError
from gateway.store import audit_files
from gateway.store.audit_files import AuditFiles
from gateway.wire.audit import AuditActor, AuditEntry, AuditQuery

DAY = date(2026, 1, 31)


def entry(number: int, tenant: str = "default") -> AuditEntry:
    time = datetime(2026, 1, 31, tzinfo=UTC) + timedelta(seconds=number)
    return AuditEntry(time=time, actor=AuditActor.CLIENT, tenant=tenant, target={"number": str(number)})


def files_in(directory: Path, **bounds: int) -> AuditFiles:
    return AuditFiles(directory / "audit", **{"max_bytes": 10**9, "days": 90, **bounds})


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "audit").iterdir())


def numbers(files: AuditFiles, **query: object) -> list[int]:
    page = files.page(AuditQuery.model_validate({"limit": 1000, **query}))
    return [int(found.target["number"]) for found in page.entries]


def test_a_file_a_day_and_a_new_one_when_it_is_full(tmp_path: Path) -> None:
    files = files_in(tmp_path, file_bytes=300)
    for number in range(6):
        assert files.append([entry(number).line()], DAY) == 1
    files.append([entry(6).line()], DAY + timedelta(days=1))
    assert names(tmp_path) == [
        "2026-01-31.0001.jsonl",
        "2026-01-31.0002.jsonl",
        "2026-02-01.0001.jsonl",
    ]
    assert numbers(files) == list(range(7))
    assert numbers(files, since=datetime(2026, 1, 31, 0, 0, 4, tzinfo=UTC)) == [4, 5, 6]
    assert numbers(files, until=datetime(2026, 1, 31, 0, 0, 2, tzinfo=UTC)) == [0, 1]


def test_old_files_are_deleted_and_the_total_is_bounded(tmp_path: Path) -> None:
    files = files_in(tmp_path, days=2)
    for day in range(5):
        files.append([entry(day).line()], DAY + timedelta(days=day))
    assert names(tmp_path) == [f"2026-02-0{day}.0001.jsonl" for day in (2, 3, 4)]
    small = files_in(tmp_path / "small", max_bytes=1200)
    for number in range(100):
        small.append([entry(number).line()], DAY)
    assert sum(path.stat().st_size for path in (tmp_path / "small" / "audit").iterdir()) <= 1200
    assert numbers(small)[-1] == 99


def test_two_processes_append_to_one_file(tmp_path: Path) -> None:
    one, other = files_in(tmp_path), files_in(tmp_path)
    for number in range(4):
        (one, other)[number % 2].append([entry(number).line()], DAY)
    assert len(names(tmp_path)) == 1
    assert numbers(one) == [0, 1, 2, 3]


def test_what_a_full_disk_cut_stays_alone_on_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = files_in(tmp_path)
    whole = [entry(number).line() for number in range(3)]
    real = os.write
    with monkeypatch.context() as patched:
        patched.setattr(audit_files.os, "write", lambda fd, data: real(fd, data[: len(whole[0]) + 10]))
        assert files.append(whole, DAY) == 1
    assert files.append(whole[1:], DAY) == 2
    assert numbers(files) == [0, 1, 2]
    with (tmp_path / "audit" / names(tmp_path)[0]).open("ab") as file:
        file.write(b'{"half')
    again = files_in(tmp_path)
    assert numbers(again) == [0, 1, 2]
    again.append([entry(3).line()], DAY)
    assert numbers(again) == [0, 1, 2, 3]


def test_a_page_reads_a_bounded_part_and_says_where_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = files_in(tmp_path, file_bytes=500)
    for number in range(20):
        files.append([entry(number, "acme" if number == 15 else "default").line()], DAY)
    monkeypatch.setattr(audit_files, "MAX_SCAN", 300)
    query, found, pages = AuditQuery(limit=10, tenant="acme"), [], 0
    while True:
        page = files.page(query)
        found += page.entries
        pages += 1
        if not page.more:
            break
        query = query.model_copy(update={"cursor": page.next_cursor})
    assert [item.target["number"] for item in found] == ["15"]
    assert pages > 5


def test_a_cursor_into_a_deleted_file_goes_on_with_the_next(tmp_path: Path) -> None:
    files = files_in(tmp_path, file_bytes=300)
    for number in range(6):
        files.append([entry(number).line()], DAY)
    cursor = files.page(AuditQuery(limit=1)).next_cursor
    (tmp_path / "audit" / names(tmp_path)[0]).unlink()
    assert numbers(files, cursor=cursor)[-1] == 5
    with pytest.raises(ApiError):
        files.page(AuditQuery(limit=1, cursor="../../etc/passwd:0"))
