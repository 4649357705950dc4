"""A cloud's bucket of calls, as far as its answers show it.

The bucket is shared with everything else that uses the account, and refills evenly over the hour.  Calls are refused
here, before they are made, once the bucket is so low that what matters more may need the rest: optional ones first,
deletes never.  Nothing else meters a provider's calls, and only it knows what each of them costs.
"""

import threading
import time
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final

from providers.base import Applied, ErrorKind, ProviderError, Scope

HOUR: Final = 3600.0
CALLS_PER_HOUR: Final = 3600
"""The limit until an answer names it."""
MOST_KEPT: Final = 1 / 4
"""Share of the limit that is kept at most: a small bucket has to leave something to work with."""


class Priority(Enum):
    """How much a call matters: the factor of the reserve that it leaves alone."""

    OPTIONAL = 1.5  # catalogue, side resources
    CREATE = 1.0  # creates, and looking up one instance
    LIST = 0.5  # without a listing nothing is deleted either
    DELETE = 0.0


class RateLimit:
    """Keeps a reserve of calls for deletes.  Safe to share between threads.

    Args:
        reserve: calls that are kept.
        kind: the provider's name, for the error.
        monotonic: seconds that only grow.
    """

    def __init__(self, reserve: int, *, kind: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._reserve = reserve
        self._kind = kind
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._limit = CALLS_PER_HOUR
        self._remaining: float | None = None
        """As of `_seen_at`; ``None`` before the first answer."""
        self._seen_at = 0.0

    def note(self, headers: Mapping[str, str], *, refused: bool = False) -> None:
        """Take in what an answer says about the bucket.

        Args:
            headers: of the answer.  ``RateLimit-Reset`` is ignored: it says when the bucket is full again.
            refused: the answer was a 429, so the bucket is empty whatever the headers say.
        """
        limit = _number(headers.get("RateLimit-Limit"))
        remaining = 0 if refused else _number(headers.get("RateLimit-Remaining"))
        with self._lock:
            if limit:
                self._limit = limit
            if remaining is not None:
                self._remaining, self._seen_at = float(remaining), self._monotonic()

    def require(self, priority: Priority) -> None:
        """Return if a call may be made now.

        A delete always may: another client may have stopped, so only the cloud knows that its bucket is empty.

        Raises:
            ProviderError: `ErrorKind.RATE_LIMIT`, with the seconds until the bucket has refilled that far.
        """
        wait = self.wait(priority)
        if wait > 0 and priority is not Priority.DELETE:
            raise ProviderError(
                f"{self._kind}: few calls are left and kept for what matters more; try again in {wait:.0f} s",
                kind=ErrorKind.RATE_LIMIT,
                applied=Applied.NO,
                scope=Scope.PROVIDER,
                retry_after=wait,
            )

    def wait(self, priority: Priority) -> float:
        """Return the seconds until the bucket has a call for this priority; 0 for now."""
        with self._lock:
            if self._remaining is None:
                return 0.0
            rate = self._limit / HOUR
            remaining = self._remaining + (self._monotonic() - self._seen_at) * rate
            kept = min(self._reserve, int(self._limit * MOST_KEPT)) * priority.value
            return max(0.0, (kept + 1 - remaining) / rate)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
