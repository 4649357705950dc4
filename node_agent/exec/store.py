"""Where histories lie on disk, and how much all of them may take."""

import logging
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from gateway.wire import limits
from gateway.wire.exec import ExecSession
from node_agent.exec.history import History, Totals

log = logging.getLogger(__name__)

SESSION_ID: Final = re.compile(
    r"exec-[0-9a-f]{32}\.(?P<generation>[1-9][0-9]{0,17})\.(?P<sandbox>" + limits.ID_PATTERN[1:-1] + ")"
)
"""The route is in the id: generation and sandbox.  It is also the name of the session's files."""


class SpoolStore:
    """The directory of all histories.  Safe from any thread."""

    def __init__(self, directory: Path, max_bytes: int) -> None:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._directory = directory
        self._max_bytes = max_bytes
        self._used = 0
        self._lock = threading.Lock()

    @property
    def used_bytes(self) -> int:
        """What all histories take."""
        return self._used

    def take(self, size: int) -> bool:
        """See `node_agent.exec.history.Budget`."""
        with self._lock:
            if self._used + size > self._max_bytes:
                return False
            self._used += size
            return True

    def meta(self, session_id: str) -> Path:
        """File of the session's state."""
        return self._directory / f"{session_id}.json"

    def open(self, session_id: str, max_output: int) -> History:
        """A new history.

        Raises:
            OSError: the disk is full or broken.
        """
        return History(self._events(session_id), max_output, self)

    def remove(self, session_id: str, stored: int) -> None:
        """Deletes a history; its room is free again."""
        self._events(session_id).unlink(missing_ok=True)
        self.meta(session_id).unlink(missing_ok=True)
        with self._lock:
            self._used = max(0, self._used - stored)

    def former(self) -> Iterator[tuple[ExecSession, History]]:
        """Sessions of earlier lives of the agent; files that belong to none are removed."""
        known: set[Path] = set()
        for meta in sorted(self._directory.glob("exec-*.json")):
            try:
                session = ExecSession.model_validate_json(meta.read_bytes())
            except ValidationError:
                log.warning("removing %s: it is not a session", meta)
                continue
            events = self._events(session.id)
            if SESSION_ID.fullmatch(session.id) is None or self.meta(session.id) != meta or not events.exists():
                continue
            known |= {meta, events}
            history = self.open(session.id, limits.MAX_EXEC_OUTPUT)
            history.restore_totals(Totals(session.stdout_bytes, session.stderr_bytes, session.truncated))
            self.take(history.size)
            yield session, history
        for path in self._directory.iterdir():
            if path not in known:
                path.unlink()

    def _events(self, session_id: str) -> Path:
        return self._directory / f"{session_id}.events"
