"""Nodes too many: an idle one beyond the floor is closed, and stopped once it is proved empty."""

import math

from autoscaler.core import backoff
from autoscaler.core.model import Drain, Intent, Node, PoolPolicy, WaitKind
from autoscaler.core.packing import Bin
from autoscaler.core.plan_builder import Draft
from autoscaler.core.states import IntentState
from gateway.wire.states import NodeState
from providers.base import Billing, Instance

S = IntentState
HOUR = 3600.0
DELETE_SECONDS = 300.0
"""A delete that takes longer holds up no other; ray waits as long for an instance to end."""
SAFETY_SECONDS = 30.0
"""So shortly before the next hour a stop would come too late to save it."""


def close_idle(draft: Draft, pool: PoolPolicy, old: dict[str, str], ready: dict[str, Bin]) -> None:
    """Closes the longest idle node beyond the floor, those out of date first, unless something speaks against it."""
    spare = len(draft.rows(pool, {S.READY})) - draft.floor(pool)
    idle = _idle(draft, pool, ready)
    if spare <= 0 or not idle or draft.boots(pool):
        return
    if (objection := _objection(draft, pool)) is not None:
        kind, why = objection
        draft.wait(f"pool {pool.name}", kind, f"it has idle nodes, but {why}")
        return
    room = min(spare, _budget(draft, pool))
    for intent, node, since in sorted(idle, key=lambda entry: (entry[0].operation_id not in old, entry[2])):
        rest = pool.idle_seconds - (draft.now - since)
        if rest > 0:
            draft.wait(intent.name, WaitKind.IDLE_YOUNG, f"it is idle; it is closed in {rest:.0f} s")
        elif room <= 0:
            draft.wait(intent.name, WaitKind.IDLE_QUEUED, "it is idle; others are closed first")
        elif (paid := _paid(draft, pool, intent)) is not None:
            draft.wait(intent.name, WaitKind.IDLE_PAID, paid)
        else:
            room -= 1
            draft.actions.append(Drain(intent.operation_id, node.id, f"idle for {draft.now - since:.0f} s"))


def _idle(draft: Draft, pool: PoolPolicy, ready: dict[str, Bin]) -> list[tuple[Intent, Node, float]]:
    """Ready and empty nodes of a pool, with the time since which they are."""
    found: list[tuple[Intent, Node, float]] = []
    closing = {action.operation_id for action in draft.actions if isinstance(action, Drain)}
    for intent in draft.rows(pool, {S.READY}):
        node = draft.node(intent)
        if node is None or node.state is not NodeState.READY or not node.is_empty or node.idle_since is None:
            continue
        bin_ = ready.get(intent.name)
        if bin_ is not None and bin_.used:
            draft.wait(intent.name, WaitKind.IDLE_WANTED, "it is idle, but what is wanted fits there")
        elif intent.operation_id not in closing:
            found.append((intent, node, node.idle_since))
    return found


def _objection(draft: Draft, pool: PoolPolicy) -> tuple[WaitKind, str] | None:
    """Why nothing of a pool is closed now."""
    if not draft.world.clock_settled:
        return WaitKind.CLOCK_JUMP, "the clock has just jumped"
    if (failed := cannot_stop(draft, pool)) is not None:
        return WaitKind.BACKOFF, failed
    hold = pool.idle_seconds if pool.hold_seconds is None else pool.hold_seconds
    since = draft.now - max(intent.created_at for intent in draft.rows(pool))
    if since < hold:
        return WaitKind.HOLD, f"it grew {since:.0f} s ago; nothing is closed for {hold:.0f} s after that"
    pressed = [n.pressed_at for i in draft.rows(pool) if (n := draft.node(i)) is not None and n.pressed_at is not None]
    calm = draft.now - max(pressed, default=-math.inf)
    if calm < pool.pressure_hold_seconds:
        return (
            WaitKind.HOLD,
            f"it was under pressure {calm:.0f} s ago; nothing is closed for {pool.pressure_hold_seconds:.0f} s",
        )
    return None


def is_overdue(intent: Intent, pool: PoolPolicy, now: float) -> bool:
    """Whether a node has been on its way out for so long that the others need not wait for it."""
    patience = pool.drain_seconds if intent.state is S.DRAINING else DELETE_SECONDS
    return now - intent.changed_at > patience


def cannot_stop(draft: Draft, pool: PoolPolicy) -> str | None:
    """Why one more closed node could not be got rid of either."""
    held = draft.world.backoffs.get(backoff.closing_key(pool.name))
    if held is None or draft.now >= held.until:
        return None
    return f"a delete of it has just failed; nothing is closed for {held.until - draft.now:.0f} s: {held.reason}"


def _budget(draft: Draft, pool: PoolPolicy) -> int:
    """How many nodes of a pool may be closed in this tick."""
    in_tick = sum(1 for action in draft.actions if isinstance(action, Drain))
    rows = draft.rows(pool, {S.DRAINING, S.DELETING})
    going = sum(1 for intent in rows if not is_overdue(intent, pool, draft.now)) - draft.reopened[pool.name]
    at_once = max(1, math.floor(len(draft.rows(pool, {S.READY})) * pool.drain_share))
    return max(0, min(draft.policy.stops_per_tick - in_tick, at_once - going))


def _paid(draft: Draft, pool: PoolPolicy, intent: Intent) -> str | None:
    """Why a node is kept although it is idle: its started hour is paid."""
    view = draft.world.providers[pool.provider]
    if view.caps.billing is not Billing.HOURLY_ROUND_UP:
        return None
    instance = draft.listed[pool.provider].first(intent.operation_id) if pool.provider in draft.listed else None
    if instance is None:
        return "it is idle, but not listed"
    left = paid_for(instance, view.taken_at)
    if SAFETY_SECONDS <= left <= pool.billing_margin_seconds:
        return None
    return f"it is idle; its hour is paid for another {left:.0f} s"


def paid_for(instance: Instance, taken_at: float) -> float:
    """Seconds until the next hour begins; both times are the provider's."""
    age = max(0.0, taken_at - instance.created_at.timestamp())
    return math.ceil(age / HOUR) * HOUR - age
