"""The project's hourly budget of calls, as far as answers have told it.

The bucket is shared with everything else that uses the project's tokens, and refills evenly over the hour.  Calls are
refused here, before they are made, once the bucket is so low that what matters more may need the rest.
"""

import threading
import time
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final

from providers.base import Applied, ErrorKind, ProviderError, Scope

HOUR: Final = 3600.0
CALLS_PER_HOUR: Final = 3600


class Need(Enum):
    """How much of the reserve a call leaves alone, as a factor of it; the lower, the more it matters."""

    OPTIONAL = 1.5  # catalogue, side resources
    CREATE = 1.0  # creates, and looking up one instance
    LIST = 0.5  # without a listing nothing is deleted either
    DELETE = 0.0


class Budget:
    """Keeps a reserve for deletes.  Safe to share between threads."""

    def __init__(self, reserve: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._reserve = reserve
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._limit = CALLS_PER_HOUR
        self._remaining: float | None = None
        """As of `_seen_at`; ``None`` before the first answer."""
        self._seen_at = 0.0

    def note(self, headers: Mapping[str, str], *, refused: bool = False) -> None:
        """Takes what an answer says about the bucket.

        Args:
            headers: of the answer.  ``RateLimit-Reset`` is when the bucket is full again, and no use.
            refused: the answer was a 429, so the bucket is empty whatever the headers say.
        """
        limit = _number(headers.get("RateLimit-Limit"))
        remaining = 0 if refused else _number(headers.get("RateLimit-Remaining"))
        with self._lock:
            if limit:
                self._limit = limit
            if remaining is not None:
                self._remaining, self._seen_at = float(remaining), self._monotonic()

    def require(self, need: Need) -> None:
        """Returns when a call may be made.

        Raises:
            ProviderError: `ErrorKind.RATE_LIMIT`, with the seconds until the bucket has refilled that far.
        """
        wait = self.wait(need)
        if wait > 0:
            raise ProviderError(
                f"hetzner: the project's budget of calls is nearly used up; the rest is kept for what matters more, "
                f"try again in {wait:.0f} s",
                kind=ErrorKind.RATE_LIMIT,
                applied=Applied.NO,
                scope=Scope.PROVIDER,
                retry_after=wait,
            )

    def wait(self, need: Need) -> float:
        """Seconds until a call may be made; 0 for now."""
        with self._lock:
            if self._remaining is None:
                return 0.0
            rate = self._limit / HOUR
            now = self._remaining + (self._monotonic() - self._seen_at) * rate
            # Of a small budget at most a quarter is kept, or nothing would be left to work with.
            floor = min(self._reserve, self._limit // 4) * need.value
            return max(0.0, (floor + 1 - now) / rate)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
