"""Why a sandbox ended: what was seen of its end, what its engine left behind, and the decision."""

import logging
import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from gateway.wire.states import DeathReason
from node_agent.host.disk import write_atomically
from node_agent.runtime.base import Death
from node_agent.runtime.runsc.process import exit_of

log = logging.getLogger(__name__)

_MAX_WORDS: Final = 200  # characters of what a crash says first
_MAX_LOG: Final = 256 * 1024  # bytes of one crash; what it says first says why
_MAX_LOGS: Final = 100


@dataclass(frozen=True)
class ObservedEnd:
    """What was seen of a sandbox's end.

    Attributes:
        status: wait status of the first process; ``None`` where nobody received it.
        killed: whether the sandbox's kernel, or the host process that serves its files, ended before the first
            process did.  Nothing inside can do that.
        engine_status: wait status of that process of the engine; ``None`` where the host does not tell.
    """

    status: int | None = None
    killed: bool = False
    engine_status: int | None = None


@dataclass(frozen=True)
class MemoryEvents:
    """What the host counted in the sandbox's memory group.

    Attributes:
        kills: how often the host killed in it for want of memory.
        limit_met: whether the group ever met its own bound.
    """

    kills: int = 0
    limit_met: bool = False


@dataclass(frozen=True)
class CrashReport:
    """What the engine wrote about its own crash.

    Attributes:
        words: the first line.
        kept: name of the file in which the node keeps the rest; empty where it could not be kept.
    """

    words: str
    kept: str


def death_of(
    end: ObservedEnd,
    *,
    memory: MemoryEvents,
    disk_full: bool,
    ended_at: datetime,
    crash: CrashReport | None = None,
) -> Death:
    """Decide why a sandbox ended whose first process or kernel ended.

    Args:
        end: what was seen of it.
        memory: what the host counted of its memory.
        disk_full: whether its volume had no free block at the end.
        ended_at: when.
        crash: what its kernel wrote when it crashed, where it did.
    """
    code = None if end.status is None else exit_of(end.status).code
    if memory.kills and code != 0:
        detail = (
            "it used more memory than memory_mb allows and was killed"
            if memory.limit_met
            else "the node ran out of memory, and its kernel chose this sandbox to be killed"
        )
        return Death(DeathReason.OOM, code, detail, ended_at)
    if end.killed:
        detail = f"{_engine_end(end.engine_status, crash)}; create it again or restart it"
        return Death(DeathReason.EVICTED, code, detail, ended_at)
    if disk_full and code not in (0, None):
        detail = f"its first process ended with exit code {code} while its disk was full (disk_mb)"
        return Death(DeathReason.DISK_FULL, code, detail, ended_at)
    if code is None:
        detail = "it ended while neither the node agent nor its FD store ran, so its exit code is not known"
        return Death(DeathReason.EXITED, None, detail, ended_at)
    return Death(DeathReason.EXITED, code, f"its first process ended with exit code {code}", ended_at)


def _engine_end(status: int | None, crash: CrashReport | None) -> str:
    """Say how a process of the engine came to its end before the sandbox did."""
    by_signal = status is not None and os.WIFSIGNALED(status)
    if by_signal and status is not None:
        return f"a process of its engine was killed on the node, from outside, by signal {os.WTERMSIG(status)}"
    if crash is not None:
        kept = f" (the node keeps its log as engine-logs/{crash.kept})" if crash.kept else ""
        return f"its engine crashed: {crash.words}{kept}"
    if status is not None:
        return f"its engine gave up with exit code {os.WEXITSTATUS(status)} and without a word"
    return "a process of its engine was killed on the node, from outside"


class EngineLogs:
    """Keeps what engines wrote when they crashed, when the sandboxes are long deleted: so many files, each so long.

    Args:
        directory: where; made when the first log comes.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def keep(self, name: str, source: Path) -> CrashReport | None:
        """Keep the beginning of what an engine wrote, which says why; ``None`` where it wrote nothing.

        Args:
            name: of the file to be made.
            source: what it wrote.
        """
        try:
            with source.open("rb") as file:
                words = file.read(_MAX_LOG)
        except OSError:  # it never started, or its disk is gone
            return None
        if not words.strip():
            return None
        first = words.strip().splitlines()[0].decode(errors="replace")
        report = "".join(letter for letter in first if letter.isprintable())[:_MAX_WORDS]
        try:
            self._directory.mkdir(mode=0o700, exist_ok=True)
            write_atomically(self._directory / name, words)
            self._forget_old()
        except OSError as error:
            log.error("the log of a crashed engine could not be kept: %s; it began: %s", error, report)
            return CrashReport(report, "")
        return CrashReport(report, name)

    def _forget_old(self) -> None:
        logs = sorted(self._directory.glob("*.log"), key=lambda path: path.stat().st_mtime)
        for path in logs[:-_MAX_LOGS]:
            path.unlink(missing_ok=True)
