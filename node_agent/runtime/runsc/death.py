"""Why a sandbox ended, decided from what is known.  Pure."""

from dataclasses import dataclass
from datetime import datetime

from gateway.wire.states import DeathReason
from node_agent.runtime.base import Death
from node_agent.runtime.runsc.process_handles import exit_of


@dataclass(frozen=True)
class End:
    """What was seen of a sandbox's end.

    Attributes:
        status: wait status of the first process; ``None`` where nobody was told.
        killed: whether the sandbox's kernel, or the host process that serves its files, ended before the first
            process did.  Nothing inside can do that.
    """

    status: int | None = None
    killed: bool = False


@dataclass(frozen=True)
class Memory:
    """What the host says of the sandbox's memory group.

    Attributes:
        kills: how often the host killed in it for want of memory.
        limit_met: whether the group ever met its own bound.
    """

    kills: int = 0
    limit_met: bool = False


def judge(end: End, *, memory: Memory, disk_full: bool, ended_at: datetime) -> Death:
    """The death of a sandbox whose first process or kernel ended.

    Args:
        end: what was seen of it.
        memory: what the host says of its memory.
        disk_full: whether its volume had no free block at the end.
        ended_at: when.
    """
    code = None if end.status is None else exit_of(end.status).code
    if memory.kills and code != 0:
        return Death(DeathReason.OOM, code, _out_of_memory(memory), ended_at)
    if end.killed:
        detail = "a process of its engine was killed on the node, from outside; create it again or restart it"
        return Death(DeathReason.EVICTED, code, detail, ended_at)
    if disk_full and code not in (0, None):
        detail = f"its first process ended with exit code {code} while its disk was full (disk_mb)"
        return Death(DeathReason.DISK_FULL, code, detail, ended_at)
    if code is None:
        detail = "it ended while neither the node agent nor its keeper ran, so nobody saw with which exit code"
        return Death(DeathReason.EXITED, None, detail, ended_at)
    return Death(DeathReason.EXITED, code, f"its first process ended with exit code {code}", ended_at)


def _out_of_memory(memory: Memory) -> str:
    if memory.limit_met:
        return "it used more memory than memory_mb allows and was killed"
    return "the node ran out of memory, and its kernel chose this sandbox to be killed"
