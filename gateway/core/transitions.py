"""What becomes of a sandbox when something happens to it.

Every function takes the sandbox as it is and gives the sandbox as it will be; each change of state goes through
`gateway.wire.states.SANDBOX_TRANSITIONS`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from enum import Enum
from typing import Final

from gateway.core.model import Sandbox
from gateway.core.placement import Placed
from gateway.wire.errors import CODE_RULES, ErrorCode
from gateway.wire.nodes import InventoryItem
from gateway.wire.sandboxes import SandboxSpec
from gateway.wire.states import SANDBOX_TRANSITIONS, DeathReason, SandboxState, next_state

S = SandboxState
Decide = Callable[[Sandbox], Sandbox | None]
"""What becomes of a sandbox; ``None`` leaves it as it is."""

UNSETTLED: Final = frozenset({S.PENDING, S.CREATING, S.RESTORING, S.DELETING})
"""States that somebody in the gateway has to move on."""


class Outcome(Enum):
    """What an order's error says about the sandbox."""

    UNKNOWN = "unknown"  # the same order again, to the same node
    REFUSED = "refused"  # nothing was done: another node
    FENCED = "fenced"  # the node has a newer generation
    FINAL = "final"  # it cannot run, here or elsewhere


OUTCOMES: Final[Mapping[ErrorCode, Outcome]] = {
    ErrorCode.NODE_REFUSED: Outcome.REFUSED,
    ErrorCode.CONFLICT: Outcome.FENCED,
    # The node does not take our control token: it is of another life, and its next heartbeat or registration mends it.
    ErrorCode.UNAUTHORIZED: Outcome.UNKNOWN,
    ErrorCode.FORBIDDEN: Outcome.UNKNOWN,
    # The agent broke, which says nothing about the sandbox.
    ErrorCode.INTERNAL: Outcome.UNKNOWN,
}

DEATHS: Final[Mapping[ErrorCode, DeathReason]] = {
    ErrorCode.IMAGE_ERROR: DeathReason.IMAGE_ERROR,
    ErrorCode.DISK_FULL: DeathReason.DISK_FULL,
    ErrorCode.NO_ROOM: DeathReason.EVICTED,
    ErrorCode.NEVER_FITS: DeathReason.EVICTED,
}
"""Reason of death by the error that killed it; every other error is a ``start_error``."""

START_FAILURES: Final[Mapping[DeathReason | None, ErrorCode]] = {
    DeathReason.IMAGE_ERROR: ErrorCode.IMAGE_ERROR,
    DeathReason.START_ERROR: ErrorCode.START_ERROR,
    DeathReason.DISK_FULL: ErrorCode.DISK_FULL,
}
"""What a create is answered with when its node reports that the sandbox died of this before it ran."""

UNPLACED_ERRORS: Final = frozenset({ErrorCode.NO_ROOM, ErrorCode.NEVER_FITS})
"""Failures that say nothing about the sandbox itself: a later create starts afresh."""


def outcome_of(code: ErrorCode) -> Outcome:
    """What to make of an order that was answered with ``code``."""
    return OUTCOMES.get(code, Outcome.UNKNOWN if CODE_RULES[code].retryable else Outcome.FINAL)


def accepted(spec: SandboxSpec, spec_hash: str, operation_id: str, now: datetime, generation: int = 1) -> Sandbox:
    """A new sandbox that waits for room.  Its ttl counts from here."""
    return Sandbox(
        spec=spec,
        spec_hash=spec_hash,
        generation=generation,
        version=1,
        operation_id=operation_id,
        state=S.PENDING,
        created_at=now,
        updated_at=now,
        active_at=now,
        expires_at=None if spec.ttl_seconds is None else now + timedelta(seconds=spec.ttl_seconds),
    )


def placed(sandbox: Sandbox, where: Placed, now: datetime) -> Sandbox:
    """A node was chosen."""
    return replace(
        _moved(sandbox, S.CREATING, now), node_id=where.node_id, runtime=where.runtime, granted_gpus=where.gpus
    )


def running(sandbox: Sandbox, item: InventoryItem, now: datetime) -> Sandbox:
    """Its node has it running."""
    return replace(
        _moved(sandbox, S.RUNNING, now),
        active_at=now,
        started_at=item.started_at or now,
        runtime=item.runtime,
        isolation=item.isolation,
        image_digest=item.image_digest,
    )


def settled(sandbox: Sandbox, item: InventoryItem, now: datetime) -> Sandbox | None:
    """The sandbox after its node told of a state in which it can stay; ``None`` when that says nothing new."""
    if item.state in {S.EXITED, S.FAILED}:
        return ended(sandbox, item, now)
    if item.state is S.RUNNING:
        return running(sandbox, item, now)
    return None


def ended(sandbox: Sandbox, item: InventoryItem, now: datetime) -> Sandbox:
    """Its first process is no more."""
    by_itself = item.state is S.EXITED and S.EXITED in SANDBOX_TRANSITIONS[sandbox.state]
    state = S.EXITED if by_itself else S.FAILED
    after = replace(
        _moved(sandbox, state, now),
        reason=item.reason or (DeathReason.EXITED if state is S.EXITED else DeathReason.START_ERROR),
        error=START_FAILURES.get(item.reason) if state is S.FAILED and item.started_at is None else None,
        detail=item.detail,
        exit_code=item.exit_code,
        started_at=item.started_at or sandbox.started_at,
        ended_at=item.ended_at or now,
        runtime=item.runtime,
        isolation=item.isolation,
        image_digest=item.image_digest or sandbox.image_digest,
    )
    return after if state is S.EXITED else _without_unused_unit(after)


def failed(sandbox: Sandbox, code: ErrorCode, message: str, now: datetime) -> Sandbox:
    """It cannot be brought up."""
    return replace(
        _moved(_without_unused_unit(sandbox), S.FAILED, now),
        reason=DEATHS.get(code, DeathReason.START_ERROR),
        detail=message,
        error=code,
        ended_at=now,
    )


def restart_refused(sandbox: Sandbox, message: str, now: datetime) -> Sandbox:
    """Its node, the only one with its workspace, has no room for it; it may be restarted again.

    What ran before may run on there, and counts until the node tells of its end.
    """
    after = failed(sandbox, ErrorCode.NO_ROOM, f"{message}; restart it again later, its workspace is kept", now)
    return replace(after, ended_at=None)


def over(sandbox: Sandbox, item: InventoryItem | None, now: datetime) -> Sandbox:
    """What ran before a refused restart has ended on its node."""
    return replace(sandbox, ended_at=item.ended_at if item is not None and item.ended_at is not None else now)


def requeued(sandbox: Sandbox, operation_id: str, now: datetime) -> Sandbox:
    """Back to waiting, as a new generation: whatever the old order may still do is fenced off."""
    return replace(
        _moved(sandbox, S.PENDING, now),
        generation=sandbox.generation + 1,
        operation_id=operation_id,
        node_id=None,
        runtime=None,
        granted_gpus=0,
    )


def restarted(sandbox: Sandbox, operation_id: str, now: datetime) -> Sandbox:
    """The next generation, on the same node."""
    return replace(
        _moved(sandbox, S.CREATING, now),
        generation=sandbox.generation + 1,
        operation_id=operation_id,
        active_at=now,
        reason=None,
        detail=None,
        error=None,
        exit_code=None,
        ended_at=None,
    )


def paused(sandbox: Sandbox, now: datetime) -> Sandbox:
    """Its processes are frozen."""
    return _moved(sandbox, S.PAUSED, now)


def checkpointed(sandbox: Sandbox, now: datetime) -> Sandbox:
    """Its processes are on disk."""
    return _moved(sandbox, S.CHECKPOINTED, now)


def resumed(sandbox: Sandbox, now: datetime) -> Sandbox:
    """They go on."""
    return replace(_moved(sandbox, S.RUNNING, now), active_at=now)


def lost(sandbox: Sandbox, detail: str, now: datetime) -> Sandbox:
    """Its node is gone, or no longer has it."""
    return replace(
        _moved(sandbox, S.LOST, now),
        reason=DeathReason.NODE_LOST,
        detail=detail,
        ended_at=sandbox.ended_at or now,
    )


def without_node(sandbox: Sandbox, operation_id: str, detail: str, now: datetime) -> Sandbox | None:
    """What becomes of a sandbox whose node is given up; ``None`` when nothing does."""
    if sandbox.state is S.DELETING:
        return deleted(sandbox, now)
    if sandbox.state is S.CREATING and not sandbox.ever_ran:
        return requeued(sandbox, operation_id, now)
    if sandbox.state in {S.EXITED, S.FAILED}:
        # How it ended is still true; that its workspace went with the node shows in the missing node.
        return replace(sandbox, node_id=None, updated_at=now)
    if S.LOST in SANDBOX_TRANSITIONS[sandbox.state]:
        return lost(sandbox, detail, now)
    return None


def deleting(sandbox: Sandbox, reason: DeathReason, now: datetime) -> Sandbox:
    """On its way out, or out at once when no node has anything of it.  The first cause of death stays."""
    # A lost one's node, should it come back, removes what no row owns.
    on_node = sandbox.node_id is not None and sandbox.state is not S.LOST
    way_out = S.DELETING if on_node or S.DELETED not in SANDBOX_TRANSITIONS[sandbox.state] else S.DELETED
    after = replace(_moved(sandbox, way_out, now), reason=sandbox.reason or reason)
    if way_out is S.DELETING:
        return after
    return replace(_without_unused_unit(after), ended_at=sandbox.ended_at or now)


def unless_leaving(sandbox: Sandbox, reason: DeathReason, now: datetime) -> Sandbox | None:
    """As `deleting`; ``None`` when it is on its way out already."""
    return None if sandbox.state in {S.DELETING, S.DELETED} else deleting(sandbox, reason, now)


def starts_afresh(sandbox: Sandbox) -> bool:
    """Whether a create of this id begins anew: it is deleted, or never ran for want of room alone."""
    unplaced = sandbox.state is S.FAILED and sandbox.error in UNPLACED_ERRORS
    return sandbox.state is S.DELETED or (unplaced and not sandbox.ever_ran)


def deleted(sandbox: Sandbox, now: datetime) -> Sandbox:
    """Nothing of it is left but this row."""
    return replace(_moved(_without_unused_unit(sandbox), S.DELETED, now), ended_at=sandbox.ended_at or now)


def _without_unused_unit(sandbox: Sandbox) -> Sandbox:
    """One that ends without having run lets go of its prepared unit; the store puts the unit back."""
    return sandbox if sandbox.ever_ran else replace(sandbox, batch=None)


def _moved(sandbox: Sandbox, state: SandboxState, now: datetime) -> Sandbox:
    return replace(sandbox, state=next_state(SANDBOX_TRANSITIONS, sandbox.state, state), updated_at=now)
