"""Resident memory by process, shared pages counted by their share (PSS)."""

from collections.abc import Iterable, Iterator
from pathlib import Path

MIB = 1024 * 1024


def pss(pids: Iterable[int]) -> float:
    """Return the MiB that these processes hold together; those that are gone count nothing."""
    return sum(_pss(pid) for pid in pids) / MIB


def pids_naming(text: str) -> Iterator[int]:
    """Yield the processes that name ``text`` in their command line."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue  # it ended meanwhile
        if text.encode() in command:
            yield int(entry.name)


def _pss(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
