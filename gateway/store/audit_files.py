"""The files of the audit log: appended, begun anew each day and when they are large, deleted when they are old.

A file is named after its day and a number, ``2026-01-31.0001.jsonl``, and never renamed or changed, so that anything
that ships logs can follow it.  Several processes may append: each writes whole lines in one call, at the end.
"""

import logging
import os
import re
from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from gateway.errors import ApiError
from gateway.wire import limits
from gateway.wire.audit import AuditEntry, AuditOutcome, AuditPage, AuditQuery
from gateway.wire.errors import ErrorCode, FieldError

log = logging.getLogger(__name__)

FILE_BYTES: Final = 64 * limits.MIB
MAX_SCAN: Final = 16 * limits.MIB
"""Bytes that one page reads at most."""
MAX_LOOK_BACK: Final = 256 * limits.MIB
"""Bytes after which no older file is searched for calls without an outcome."""
STARTED: Final = "gateway_started"
"""Event of a gateway's start."""
# No caller can forge these: quotes within a text are escaped.
_START: Final = f'"event": "{STARTED}"'.encode()
_PENDING: Final = f'"outcome": "{AuditOutcome.PENDING}"'.encode()
_CALL: Final = re.compile(rb'"call": "([0-9a-f]{32})"')
_NAME: Final = re.compile(r"\d{4}-\d\d-\d\d\.\d{4,8}\.jsonl")
_CURSOR: Final = re.compile(rf"({_NAME.pattern}):(\d{{1,12}})", re.ASCII)


class AuditFiles:
    """The files below one directory.  Blocking; one thread at a time may append.

    Args:
        directory: made at the first line, for its owner's eyes only.
        max_bytes: kept at most, all files together.
        days: for which a file is kept.
        file_bytes: after which a file is full.
    """

    def __init__(self, directory: Path, *, max_bytes: int, days: int, file_bytes: int = FILE_BYTES) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._days = days
        self._file_bytes = min(file_bytes, max(1, max_bytes // 4))
        self._descriptor: int | None = None
        self._day = ""
        self._torn = False

    def append(self, lines: Sequence[bytes], day: date) -> int:
        """Append lines, and return how many of them the file holds now: fewer than all on a full disk.

        Raises:
            OSError: none was written.
        """
        descriptor = self._open(day)
        # A line that was cut by a full disk is ended, and stays as it is.
        data = (b"\n" if self._torn else b"") + b"".join(lines)
        self._torn = True
        written = os.write(descriptor, data)
        self._torn = written < len(data)
        if not self._torn:
            return len(lines)
        whole = data[:written].count(b"\n") - (1 if data.startswith(b"\n") else 0)
        return max(0, whole)

    def close(self) -> None:
        """Write to the disk what the kernel still has, and close the file."""
        if self._descriptor is not None:
            os.fsync(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self, day: date) -> int:
        """Return the descriptor of the file for ``day`` that is not full."""
        wanted = day.isoformat()
        present = self._descriptor if wanted == self._day else None
        if present is not None and os.fstat(present).st_size < self._file_bytes:
            return present
        self.close()
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._next_path(wanted)
        begun = not path.exists()
        self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._day = wanted
        size = os.fstat(self._descriptor).st_size
        self._torn = size > 0 and os.pread(self._descriptor, 1, size - 1) != b"\n"
        if begun:
            self._delete_old(day, path)
        return self._descriptor

    def _next_path(self, day: str) -> Path:
        present = [path for path in self._files() if path.name.startswith(day)]
        if present and present[-1].stat().st_size < self._file_bytes:
            return present[-1]
        number = int(present[-1].name.split(".")[1]) + 1 if present else 1
        return self._directory / f"{day}.{number:04d}.jsonl"

    def _delete_old(self, today: date, current: Path) -> None:
        oldest = (today - timedelta(days=self._days)).isoformat()
        files = [path for path in self._files() if path != current]
        # Room for the file that begins now is made in advance.
        total = sum(path.stat().st_size for path in files) + self._file_bytes
        for path in files:
            if path.name >= oldest and total <= self._max_bytes:
                break
            if path.name >= oldest:
                log.warning("audit log: %s is deleted before %d days are over, for want of room", path, self._days)
            total -= path.stat().st_size
            path.unlink()

    def _files(self) -> list[Path]:
        if not self._directory.is_dir():
            return []
        return sorted(path for path in self._directory.iterdir() if _NAME.fullmatch(path.name))

    # -- reading ------------------------------------------------------------------------------------------------------

    def page(self, query: AuditQuery) -> AuditPage:
        """Return the lines from a cursor on, oldest first.

        Raises:
            ApiError: ``INVALID_REQUEST``: the cursor is none.
        """
        first, offset = _position(query)
        entries: list[AuditEntry] = []
        position, scanned = f"{first}:{offset}", 0
        for path in self._files():
            if path.name < first:
                continue
            begin = offset if path.name == first else 0
            for line, end in _whole_lines(path, begin):
                scanned += len(line)
                position = f"{path.name}:{end}"
                entry = _parsed(line)
                if entry is not None and entry.outcome is not AuditOutcome.PENDING and query.matches(entry):
                    entries.append(entry)
                if len(entries) >= query.limit or scanned >= MAX_SCAN:
                    return AuditPage(entries=entries, next_cursor=position, more=True)
        return AuditPage(entries=entries, next_cursor=position, more=False)

    def unresolved(self) -> list[AuditEntry]:
        """Return the calls since the last start of a gateway of which no outcome is written, oldest first, as unknown.

        A gateway writes these down when it starts; so what it finds are those that the one before was killed in.
        """
        ended: set[bytes] = set()
        found: list[bytes] = []
        scanned = 0
        for path in reversed(self._files()):
            begun, first = _calls_in(path, ended)
            found = [*begun, *found]
            scanned += path.stat().st_size
            if first or scanned > MAX_LOOK_BACK:
                break
        entries = [entry for line in found if (entry := _parsed(line)) is not None]
        return [entry.model_copy(update={"outcome": AuditOutcome.UNKNOWN}) for entry in entries]


def _calls_in(path: Path, ended: set[bytes]) -> tuple[list[bytes], bool]:
    """Return a file's calls that have no outcome in it or in ``ended``, and whether a gateway starts in it.

    Args:
        path: of the file.
        ended: calls whose outcome is in a later file; those whose outcome is in this one are added.
    """
    begun: dict[bytes, bytes] = {}
    start = False
    for line, _ in _whole_lines(path, 0):
        call = _CALL.search(line)
        if call is None:
            start = start or _START in line
        elif _PENDING in line:
            begun[call[1]] = line
        elif begun.pop(call[1], None) is None:
            ended.add(call[1])
    return [line for call, line in begun.items() if call not in ended], start


def _position(query: AuditQuery) -> tuple[str, int]:
    """Return the name of the first file to read, or a name before it, and the offset in it."""
    if query.cursor is None:
        day = "0001-01-01" if query.since is None else query.since.date().isoformat()
        return f"{day}.0000.jsonl", 0
    found = _CURSOR.fullmatch(query.cursor)
    if found is None:
        problem = "must be the next_cursor of an earlier page"
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"cursor: {problem}", fields=[FieldError(field="cursor", problem=problem)]
        )
    return found[1], int(found[2])


def _whole_lines(path: Path, offset: int) -> Iterator[tuple[bytes, int]]:
    """Yield each complete line from ``offset`` on, and the offset after it."""
    with path.open("rb") as file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                return
            offset += len(line)
            yield line, offset


def _parsed(line: bytes) -> AuditEntry | None:
    """Return the entry of a line; ``None`` for one that a full disk cut."""
    try:
        return AuditEntry.model_validate_json(line)
    except ValidationError:
        return None
