"""Wall time for rows, monotonic time for waiting, and a guard that notices when the two part."""

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

JUMP_SECONDS: Final = 30.0
KEEP_SECONDS: Final = 1.0
"""The anchor is written anew once the clocks have parted by so much."""
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class Clock:
    """The machine's clocks; tests bring their own."""

    def now(self) -> float:
        """Seconds since the epoch, UTC."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds that only ever grow."""
        return time.monotonic()


class Anchor:
    """How far the two clocks are apart, in a file, so that a new process sees a jump that came while none lived.

    Monotonic time goes on from process to process until the machine boots, so what an earlier boot left says nothing.

    Args:
        path: the file; a lost or broken one is as none.
    """

    def __init__(self, path: Path, boot_id: Path = BOOT_ID) -> None:
        self._path = path
        self._boot = boot_id.read_text().strip()
        self._kept = self._read()
        self._is_told = False

    def offset(self) -> float | None:
        """Wall time less monotonic time, in seconds, as kept last in this boot of the machine."""
        return self._kept

    def keep(self, offset: float) -> None:
        """Writes it down where it differs."""
        if self._kept is not None and abs(offset - self._kept) < KEEP_SECONDS:
            return
        temporary = self._path.with_suffix(".new")
        try:
            temporary.touch(mode=0o600)
            temporary.write_text(json.dumps({"boot": self._boot, "offset": offset}))
            temporary.replace(self._path)
        except OSError as error:
            level = logging.DEBUG if self._is_told else logging.WARNING
            log.log(level, "where the clocks stand cannot be kept; a jump while no process lives is missed: %s", error)
            self._is_told = True
            return
        self._kept, self._is_told = offset, False

    def _read(self) -> float | None:
        try:
            kept = json.loads(self._path.read_text())
            return float(kept["offset"]) if kept["boot"] == self._boot else None
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("%s is of no use: %s", self._path, error)
            return None


class ClockGuard:
    """Says whether ages can be trusted: not for ``grace`` seconds after the wall clock jumped.

    Args:
        anchor: where the clocks stood when the last process looked; ``None`` to see only jumps from now on.
    """

    def __init__(
        self, clock: Clock, grace: float, on_jump: Callable[[float], None], anchor: Anchor | None = None
    ) -> None:
        self._clock = clock
        self._grace = grace
        self._on_jump = on_jump
        self._anchor = anchor
        kept = anchor.offset() if anchor is not None else None
        self._offset = kept if kept is not None else clock.now() - clock.monotonic()
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

    def keep(self) -> None:
        """Keeps what the last look saw for the next process; after a jump itself is written down, and not before."""
        if self._anchor is not None:
            self._anchor.keep(self._offset)
