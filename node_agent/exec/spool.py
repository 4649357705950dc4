"""The events of one exec session on disk: an append-only file of records, readable from any sequence number.

Memory is constant: the index keeps the offset of every n-th record, and n doubles when the index is full.  The last
record stays open as long as nobody has read it, and output of the same stream is added to it; so output is never
delayed, and a writer that is faster than its readers makes large records.

A record is a header (`_HEADER`) and its bytes.  Bytes are written before the header that counts them, so a file cut by
a crash is whole up to its last complete record.  Records hold whole UTF-8 characters where the bytes are text: what
ends within one is held back or cut before it.
"""

import codecs
import os
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Final

from gateway.wire import limits
from gateway.wire.exec import ExecEvent, Stream

_HEADER: Final = struct.Struct("<QdiBxxxI")  # sequence, time, exit code, stream, size
_STREAMS: Final[tuple[Stream, ...]] = ("status", "stdout", "stderr", "stdin_closed", "truncated", "error", "exit")
_OUTPUT: Final = frozenset({"stdout", "stderr"})
_INDEX_SIZE: Final = 1024
HEADER_SIZE: Final = _HEADER.size


@dataclass(frozen=True)
class SpoolRecord:
    """One event as it lies on disk.  ``exit_code`` counts only for ``exit``."""

    sequence: int
    stream: Stream
    data: bytes
    exit_code: int
    time: float

    def event(self) -> ExecEvent:
        """Return the record as the wire has it."""
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
    """The file of one session.  One thread appends; any thread reads."""

    def __init__(self, path: Path) -> None:
        """Open a new or an existing file; what a crash left behind the last whole record is cut off."""
        self._path = path
        self._lock = threading.Lock()
        self._stride = 1
        self._index: list[int] = []
        self._last = 0
        self._end = 0
        self._tail_start = 0
        self._tail: SpoolRecord | None = None  # data is left empty: only header values count
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
        """Add an event, or several where ``data`` is larger than `limits.EXEC_CHUNK`.

        Raises:
            OSError: the disk is full or broken; the file is as it was.
        """
        with self._lock:
            if self._extend(stream, data):
                return
            for piece in pieces(data, limits.EXEC_CHUNK) if len(data) > limits.EXEC_CHUNK else (data,):
                self._add(SpoolRecord(self._last + 1, stream, piece, exit_code, time))

    def read(self, after: int, limit: int, max_bytes: int) -> list[SpoolRecord]:
        """Return events after sequence number ``after``, in order.

        Args:
            after: sequence number; 0 begins at the first event.
            limit: most events.
            max_bytes: about the most bytes of data; one event is returned whatever its size.

        Raises:
            FileNotFoundError: the file was removed meanwhile.
        """
        with self._lock:
            if after >= self._last:
                return []
            self._tail = None  # what is read never changes again
            slot = after // self._stride
            offset, end = self._index[slot], self._end
            sequence = slot * self._stride + 1
        records: list[SpoolRecord] = []
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
        """End writing; reading goes on."""
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

    def _add(self, record: SpoolRecord) -> None:
        start = self._end
        _write_all(self._file, record.data, start + HEADER_SIZE)
        _write_all(self._file, _pack(record, len(record.data)), start)
        self._note(record.sequence, start, start + HEADER_SIZE + len(record.data))
        self._tail_start, self._tail_size = start, len(record.data)
        open_tail = SpoolRecord(record.sequence, record.stream, b"", record.exit_code, record.time)
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


def _pack(record: SpoolRecord, size: int) -> bytes:
    return _HEADER.pack(record.sequence, record.time, record.exit_code, _STREAMS.index(record.stream), size)


def _read_record(file: BinaryIO, *, skip: bool) -> SpoolRecord | None:
    """Read the record at the file's position, without its bytes for ``skip``; ``None`` where no whole header is."""
    header = file.read(HEADER_SIZE)
    if len(header) < HEADER_SIZE:
        return None
    sequence, time, exit_code, stream, size = _HEADER.unpack(header)
    if stream >= len(_STREAMS):
        return None
    if skip:
        file.seek(size, os.SEEK_CUR)
        return SpoolRecord(sequence, _STREAMS[stream], b"", exit_code, time)
    return SpoolRecord(sequence, _STREAMS[stream], file.read(size), exit_code, time)


def _write_all(file: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, offset)
        view = view[written:]
        offset += written


# -- cutting between characters ---------------------------------------------------------------------------------------

_decoder: Final = codecs.getincrementaldecoder("utf-8")


def incomplete_tail(data: bytes) -> int:
    """Return how many bytes at the end of ``data`` begin a UTF-8 character that more bytes could finish: 0 to 3."""
    decoder = _decoder(errors="replace")
    decoder.decode(data[-3:])
    return len(decoder.getstate()[0])


class CharacterGate:
    """Lets bytes through and holds back at most 3 of them: the start of a character whose rest has not come yet.

    What comes out, put together, is exactly what went in; bytes that are not UTF-8 pass as they are.
    """

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Return everything that may go out now; may be empty."""
        data = self._held + data
        keep = incomplete_tail(data)
        self._held = data[len(data) - keep :]
        return data[: len(data) - keep] if keep else data

    def flush(self) -> bytes:
        """Return what is still held, at the end of the stream."""
        held, self._held = self._held, b""
        return held


def cut(data: bytes, limit: int) -> bytes:
    """Return the longest start of ``data`` within ``limit`` bytes that ends between two characters.

    Where even one character is longer than ``limit``, nothing is left.
    """
    if len(data) <= limit:
        return data
    piece = data[:limit]
    keep = incomplete_tail(piece)
    return piece[: len(piece) - keep]


def pieces(data: bytes, limit: int) -> Iterator[bytes]:
    """Yield ``data`` in pieces of at most ``limit`` bytes (at least 4) that end between two characters."""
    while data:
        piece = cut(data, limit)
        yield piece
        data = data[len(piece) :]
