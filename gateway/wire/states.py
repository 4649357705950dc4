"""The state machines of the service: what may become what, and nothing else.

Theory of operation
-------------------

There are three kinds of things with a state: sandboxes, nodes and exec sessions.  Each has one table that maps a state
to the states that may follow.  Whoever changes a state asks `next_state`; a change that the table does not contain is
a bug in the caller, never a user's mistake, and raises `IllegalTransitionError`.

The tables say what is *legal*, not what *happens*.  Events (an order's answer, a heartbeat, a deadline, a call of a
client) are turned into changes by `gateway.core.transitions` and `gateway.core.node_health` for rows of the gateway,
and by the node agent for its sessions; all of them are held to these tables.

A sandbox has two parties that know about it: the gateway owns the row, and the node's engine owns the processes.
Most edges exist because those two can disagree:

* ``pending -> creating -> running`` is the way up.  ``creating -> pending`` undoes the choice of a node that refused or
  vanished before the sandbox ever ran; it is then placed again.
* ``running``, ``paused`` and ``checkpointed`` follow the node's inventory.  What is missing from two inventories in a
  row becomes ``lost``, and so does everything on a node that is silent for too long.
* ``exited`` and ``failed`` keep their node and workspace, so a restart (``-> creating``, with the next generation) may
  follow.  ``lost`` does not: the workspace is gone with the node.
* ``deleting`` can be reached from every state but ``deleted``, and leaves only to ``deleted``: a delete wins over
  everything in flight.  ``pending``, ``failed`` and ``lost`` may go to ``deleted`` directly, where no node has to
  confirm.
* ``deleted -> pending`` is a new sandbox that uses the id again, with the next generation.

There is no edge from a state to itself: an event that changes nothing is not a change of state.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, TypeVar


class SandboxState(StrEnum):
    """State of a sandbox.  ``exited``, ``failed``, ``lost`` and ``deleted`` carry a `DeathReason`."""

    PENDING = "pending"  # accepted, waits for room
    CREATING = "creating"  # a node was chosen and got the order
    RUNNING = "running"
    PAUSED = "paused"
    CHECKPOINTED = "checkpointed"
    RESTORING = "restoring"
    EXITED = "exited"  # its first process ended by itself
    FAILED = "failed"  # it never ran, or something killed it
    LOST = "lost"  # its node is gone, or no longer has it
    DELETING = "deleting"
    DELETED = "deleted"


class DeathReason(StrEnum):
    """Why a sandbox ended."""

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


class WaitReason(StrEnum):
    """Why a sandbox is ``pending``."""

    NO_NODE = "no_node"
    NO_ENGINE = "no_engine"
    TOO_LARGE = "too_large"
    NO_ROOM = "no_room"


class NodeState(StrEnum):
    """State of a node, as the gateway sees it."""

    READY = "ready"
    DRAINING = "draining"  # takes nothing new
    UNREACHABLE = "unreachable"  # heartbeats are late
    LOST = "lost"  # heartbeats are so late that its sandboxes count as lost
    GONE = "gone"  # removed by the operator or the autoscaler


class ExecStatus(StrEnum):
    """State of an exec session.  The last two are final.

    ``exited`` means that the process ended by itself, whatever its exit code; ``failed`` that it could not be
    started, was killed by its timeout, or that its end could not be observed.
    """

    RUNNING = "running"
    EXITED = "exited"
    FAILED = "failed"


S = SandboxState

SANDBOX_TRANSITIONS: Final[Mapping[SandboxState, frozenset[SandboxState]]] = {
    S.PENDING: frozenset({S.CREATING, S.FAILED, S.DELETING, S.DELETED}),
    S.CREATING: frozenset({S.RUNNING, S.PENDING, S.EXITED, S.FAILED, S.LOST, S.DELETING}),
    S.RUNNING: frozenset({S.PAUSED, S.CHECKPOINTED, S.CREATING, S.EXITED, S.FAILED, S.LOST, S.DELETING}),
    S.PAUSED: frozenset({S.RUNNING, S.CHECKPOINTED, S.CREATING, S.EXITED, S.FAILED, S.LOST, S.DELETING}),
    S.CHECKPOINTED: frozenset({S.RESTORING, S.FAILED, S.LOST, S.DELETING}),
    S.RESTORING: frozenset({S.RUNNING, S.CHECKPOINTED, S.FAILED, S.LOST, S.DELETING}),
    S.EXITED: frozenset({S.CREATING, S.LOST, S.DELETING}),
    S.FAILED: frozenset({S.CREATING, S.LOST, S.DELETING, S.DELETED}),
    S.LOST: frozenset({S.DELETING, S.DELETED}),
    S.DELETING: frozenset({S.DELETED}),
    S.DELETED: frozenset({S.PENDING}),
}

LIVE: Final = frozenset({S.CREATING, S.RUNNING, S.PAUSED, S.CHECKPOINTED, S.RESTORING})
"""States in which a sandbox holds resources of a node."""

ENDED: Final = frozenset({S.EXITED, S.FAILED, S.LOST, S.DELETED})
"""States in which no process of the sandbox runs."""

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
    """A change of state that the table does not contain: a bug in the caller, never a user's mistake."""


def next_state(table: Mapping[State, frozenset[State]], current: State, wanted: State) -> State:
    """Return ``wanted`` if the table allows it after ``current``.

    Raises:
        IllegalTransitionError: the table does not contain that change.
    """
    if wanted not in table[current]:
        raise IllegalTransitionError(f"{type(current).__name__}: {current} -> {wanted} is not in the table")
    return wanted
