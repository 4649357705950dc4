"""Wall time for rows, monotonic time for waiting, and a guard that notices when the two part."""

import time
from collections.abc import Callable
from typing import Final

JUMP_SECONDS: Final = 30.0


class Clock:
    """The machine's clocks; tests bring their own."""

    def now(self) -> float:
        """Seconds since the epoch, UTC."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds that only ever grow."""
        return time.monotonic()


class ClockGuard:
    """Says whether ages can be trusted: not for ``grace`` seconds after the wall clock jumped."""

    def __init__(self, clock: Clock, grace: float, on_jump: Callable[[float], None]) -> None:
        self._clock = clock
        self._grace = grace
        self._on_jump = on_jump
        self._offset = clock.now() - clock.monotonic()
        self._trusted_at = clock.monotonic()

    def is_settled(self) -> bool:
        """Looks at both clocks; called once a tick."""
        offset = self._clock.now() - self._clock.monotonic()
        jump = offset - self._offset
        self._offset = offset
        if abs(jump) > JUMP_SECONDS:
            self._trusted_at = self._clock.monotonic() + self._grace
            self._on_jump(jump)
        return self.rest() <= 0

    def rest(self) -> float:
        """Seconds until ages can be trusted again, as of the last look; not above 0 when they can."""
        return self._trusted_at - self._clock.monotonic()
