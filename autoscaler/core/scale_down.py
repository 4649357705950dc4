"""Scale down: an idle node beyond the floor is closed, and deleted once a heartbeat proves it empty."""

import math
from typing import Final

from autoscaler.core import backoff
from autoscaler.core.actions import Drain, WaitKind
from autoscaler.core.plan_builder import PlanBuilder
from autoscaler.core.pools import PoolPolicy
from autoscaler.core.states import IntentState
from autoscaler.core.world import Intent, NodeView
from providers.base import Billing, Instance

S = IntentState
HOUR: Final = 3600.0
DELETE_SECONDS: Final = 300.0
"""A delete that takes longer holds up no other; ray waits as long for an instance to end."""
SAFETY_SECONDS: Final = 30.0
"""So shortly before the next hour a delete would come too late to save it."""


def close_idle(draft: PlanBuilder, pool: PoolPolicy, outdated: dict[str, str]) -> None:
    """Close the longest idle nodes beyond the floor, those out of date first, unless something speaks against it."""
    spare = len(draft.rows(pool, {S.READY})) - draft.floor(pool)
    idle = _idle(draft, pool)
    if spare <= 0 or not idle or draft.booting(pool):
        return
    if (objection := _objection(draft, pool)) is not None:
        kind, why = objection
        draft.wait(f"pool {pool.name}", kind, f"it has idle nodes, but {why}")
        return
    room = min(spare, _budget(draft, pool))
    for intent, node, since in sorted(idle, key=lambda entry: (entry[0].operation_id not in outdated, entry[2])):
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


def _idle(draft: PlanBuilder, pool: PoolPolicy) -> list[tuple[Intent, NodeView, float]]:
    """Return ready and empty nodes of a pool, with the time since which they are."""
    found: list[tuple[Intent, NodeView, float]] = []
    for intent, node in draft.open_nodes(pool):
        if not node.is_empty or node.idle_since is None:
            continue
        if draft.is_idle(intent, node):
            found.append((intent, node, node.idle_since))
        else:
            draft.wait(intent.name, WaitKind.IDLE_WANTED, "it is idle, but what is wanted fits there")
    return found


def _objection(draft: PlanBuilder, pool: PoolPolicy) -> tuple[WaitKind, str] | None:
    """Return why nothing of a pool is closed now."""
    if not draft.world.clock_settled:
        return WaitKind.CLOCK_JUMP, "the clock has just jumped"
    if (failed := delete_failure(draft, pool)) is not None:
        return WaitKind.BACKOFF, failed
    hold = pool.idle_seconds if pool.hold_seconds is None else pool.hold_seconds
    since = draft.now - max(intent.created_at for intent in draft.rows(pool))
    if since < hold:
        return WaitKind.HOLD, f"it grew {since:.0f} s ago; nothing is closed for {hold:.0f} s after that"
    nodes = (draft.world.node_of(intent) for intent in draft.rows(pool))
    pressed = [node.pressed_at for node in nodes if node is not None and node.pressed_at is not None]
    calm = draft.now - max(pressed, default=-math.inf)
    if calm < pool.pressure_hold_seconds:
        hold = pool.pressure_hold_seconds
        return WaitKind.HOLD, f"it was under pressure {calm:.0f} s ago; nothing is closed for {hold:.0f} s after that"
    return None


def is_overdue(intent: Intent, pool: PoolPolicy, now: float) -> bool:
    """Return whether a node has been on its way out for so long that the others need not wait for it."""
    patience = pool.drain_seconds if intent.state is S.DRAINING else DELETE_SECONDS
    return now - intent.changed_at > patience


def delete_failure(draft: PlanBuilder, pool: PoolPolicy) -> str | None:
    """Return why one more closed node could not be deleted either."""
    held = draft.world.held_back(backoff.closing_key(pool.name), draft.now)
    if held is None:
        return None
    return f"a delete of it has just failed; nothing is closed for {held.until - draft.now:.0f} s: {held.reason}"


def _budget(draft: PlanBuilder, pool: PoolPolicy) -> int:
    """Return how many nodes of a pool may be closed in this tick."""
    in_tick = sum(1 for action in draft.actions if isinstance(action, Drain))
    rows = draft.rows(pool, {S.DRAINING, S.DELETING})
    going = sum(1 for intent in rows if not is_overdue(intent, pool, draft.now)) - draft.reopened[pool.name]
    at_once = max(1, math.floor(len(draft.rows(pool, {S.READY})) * pool.drain_share))
    return max(0, min(draft.policy.stops_per_tick - in_tick, at_once - going))


def _paid(draft: PlanBuilder, pool: PoolPolicy, intent: Intent) -> str | None:
    """Return why a node is kept although it is idle: its started hour is paid."""
    view = draft.world.providers[pool.provider]
    if view.caps.billing is not Billing.HOURLY_ROUND_UP:
        return None
    instance = draft.world.listed[pool.provider].first(intent.operation_id)
    if instance is None:
        return "it is idle, but not listed"
    left = _paid_for(instance, view.taken_at)
    if SAFETY_SECONDS <= left <= pool.billing_margin_seconds:
        return None
    return f"it is idle; its hour is paid for another {left:.0f} s"


def _paid_for(instance: Instance, taken_at: float) -> float:
    """Return the seconds until the next hour begins; both times are the provider's."""
    age = max(0.0, taken_at - instance.created_at.timestamp())
    return math.ceil(age / HOUR) * HOUR - age
