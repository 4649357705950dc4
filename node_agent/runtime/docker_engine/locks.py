"""One change of a sandbox at a time, and deletes that overtake."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from gateway.wire.errors import ErrorCode
from node_agent.errors import RuntimeFailure


@dataclass
class _Slot:
    lock: threading.Lock = field(default_factory=threading.Lock)
    deletes: int = 0
    users: int = 0
    cancel: Callable[[], None] | None = None


class Ticket:
    """A create's right to go on, lost when a delete of the same sandbox comes in between."""

    def __init__(self, slot: _Slot, sandbox_id: str) -> None:
        self._slot = slot
        self._deletes = slot.deletes
        self._sandbox_id = sandbox_id

    def check(self) -> None:
        """Raises ``CONFLICT`` once a delete came."""
        if self._slot.deletes != self._deletes:
            raise RuntimeFailure(ErrorCode.CONFLICT, f"sandbox {self._sandbox_id} was deleted while it was created")

    @contextlib.contextmanager
    def waiting(self, cancel: Callable[[], None]) -> Iterator[None]:
        """Around a wait that a delete ends by calling ``cancel``."""
        self._slot.cancel = cancel
        try:
            self.check()
            yield
        finally:
            self._slot.cancel = None


class Slots:
    """A lock per sandbox, kept only while somebody uses it."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._slots: dict[str, _Slot] = {}

    @contextlib.contextmanager
    def creating(self, sandbox_id: str) -> Iterator[tuple[Ticket, threading.Lock]]:
        """A ticket from now on, and the lock under which the sandbox is changed."""
        with self._slot(sandbox_id) as slot:
            yield Ticket(slot, sandbox_id), slot.lock

    @contextlib.contextmanager
    def deleting(self, sandbox_id: str) -> Iterator[None]:
        """Makes every create that has begun give up, and holds the lock once it has."""
        with self._slot(sandbox_id) as slot:
            with self._mutex:
                slot.deletes += 1
            cancel = slot.cancel
            if cancel is not None:
                cancel()
            with slot.lock:
                yield

    @contextlib.contextmanager
    def changing(self, sandbox_id: str) -> Iterator[None]:
        """Holds the sandbox's lock."""
        with self._slot(sandbox_id) as slot, slot.lock:
            yield

    @contextlib.contextmanager
    def _slot(self, sandbox_id: str) -> Iterator[_Slot]:
        with self._mutex:
            slot = self._slots.setdefault(sandbox_id, _Slot())
            slot.users += 1
        try:
            yield slot
        finally:
            with self._mutex:
                slot.users -= 1
                if slot.users == 0:
                    del self._slots[sandbox_id]
