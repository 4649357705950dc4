"""The history of one exec session: an append-only file of records, readable from any sequence number.

Memory is constant: the index keeps the offset of every n-th record, and n doubles when the index is full.  The last
record stays open as long as nobody has read it, and output of the same stream is added to it; so output is never
delayed, and a writer that is faster than its readers makes large records.

A record is a header (`_HEADER`) and its bytes.  Bytes are written before the header that counts them, so a file cut by
a crash is whole up to its last complete record.
"""

import os
import struct
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Final

from gateway.wire import limits
from gateway.wire.exec import ExecEvent, Stream
from node_agent.exec.utf8 import pieces

_HEADER: Final = struct.Struct("<QdiBxxxI")  # sequence, time, exit code, stream, size
_STREAMS: Final[tuple[Stream, ...]] = ("status", "stdout", "stderr", "stdin_closed", "truncated", "error", "exit")
_OUTPUT: Final = frozenset({"stdout", "stderr"})
_INDEX_SIZE: Final = 1024
HEADER_SIZE: Final = _HEADER.size


@dataclass(frozen=True)
class Record:
    """One event as it lies on disk.  ``exit_code`` counts only for ``exit``."""

    sequence: int
    stream: Stream
    data: bytes
    exit_code: int
    time: float

    def event(self) -> ExecEvent:
        """The record as the wire tells it."""
        moment = datetime.fromtimestamp(self.time, UTC)
        if self.stream in _OUTPUT:
            return ExecEvent.of_bytes(self.sequence, self.stream, self.data, moment)
        return ExecEvent(
            sequence=self.sequence,
            stream=self.stream,
            data=self.data.decode(errors="replace"),
            exit_code=self.exit_code if self.stream == "exit" else None,
            created_at=moment,
        )


class Spool:
    """Writes and reads one history.  One thread appends; any thread reads."""

    def __init__(self, path: Path) -> None:
        """Opens a new or an existing history; what a crash left behind the last whole record is cut off."""
        self._path = path
        self._lock = threading.Lock()
        self._stride = 1
        self._index: list[int] = []
        self._last = 0
        self._end = 0
        self._tail_start = 0
        self._tail: Record | None = None  # data is left empty: only header values count
        self._tail_size = 0
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if os.fstat(self._file).st_size:
            self._rescan()

    @property
    def last_sequence(self) -> int:
        """Sequence number of the newest event, 0 when there is none."""
        return self._last

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return self._end

    def append(self, stream: Stream, data: bytes, time: float, exit_code: int = 0) -> None:
        """Adds an event, or several where ``data`` is larger than `limits.EXEC_CHUNK`.

        Raises:
            OSError: the disk is full or broken; the history is as it was.
        """
        with self._lock:
            if self._extend(stream, data):
                return
            for piece in pieces(data, limits.EXEC_CHUNK) if len(data) > limits.EXEC_CHUNK else (data,):
                self._add(Record(self._last + 1, stream, piece, exit_code, time))

    def read(self, after: int, limit: int, max_bytes: int) -> list[Record]:
        """Events after sequence number ``after``, in order.

        At most ``limit`` of them and about ``max_bytes``; at least one where there is one.

        Raises:
            FileNotFoundError: the history was removed meanwhile.
        """
        with self._lock:
            if after >= self._last:
                return []
            self._tail = None  # what is read never changes again
            slot = after // self._stride
            offset, end = self._index[slot], self._end
            sequence = slot * self._stride + 1
        records: list[Record] = []
        size = 0
        with self._path.open("rb") as file:
            file.seek(offset)
            while offset < end and len(records) < limit and size < max_bytes:
                record = _read_record(file, skip=sequence <= after)
                if record is None:
                    break
                offset = file.tell()
                if sequence > after:
                    records.append(record)
                    size += len(record.data)
                sequence += 1
        return records

    def close(self) -> None:
        """Ends writing; reading goes on."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1

    def _extend(self, stream: Stream, data: bytes) -> bool:
        tail = self._tail
        if tail is None or tail.stream != stream or self._tail_size + len(data) > limits.EXEC_CHUNK:
            return False
        _write_all(self._file, data, self._end)
        self._tail_size += len(data)
        self._end += len(data)
        os.pwrite(self._file, _pack(tail, self._tail_size), self._tail_start)
        return True

    def _add(self, record: Record) -> None:
        start = self._end
        _write_all(self._file, record.data, start + HEADER_SIZE)
        _write_all(self._file, _pack(record, len(record.data)), start)
        self._note(record.sequence, start, start + HEADER_SIZE + len(record.data))
        self._tail_start, self._tail_size = start, len(record.data)
        open_tail = Record(record.sequence, record.stream, b"", record.exit_code, record.time)
        self._tail = open_tail if record.stream in _OUTPUT else None

    def _note(self, sequence: int, start: int, end: int) -> None:
        if (sequence - 1) % self._stride == 0:
            self._index.append(start)
            if len(self._index) > _INDEX_SIZE:
                self._index = self._index[::2]
                self._stride *= 2
        self._last, self._end = sequence, end

    def _rescan(self) -> None:
        with self._path.open("rb") as file:
            whole = os.fstat(file.fileno()).st_size
            while True:
                start = file.tell()
                record = _read_record(file, skip=True)
                if record is None or record.sequence != self._last + 1 or file.tell() > whole:
                    break
                self._note(record.sequence, start, file.tell())
        os.ftruncate(self._file, self._end)


def _pack(record: Record, size: int) -> bytes:
    return _HEADER.pack(record.sequence, record.time, record.exit_code, _STREAMS.index(record.stream), size)


def _read_record(file: BinaryIO, *, skip: bool) -> Record | None:
    """The record at the file's position; with ``skip`` without its bytes; ``None`` where no whole header is."""
    header = file.read(HEADER_SIZE)
    if len(header) < HEADER_SIZE:
        return None
    sequence, time, exit_code, stream, size = _HEADER.unpack(header)
    if stream >= len(_STREAMS):
        return None
    if skip:
        file.seek(size, os.SEEK_CUR)
        return Record(sequence, _STREAMS[stream], b"", exit_code, time)
    return Record(sequence, _STREAMS[stream], file.read(size), exit_code, time)


def _write_all(file: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, offset)
        view = view[written:]
        offset += written
