"""Decide what becomes of a sandbox when something happens to it.

Theory of operation
-------------------

A sandbox is one row, and its state is the row's ``state``. `gateway.wire.states.SANDBOX_TRANSITIONS` lists which state
may follow which; this module holds the events that cause a change. Every function takes the sandbox as it is and
returns the sandbox as it will be, so an event costs no clock, socket or database to test. All of them go through
`_moved`, which asks the table: a change that is not listed there raises instead of being written.

Three ideas keep a row true while several parties work on it:

* An *operation* (``operation_id``) is one attempt to bring the sandbox to another state. Whoever carries it out writes
  its result only while the row is still at that operation and state (`Sandbox.same_operation`). So a late result of an
  operation that was overtaken, e.g. by a delete, changes nothing.
* A *generation* counts incarnations. It grows when a sandbox goes back to waiting (`requeued`), restarts (`restarted`)
  or its id is used again (`accepted` over a tombstone). Nodes refuse orders for a generation older than what they have,
  and remove an older one when a newer is ordered; so whatever the old order may still do is fenced off.
* Some states are *unsettled* (`UNSETTLED`): somebody in the gateway must move the sandbox on. A pending one is the
  scheduler's, one that is created or deleted is its controller's, one that is restored the next heartbeat's. The others
  change by an event from outside: a call of the client, a deadline, or what a node reports.

An order to a node ends in one of four ways (`OrderOutcome`), by the code of the node's error alone: the outcome is
unknown and the same order is repeated; the node refused and another one is asked; the node has a newer generation; or
the sandbox can run nowhere and fails. The same code decides the reason of death (`DEATHS`), and what a create is
answered with when only the inventory shows the death (`START_FAILURES`). These three tables are all the translation
there is.

The first cause of death stays: a delete of a dead sandbox keeps its reason.
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
from gateway.wire.states import ENDED, SANDBOX_TRANSITIONS, DeathReason, SandboxState, next_state

S = SandboxState
Decide = Callable[[Sandbox], Sandbox | None]
"""Returns what becomes of a sandbox; ``None`` leaves it as it is."""

UNSETTLED: Final = frozenset({S.PENDING, S.CREATING, S.RESTORING, S.DELETING})
"""States that somebody in the gateway has to move on."""


class OrderOutcome(Enum):
    """What an order that was answered with an error has come to."""

    UNKNOWN = "unknown"  # the same order again, to the same node
    REFUSED = "refused"  # nothing was done: another node
    FENCED = "fenced"  # the node has a newer generation
    FINAL = "final"  # it cannot run, here or elsewhere


OUTCOMES: Final[Mapping[ErrorCode, OrderOutcome]] = {
    ErrorCode.NODE_REFUSED: OrderOutcome.REFUSED,
    ErrorCode.CONFLICT: OrderOutcome.FENCED,
    # The node does not take our control token: it is of another life, and its next heartbeat or registration mends it.
    ErrorCode.UNAUTHORIZED: OrderOutcome.UNKNOWN,
    ErrorCode.FORBIDDEN: OrderOutcome.UNKNOWN,
    # The agent broke, which says nothing about the sandbox.
    ErrorCode.INTERNAL: OrderOutcome.UNKNOWN,
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
"""Error of a create whose node reports that the sandbox died of this before it ran."""

UNPLACED_ERRORS: Final = frozenset({ErrorCode.NO_ROOM, ErrorCode.NEVER_FITS})
"""Failures that say nothing about the sandbox itself: a later create starts afresh."""


def outcome_of(code: ErrorCode) -> OrderOutcome:
    """Return what an order has come to that was answered with ``code``."""
    return OUTCOMES.get(code, OrderOutcome.UNKNOWN if CODE_RULES[code].retryable else OrderOutcome.FINAL)


def accepted(
    spec: SandboxSpec,
    spec_hash: str,
    operation_id: str,
    now: datetime,
    generation: int = 1,
    *,
    default_ttl: int | None = None,
) -> Sandbox:
    """Return a new sandbox that waits for room. Its ttl, or else ``default_ttl`` (seconds), counts from here."""
    ttl = default_ttl if spec.ttl_seconds is None else spec.ttl_seconds
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
        expires_at=None if ttl is None else now + timedelta(seconds=ttl),
    )


def placed(sandbox: Sandbox, where: Placed, now: datetime) -> Sandbox:
    """Return the sandbox after a node was chosen for it."""
    return replace(
        _moved(sandbox, S.CREATING, now), node_id=where.node_id, runtime=where.runtime, granted_gpus=where.gpus
    )


def running(sandbox: Sandbox, item: InventoryItem, now: datetime) -> Sandbox:
    """Return the sandbox after its node reported that it runs."""
    return replace(
        _moved(sandbox, S.RUNNING, now),
        active_at=now,
        started_at=item.started_at or now,
        runtime=item.runtime,
        isolation=item.isolation,
        image_digest=item.image_digest,
    )


def settled(sandbox: Sandbox, item: InventoryItem, now: datetime) -> Sandbox | None:
    """Return the sandbox after its node reported a state in which it can stay; ``None`` for any other state."""
    if item.state in {S.EXITED, S.FAILED}:
        return ended(sandbox, item, now)
    if item.state is S.RUNNING:
        return running(sandbox, item, now)
    return None


def ended(sandbox: Sandbox, item: InventoryItem, now: datetime) -> Sandbox:
    """Return the sandbox after its first process ended."""
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
    """Return the sandbox after it turned out that it cannot be brought up."""
    return replace(
        _moved(_without_unused_unit(sandbox), S.FAILED, now),
        reason=DEATHS.get(code, DeathReason.START_ERROR),
        detail=message,
        error=code,
        ended_at=now,
    )


def restart_refused(sandbox: Sandbox, message: str, now: datetime) -> Sandbox:
    """Return the sandbox after its node, the only one with its workspace, refused to restart it.

    It may be restarted again. What ran before may run on there, and counts until the node reports its end.
    """
    after = failed(sandbox, ErrorCode.NO_ROOM, f"{message}; restart it again later, its workspace is kept", now)
    return replace(after, ended_at=None)


def old_run_ended(sandbox: Sandbox, item: InventoryItem | None, now: datetime) -> Sandbox:
    """Return the sandbox after what ran before a refused restart has ended on its node."""
    return replace(sandbox, ended_at=item.ended_at if item is not None and item.ended_at is not None else now)


def requeued(sandbox: Sandbox, operation_id: str, now: datetime) -> Sandbox:
    """Return the sandbox to waiting, as a new generation: whatever the old order may still do is fenced off."""
    return replace(
        _moved(sandbox, S.PENDING, now),
        generation=sandbox.generation + 1,
        operation_id=operation_id,
        node_id=None,
        runtime=None,
        granted_gpus=0,
    )


def bound_by_ttl(sandbox: Sandbox, default_ttl: int | None, now: datetime) -> Sandbox:
    """Return a sandbox that is started now, with the deadline of one that is made now where its own is later or none.

    Args:
        sandbox: as it is.
        default_ttl: seconds that it may live if its spec has no ttl; ``None`` bounds nothing.
        now: when it is started.
    """
    if sandbox.spec.ttl_seconds is not None or default_ttl is None:
        return sandbox
    latest = now + timedelta(seconds=default_ttl)
    return replace(sandbox, expires_at=latest if sandbox.expires_at is None else min(sandbox.expires_at, latest))


def restarted(sandbox: Sandbox, operation_id: str, now: datetime, default_ttl: int | None = None) -> Sandbox:
    """Return the next generation of the sandbox, on the same node, with a deadline as `bound_by_ttl` has it."""
    return replace(
        _moved(bound_by_ttl(sandbox, default_ttl, now), S.CREATING, now),
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
    """Return the sandbox after its processes were frozen."""
    return _moved(sandbox, S.PAUSED, now)


def checkpointed(sandbox: Sandbox, now: datetime) -> Sandbox:
    """Return the sandbox after its processes were written to disk."""
    return _moved(sandbox, S.CHECKPOINTED, now)


def resumed(sandbox: Sandbox, now: datetime) -> Sandbox:
    """Return the sandbox after its processes were thawed."""
    return replace(_moved(sandbox, S.RUNNING, now), active_at=now)


def lost(sandbox: Sandbox, detail: str, now: datetime) -> Sandbox:
    """Return the sandbox after its node went, or reported that it no longer has it."""
    return replace(
        _moved(sandbox, S.LOST, now),
        reason=DeathReason.NODE_LOST,
        detail=detail,
        ended_at=sandbox.ended_at or now,
    )


def without_node(sandbox: Sandbox, operation_id: str, detail: str, now: datetime) -> Sandbox | None:
    """Return what becomes of a sandbox whose node is given up; ``None`` when it stays as it is."""
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
    """Return the sandbox on its way out, or deleted at once when no node has anything of it."""
    # A lost one's node, should it come back, removes what no row owns.
    on_node = sandbox.node_id is not None and sandbox.state is not S.LOST
    way_out = S.DELETING if on_node or S.DELETED not in SANDBOX_TRANSITIONS[sandbox.state] else S.DELETED
    after = replace(_moved(sandbox, way_out, now), reason=sandbox.reason or reason)
    if way_out is S.DELETING:
        return after
    return replace(_without_unused_unit(after), ended_at=sandbox.ended_at or now)


def unless_leaving(sandbox: Sandbox, reason: DeathReason, now: datetime) -> Sandbox | None:
    """Return the sandbox as `deleting` does; ``None`` when it is on its way out already."""
    return None if sandbox.state in {S.DELETING, S.DELETED} else deleting(sandbox, reason, now)


def time_is_over_at(sandbox: Sandbox, keep_ended: timedelta) -> datetime | None:
    """Return when the sandbox is deleted by time: by its ttl, or without one a while after its end.

    Args:
        sandbox: as it is now.
        keep_ended: for which time after its end one without a ttl is kept.

    Returns:
        ``None`` for one that has no ttl and has not ended, or that is on its way out.
    """
    if sandbox.state in {S.DELETING, S.DELETED}:
        return None
    if sandbox.expires_at is not None:
        return sandbox.expires_at
    # A failed one has no end while what ran before a refused restart may still run.
    if sandbox.state not in ENDED or sandbox.ended_at is None:
        return None
    return sandbox.ended_at + keep_ended


def starts_afresh(sandbox: Sandbox) -> bool:
    """Return whether a create of this id starts over: it is deleted, or never ran for want of room alone."""
    unplaced = sandbox.state is S.FAILED and sandbox.error in UNPLACED_ERRORS
    return sandbox.state is S.DELETED or (unplaced and not sandbox.ever_ran)


def deleted(sandbox: Sandbox, now: datetime) -> Sandbox:
    """Return the tombstone: nothing of the sandbox is left but this row."""
    return replace(_moved(_without_unused_unit(sandbox), S.DELETED, now), ended_at=sandbox.ended_at or now)


def _without_unused_unit(sandbox: Sandbox) -> Sandbox:
    """Release the prepared unit of a sandbox that ends without having run; the store puts it back."""
    return sandbox if sandbox.ever_ran else replace(sandbox, batch=None)


def _moved(sandbox: Sandbox, state: SandboxState, now: datetime) -> Sandbox:
    return replace(sandbox, state=next_state(SANDBOX_TRANSITIONS, sandbox.state, state), updated_at=now)
