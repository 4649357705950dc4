"""Why a sandbox ended, decided from what is known.  Pure."""

from datetime import datetime

from gateway.wire.states import DeathReason
from node_agent.runtime.base import Death
from node_agent.runtime.runsc.handles import exit_of


def judge(status: int | None, *, oom_kills: int, disk_full: bool, ended_at: datetime) -> Death:
    """The death of a sandbox whose first process or kernel ended.

    Args:
        status: wait status of the first process; ``None`` where only the end of the sandbox's kernel was seen.
        oom_kills: how often the host killed in its memory group.
        disk_full: whether its volume had no free block at the end.
        ended_at: when.
    """
    code = None if status is None else exit_of(status).code
    if oom_kills and code != 0:
        return Death(DeathReason.OOM, code, "it used more memory than memory_mb allows and was killed", ended_at)
    if disk_full and code not in (0, None):
        detail = f"its first process ended with exit code {code} while its disk was full (disk_mb)"
        return Death(DeathReason.DISK_FULL, code, detail, ended_at)
    if code is None:
        detail = "its kernel ended, and nobody saw with which exit code its first process did"
        return Death(DeathReason.EXITED, None, detail, ended_at)
    return Death(DeathReason.EXITED, code, f"its first process ended with exit code {code}", ended_at)
