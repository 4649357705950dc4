"""The wait status of a first process that may end sooner than its start is told.

runsc returns some milliseconds after the first process began, and a sentry ends with its first process: who asks for
the exit code only then may ask nobody.  gVisor has no event for "it began", so this asks again and again, for the few
dozen milliseconds between the pid file, which runsc writes just before, and the begin.
"""

import threading
from types import TracebackType
from typing import Final, Self

from node_agent.runtime.runsc.control import ControlError, ControlLostError, Pending
from node_agent.runtime.runsc.layout import Places

_EVERY: Final = 0.003  # seconds between two looks


class EarlyWait:
    """Asks for the wait status from another thread while the block starts the sandbox."""

    def __init__(self, places: Places) -> None:
        self._pid_file = places.bundle / "pid"
        self._control = places.control
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="early-wait", daemon=True)
        self.pending: Pending | None = None

    def __enter__(self) -> Self:
        self._pid_file.unlink(missing_ok=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        if error is not None and self.pending is not None:
            self.pending.close()

    def _ask(self) -> None:
        while not self._over.wait(_EVERY):
            if self._pid_file.exists() and self._asked():
                return

    def _asked(self) -> bool:
        """Whether the sentry took the question; before the begin it refuses at once."""
        try:
            pending = self._control.wait_first()
        except ControlLostError:
            return False
        try:
            refused = pending.refused(_EVERY)
        except (ControlError, ControlLostError):
            refused = True
        if refused:
            pending.close()
            return False
        self.pending = pending
        return True
