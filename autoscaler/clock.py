"""Wall time for rows, monotonic time for waiting, and a guard that notices when the two diverge."""

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

JUMP_SECONDS: Final = 30.0
"""A smaller difference between two looks is drift, such as NTP corrects."""
KEEP_SECONDS: Final = 1.0
"""The anchor is rewritten once the clocks have diverged by this much more."""
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class DaemonClock:
    """The machine's two clocks; virtual time overrides both."""

    def now(self) -> float:
        """Return seconds since the epoch, UTC."""
        return time.time()

    def monotonic(self) -> float:
        """Return seconds that only ever grow."""
        return time.monotonic()


class ClockAnchor:
    """The difference between the two clocks, in a file, so that a new process sees a jump that came while none ran.

    Monotonic time goes on from process to process until the machine boots, so a file of an earlier boot is ignored.

    Args:
        path: the file; a lost or broken one counts as none.
        boot_id: where the kernel names the present boot.
    """

    def __init__(self, path: Path, boot_id: Path = BOOT_ID) -> None:
        self._path = path
        self._boot = boot_id.read_text().strip()
        self._saved = self._read()
        self._has_warned = False

    def offset(self) -> float | None:
        """Return wall time minus monotonic time, in seconds, as last saved in this boot; ``None`` when unknown."""
        return self._saved

    def save(self, offset: float) -> None:
        """Write the difference down where it has changed."""
        if self._saved is not None and abs(offset - self._saved) < KEEP_SECONDS:
            return
        temporary = self._path.with_suffix(".new")
        try:
            temporary.touch(mode=0o600)
            temporary.write_text(json.dumps({"boot": self._boot, "offset": offset}))
            temporary.replace(self._path)
        except OSError as error:
            level = logging.DEBUG if self._has_warned else logging.WARNING
            log.log(
                level,
                "%s cannot be written, so a clock jump while no autoscaler runs would be missed: %s",
                self._path,
                error,
            )
            self._has_warned = True
            return
        self._saved, self._has_warned = offset, False

    def _read(self) -> float | None:
        try:
            saved = json.loads(self._path.read_text())
            return float(saved["offset"]) if saved["boot"] == self._boot else None
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("the clock anchor %s is ignored: %s", self._path, error)
            return None


class ClockGuard:
    """Decides whether ages can be trusted: not for ``grace`` seconds after the wall clock jumped.

    Args:
        clock: the clocks to compare.
        grace: seconds.
        on_jump: is called with the size of a jump, in seconds.
        anchor: where the clocks stood when the last process looked; ``None`` to see only jumps from now on.
    """

    def __init__(
        self, clock: DaemonClock, grace: float, on_jump: Callable[[float], None], anchor: ClockAnchor | None = None
    ) -> None:
        self._clock = clock
        self._grace = grace
        self._on_jump = on_jump
        self._anchor = anchor
        saved = anchor.offset() if anchor is not None else None
        self._offset = saved if saved is not None else clock.now() - clock.monotonic()
        self._trusted_at = clock.monotonic()

    def check(self) -> bool:
        """Compare both clocks, once a tick.

        Returns:
            Whether ages can be trusted.
        """
        offset = self._clock.now() - self._clock.monotonic()
        jump = offset - self._offset
        self._offset = offset
        if abs(jump) > JUMP_SECONDS:
            self._trusted_at = self._clock.monotonic() + self._grace
            self._on_jump(jump)
        return self.untrusted_seconds() <= 0

    def untrusted_seconds(self) -> float:
        """Return the seconds until ages can be trusted again; not above 0 when they can."""
        return self._trusted_at - self._clock.monotonic()

    def save(self) -> None:
        """Save what the last check saw for the next process: only after a jump itself is in the journal."""
        if self._anchor is not None:
            self._anchor.save(self._offset)
