"""Log lines about what lasts: told when it begins or changes, then rarely, and once when it is over."""

import logging
import re
import threading
from collections.abc import Callable
from typing import Final

AGAIN_SECONDS: Final = 600.0
"""What lasts is told again so often."""
_NUMBERED: Final = re.compile(r"\w*\d\w*")
"""Counts, times and addresses: words that differ in these only are the same."""


class Remarks:
    """Remembers what was told about each subject; usable from several threads.

    Args:
        log: where it is told.
        monotonic: seconds that only grow.
    """

    def __init__(self, log: logging.Logger, monotonic: Callable[[], float]) -> None:
        self._log = log
        self._monotonic = monotonic
        self._told: dict[str, tuple[str, float]] = {}
        self._lock = threading.Lock()

    def tell(self, subject: str, words: str, *, level: int = logging.WARNING, trace: bool = False) -> None:
        """Tells it unless the same was told less than `AGAIN_SECONDS` ago.

        Args:
            subject: what it is about; the line begins with it.
            words: the rest of the line.
            level: of the log.
            trace: whether the present exception's traceback goes with it.
        """
        now, gist = self._monotonic(), _NUMBERED.sub("#", words)
        with self._lock:
            known, at = self._told.get(subject, ("", float("-inf")))
            if known == gist and now - at < AGAIN_SECONDS:
                return
            self._told[subject] = gist, now
        self._log.log(level, "%s: %s", subject, words, exc_info=trace)

    def over(self, subject: str) -> None:
        """It is so no more; told if it was."""
        with self._lock:
            if self._told.pop(subject, None) is None:
                return
        self._log.info("%s: this is over", subject)
