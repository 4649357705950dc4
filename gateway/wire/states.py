"""State machines of the service, as tables.

Each table maps ``state -> states that may follow``.  A change that the table does not hold is a bug and raises
`IllegalTransitionError`; nothing else in the project decides whether a change is legal.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, TypeVar


class SandboxState(StrEnum):
    """Where a sandbox stands.  ``exited``, ``failed``, ``lost`` and ``deleted`` carry a `DeathReason`."""

    PENDING = "pending"  # accepted, waiting for room
    CREATING = "creating"  # a node was chosen and told
    RUNNING = "running"
    PAUSED = "paused"
    CHECKPOINTED = "checkpointed"
    RESTORING = "restoring"
    EXITED = "exited"  # its first process ended by itself
    FAILED = "failed"  # it never ran, or something killed it
    LOST = "lost"  # its node is gone, or took it away
    DELETING = "deleting"
    DELETED = "deleted"


class DeathReason(StrEnum):
    """Why a sandbox is no longer there."""

    EXITED = "exited"
    OOM = "oom"
    TTL = "ttl"
    IDLE = "idle"
    DELETED = "deleted"
    DISK_FULL = "disk_full"
    IMAGE_ERROR = "image_error"
    START_ERROR = "start_error"
    NODE_LOST = "node_lost"
    EVICTED = "evicted"


class NodeState(StrEnum):
    """Where a node stands in the eyes of the gateway."""

    READY = "ready"
    DRAINING = "draining"  # takes nothing new
    UNREACHABLE = "unreachable"  # heartbeats are late
    LOST = "lost"  # heartbeats are so late that its sandboxes were given up
    GONE = "gone"  # removed by the operator or the autoscaler


class ExecStatus(StrEnum):
    """Where an exec session stands.  The last two are final.

    ``exited`` means that the process ended by itself, whatever its exit code; ``failed`` that it could not be
    started, was killed by its timeout, or that its end could not be observed.
    """

    RUNNING = "running"
    EXITED = "exited"
    FAILED = "failed"


S = SandboxState

SANDBOX_TRANSITIONS: Final[Mapping[SandboxState, frozenset[SandboxState]]] = {
    S.PENDING: frozenset({S.CREATING, S.FAILED, S.DELETING, S.DELETED}),
    # Back to pending when the chosen node refused or vanished before the sandbox ever ran.
    S.CREATING: frozenset({S.RUNNING, S.PENDING, S.EXITED, S.FAILED, S.LOST, S.DELETING}),
    S.RUNNING: frozenset({S.PAUSED, S.CHECKPOINTED, S.CREATING, S.EXITED, S.FAILED, S.LOST, S.DELETING}),
    S.PAUSED: frozenset({S.RUNNING, S.CHECKPOINTED, S.CREATING, S.EXITED, S.FAILED, S.LOST, S.DELETING}),
    S.CHECKPOINTED: frozenset({S.RESTORING, S.FAILED, S.LOST, S.DELETING}),
    S.RESTORING: frozenset({S.RUNNING, S.CHECKPOINTED, S.FAILED, S.LOST, S.DELETING}),
    # A restart makes a new generation on the same node, with the same workspace.
    S.EXITED: frozenset({S.CREATING, S.LOST, S.DELETING}),
    S.FAILED: frozenset({S.CREATING, S.LOST, S.DELETING, S.DELETED}),
    S.LOST: frozenset({S.DELETING, S.DELETED}),
    S.DELETING: frozenset({S.DELETED}),
    # The id may be used again: a new generation of it.
    S.DELETED: frozenset({S.PENDING}),
}

LIVE: Final = frozenset({S.CREATING, S.RUNNING, S.PAUSED, S.CHECKPOINTED, S.RESTORING})
"""States in which a sandbox holds resources of a node."""

ENDED: Final = frozenset({S.EXITED, S.FAILED, S.LOST, S.DELETED})
"""States in which no process of the sandbox runs any more."""

N = NodeState

NODE_TRANSITIONS: Final[Mapping[NodeState, frozenset[NodeState]]] = {
    N.READY: frozenset({N.DRAINING, N.UNREACHABLE, N.GONE}),
    N.DRAINING: frozenset({N.READY, N.UNREACHABLE, N.GONE}),
    N.UNREACHABLE: frozenset({N.READY, N.DRAINING, N.LOST, N.GONE}),
    N.LOST: frozenset({N.READY, N.DRAINING, N.GONE}),
    N.GONE: frozenset(),
}

EXEC_TRANSITIONS: Final[Mapping[ExecStatus, frozenset[ExecStatus]]] = {
    ExecStatus.RUNNING: frozenset({ExecStatus.EXITED, ExecStatus.FAILED}),
    ExecStatus.EXITED: frozenset(),
    ExecStatus.FAILED: frozenset(),
}

State = TypeVar("State", bound=StrEnum)


class IllegalTransitionError(Exception):
    """A change of state that the table does not hold: a bug in the caller, never a user's mistake."""


def next_state(table: Mapping[State, frozenset[State]], current: State, wanted: State) -> State:
    """``wanted`` if the table allows it after ``current``.

    Raises:
        IllegalTransitionError: the table does not hold that change.
    """
    if wanted not in table[current]:
        raise IllegalTransitionError(f"{type(current).__name__}: {current} -> {wanted} is not in the table")
    return wanted
