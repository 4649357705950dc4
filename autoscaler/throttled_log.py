"""Log lines about lasting trouble: when it begins or changes, rarely while it lasts, and once when it ends."""

import logging
import re
import threading
from collections.abc import Callable
from typing import Final

REPEAT_SECONDS: Final = 600.0
"""Lasting trouble is logged again this often."""
_NUMBERED: Final = re.compile(r"\w*\d\w*")
"""Counts, times and addresses: details that differ in these only are the same."""


class ThrottledLog:
    """Remembers what was logged about each subject; usable from several threads.

    Args:
        log: where it is logged.
        monotonic: returns seconds that only grow.
    """

    def __init__(self, log: logging.Logger, monotonic: Callable[[], float]) -> None:
        self._log = log
        self._monotonic = monotonic
        self._last: dict[str, tuple[str, float]] = {}
        self._lock = threading.Lock()

    def report(self, subject: str, detail: str, *, level: int = logging.WARNING, trace: bool = False) -> None:
        """Log trouble, unless the same was logged less than `REPEAT_SECONDS` ago.

        Args:
            subject: what is in trouble; the line begins with it.
            detail: the rest of the line.
            level: of the log.
            trace: whether to add the present exception's traceback.
        """
        now, gist = self._monotonic(), _NUMBERED.sub("#", detail)
        with self._lock:
            known, at = self._last.get(subject, ("", float("-inf")))
            if known == gist and now - at < REPEAT_SECONDS:
                return
            self._last[subject] = gist, now
        self._log.log(level, "%s: %s", subject, detail, exc_info=trace)

    def resolve(self, subject: str) -> None:
        """Log the end of trouble, if its beginning was logged."""
        with self._lock:
            if self._last.pop(subject, None) is None:
                return
        self._log.info("%s: resolved", subject)
