"""The emulator's own time: it stands still until it is advanced, or runs at a pace."""

import threading
import time
from datetime import UTC, datetime

EPOCH = datetime(2030, 1, 1, tzinfo=UTC).timestamp()


class Clock:
    """Seconds since 1970 as the emulated cloud has them.

    Args:
        pace: emulated seconds per real one; 0 lets time stand still between calls of `advance`.
        start: where it begins; ``None`` is now where time has a pace, and `EPOCH` where it stands still.
    """

    def __init__(self, pace: float = 0.0, start: float | None = None) -> None:
        self.pace = pace
        self._base = start if start is not None else (time.time() if pace else EPOCH)
        self._since = time.monotonic()
        self._lock = threading.Lock()

    def now(self) -> float:
        with self._lock:
            return self._base + (time.monotonic() - self._since) * self.pace

    def advance(self, seconds: float) -> None:
        with self._lock:
            self._base += seconds


def iso(at: float) -> str:
    """As the API writes times: whole seconds."""
    return datetime.fromtimestamp(int(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
