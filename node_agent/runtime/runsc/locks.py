"""What this process holds of each sandbox while it deals with it; the disk and the engine hold the rest."""

import threading
import weakref
from collections.abc import Callable
from typing import Final

from node_agent.runtime.runsc.exit_watch import Watch
from node_agent.runtime.runsc.runsc_cli import Guard


class Slot:
    """One sandbox in this process.

    Attributes:
        lock: held by the one call that changes the sandbox.
        changed: told after every change of its record.
        watch: of its first process; ``None`` while nobody watches.
    """

    def __init__(self) -> None:
        self.lock: Final = threading.RLock()
        self.changed: Final = threading.Condition()
        self.watch: Watch | None = None
        self._mutex = threading.Lock()
        self._deletions = 0
        self._guard: Guard | None = None

    def ticket(self) -> int:
        """A number that is void after the next `break_start`."""
        return self._deletions

    def begin_start(self, ticket: int, on_cancel: Callable[[], object]) -> Guard | None:
        """Makes a start that `break_start` can cut short; ``None`` when it came since ``ticket`` was taken."""
        with self._mutex:
            if ticket != self._deletions:
                return None
            self._guard = Guard(on_cancel)
            return self._guard

    def end_start(self) -> None:
        """The start is over, well or not."""
        with self._mutex:
            self._guard = None

    def break_start(self) -> None:
        """Cuts a start in flight short, and refuses those that have yet to begin."""
        with self._mutex:
            self._deletions += 1
            guard = self._guard
        if guard is not None:
            guard.cancel()

    def tell(self) -> None:
        """Wakes all that wait for a change."""
        with self.changed:
            self.changed.notify_all()


class Slots:
    """Slots by id.  A slot lives while a call or the watcher holds it."""

    def __init__(self) -> None:
        self._slots: weakref.WeakValueDictionary[str, Slot] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()

    def of(self, sandbox_id: str) -> Slot:
        """The slot of a sandbox."""
        with self._lock:
            slot = self._slots.get(sandbox_id)
            if slot is None:
                slot = self._slots[sandbox_id] = Slot()
            return slot
