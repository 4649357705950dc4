"""Pauses, and the calls that need a sandbox's processes meanwhile: neither refuses the other for good.

A call that needs processes is inside, and no pause begins before it has left.  The start of a process or a signal is
over in a moment; a file takes as long as its client.  So a pause first waits until no file is on its way, and lets none
begin meanwhile, while commands still start.  Then it keeps everybody out for as long as the engine takes.
"""

import threading
from collections import Counter
from concurrent.futures import Future
from enum import StrEnum


class Need(StrEnum):
    """What a call needs a sandbox's processes for."""

    COMMAND = "command"
    FILE = "file"


class PauseGate:
    """Who is inside one sandbox, and whether a pause keeps others out.  Safe from any thread; nothing here blocks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside: Counter[Need] = Counter()
        self._waiting: list[tuple[Need, Future[None]]] = []
        self._pauses: list[Future[None]] = []
        self._shut = False

    def enter(self, need: Need) -> "Future[None]":
        """Return a future that is done once the caller is inside, and has to `leave`."""
        entered: Future[None] = Future()
        with self._lock:
            self._waiting.append((need, entered))
            self._advance()
        return entered

    def leave(self, need: Need) -> None:
        """Note that one of those inside is done."""
        with self._lock:
            self._inside[need] -= 1
            self._advance()

    def close(self) -> "Future[None]":
        """Return a future that is done once nobody is inside, and nobody gets in before it is handed to `open`."""
        closed: Future[None] = Future()
        with self._lock:
            self._pauses.append(closed)
            self._advance()
        return closed

    def open(self, closed: "Future[None]") -> None:
        """Note that a pause is over, or was given up."""
        with self._lock:
            self._pauses.remove(closed)
            self._advance()

    def _advance(self) -> None:
        """Let in whoever may get in, and pauses begin where nobody is inside."""
        self._shut = bool(self._pauses) and (self._shut or self._inside[Need.FILE] == 0)
        waiting, self._waiting = self._waiting, []
        for need, entered in waiting:
            if self._shut or (self._pauses and need is Need.FILE):
                self._waiting.append((need, entered))
            elif entered.set_running_or_notify_cancel():
                self._inside[need] += 1
                entered.set_result(None)
        if self._shut and not self._inside.total():
            for closed in self._pauses:
                if not closed.done():
                    closed.set_result(None)
