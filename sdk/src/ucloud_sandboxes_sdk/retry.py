"""When to try again, and how long to wait before: plain decisions, without a clock of their own."""

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

from .errors import SandboxApiError, TransportError

RETRYABLE_STATUS: Final = frozenset({502, 503, 504})
"""Statuses that a proxy in front of the service gives while the service restarts, without a body of ours."""


@dataclass(frozen=True)
class Deadline:
    """A point on the monotonic clock at which a call gives up."""

    at: float
    clock: Callable[[], float] = field(default=monotonic, repr=False)

    @classmethod
    def after(cls, seconds: float, clock: Callable[[], float] = monotonic) -> "Deadline":
        """The deadline ``seconds`` from now."""
        return cls(clock() + seconds, clock)

    def remaining(self) -> float:
        """Seconds left; zero when it has passed."""
        return max(0.0, self.at - self.clock())


@dataclass(frozen=True)
class Backoff:
    """Waits that double from ``base`` to ``cap`` seconds, each shortened by chance so that clients spread out."""

    base: float = 0.2
    cap: float = 5.0

    def delay(self, attempt: int, retry_after: float | None, chance: float) -> float:
        """Seconds to wait after failed attempt number ``attempt`` (from 0); ``chance`` is uniform in [0, 1).

        Never less than what the service asked for; on top of that a quarter at most.
        """
        ceiling = min(self.cap, self.base * 2.0 ** min(attempt, 30))
        if retry_after is not None:
            return max(retry_after, ceiling / 2) * (1 + chance / 4)
        return ceiling * (1 + chance) / 2


def may_retry(error: SandboxApiError, *, safe: bool) -> bool:
    """Whether the same call may be sent again.

    ``safe`` says that sending it twice has the same effect as once.  A call that never left this machine may always
    be sent again; anything else only if it is safe and the failure is one that passes.
    """
    if isinstance(error, TransportError):
        return safe or not error.sent
    if not safe:
        return False
    if error.retryable is not None:
        return error.retryable
    return error.status_code in RETRYABLE_STATUS
