"""The wait status of a first process that may end sooner than its start is told.

runsc returns some milliseconds after the first process began, and a sentry ends with its first process: who asks for
the exit code only then may ask nobody.  gVisor has no event for "it began", so this asks again and again, for the few
dozen milliseconds between the pid file, which runsc writes just before, and the begin.
"""

import contextlib
import threading
from types import TracebackType
from typing import Final, Self

from node_agent.runtime.runsc.control import ControlLostError, Pending
from node_agent.runtime.runsc.paths import Places

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
        if self.pending is not None and (error is not None or self._refused(self.pending, 0)):
            self.pending.close()
            self.pending = None
        if self.pending is None and error is None:
            # On a busy host a refusal takes longer than a look; now that the first process has begun, none can come.
            with contextlib.suppress(ControlLostError):
                self.pending = self._control.wait_first()

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
        if self._refused(pending, _EVERY):
            pending.close()
            return False
        self.pending = pending
        return True

    @staticmethod
    def _refused(pending: Pending, within: float) -> bool:
        try:
            return pending.refused(within)
        except ControlLostError:
            return True
