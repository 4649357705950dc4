"""Marks: what the scripts of `node_agent.runtime.docker_engine.scripts` say between the bytes of a process's output.

Docker tells of an exec's end only when nobody holds its pipes any more.  So the script that starts the process writes
a mark to both pipes after the process's end: everything the process wrote comes before it, and what a background child
writes comes after.  A mark is ``<prefix><kind><value>;`` with a prefix that is random for each exec.
"""

import secrets
from dataclasses import dataclass
from typing import Final

STARTED: Final = "P"
"""Value: the process's id inside the sandbox, which is also its group's and its session's."""
ENDED: Final = "E"
"""Value: exit code, as a shell tells it."""
NOT_FOUND: Final = "N"
NOT_EXECUTABLE: Final = "X"
NO_DIRECTORY: Final = "D"

# Rare as the last byte of a piece of output: a piece that ends with the start of a mark is held back until more comes.
_FIRST: Final = b"\x1e"
_LONGEST: Final = 128


@dataclass(frozen=True)
class Mark:
    """One mark."""

    kind: str
    value: str


def new_prefix() -> str:
    """A prefix that no output holds by chance."""
    return secrets.token_hex(16)


class Scanner:
    """Splits one stream into output and marks."""

    def __init__(self, prefix: str) -> None:
        self._prefix = _FIRST + prefix.encode()
        self._held = b""

    def feed(self, data: bytes) -> list[bytes | Mark]:
        """What ``data`` completes, in order; nothing in it is empty."""
        buffer = self._held + data
        found: list[bytes | Mark] = []
        while (start := buffer.find(self._prefix)) >= 0:
            end = buffer.find(b";", start, start + _LONGEST)
            if end < 0 and len(buffer) - start < _LONGEST:
                break
            if end < 0:  # looks like a mark and is none
                end = start + len(self._prefix) - 1
                found.append(buffer[: end + 1])
            else:
                text = buffer[start + len(self._prefix) : end].decode(errors="replace")
                found += [buffer[:start], Mark(text[:1], text[1:])]
            buffer = buffer[end + 1 :]
        keep = self._start_of_mark(buffer)
        found.append(buffer[:keep])
        self._held = buffer[keep:]
        return [item for item in found if item != b""]

    def rest(self) -> bytes:
        """What was held back and is output after all, because the stream has ended."""
        held, self._held = self._held, b""
        return held

    def _start_of_mark(self, buffer: bytes) -> int:
        """Where a mark may have begun that is not complete; the length of ``buffer`` when none has."""
        start = buffer.find(self._prefix)
        if start >= 0:
            return start
        start = buffer.find(_FIRST, max(0, len(buffer) - len(self._prefix) + 1))
        while start >= 0:
            if self._prefix.startswith(buffer[start:]):
                return start
            start = buffer.find(_FIRST, start + 1)
        return len(buffer)
