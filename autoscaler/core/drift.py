"""Nodes that are out of date, or whose paid time ends.

Out of date is what was made from another spec than the pool's, with another node bundle than the gateway serves now, or
of an offer that ends.  One at a time in each pool: a replacement boots beside it, and only when an up-to-date node
stands idle is the old one closed.  It is deleted when its last sandbox has ended; nothing is moved, nothing is killed.
"""

from typing import Final

from autoscaler.core.expiry import ending
from autoscaler.core.model import Drain, Intent, Node, OfferKey, PoolPolicy, RefusalKind, WaitKind
from autoscaler.core.offers import ends_soon
from autoscaler.core.packing import Bin
from autoscaler.core.plan_builder import Draft
from autoscaler.core.purchase import boot, pool_refusal
from autoscaler.core.scale_down import cannot_stop, is_overdue
from autoscaler.core.states import IntentState
from autoscaler.core.world import DRIFT
from gateway.wire.states import NodeState

S = IntentState
FULL: Final = frozenset({RefusalKind.POOL_FULL, RefusalKind.FLEET_FULL})


def dated(draft: Draft, pool: PoolPolicy) -> dict[str, str]:
    """Why the instances of some rows are to be replaced, by operation."""
    view = draft.world.providers.get(pool.provider)
    sold_until = {
        OfferKey(offer.type, offer.location): f"{offer.type}@{offer.location} ends on {offer.gone_after:%Y-%m-%d}"
        for offer in (view.offers if view is not None else ())
        if offer.gone_after is not None and ends_soon(offer, draft.now)
    }
    found: dict[str, str] = {}
    for intent in draft.rows(pool):
        end = ending(draft, pool, intent)
        if end is not None and end.left <= end.replace_at:
            found[intent.operation_id] = end.reason
        elif pool.replaces and (reason := _drift(pool, intent, draft.world.bundle) or sold_until.get(intent.offer)):
            found[intent.operation_id] = reason
    return found


def _drift(pool: PoolPolicy, intent: Intent, bundle: str) -> str | None:
    if pool.spec and intent.base and intent.base != pool.spec:
        return "it was made from an older spec"
    installed = intent.spec.partition("-")[2]
    if pool.installs and bundle and installed and installed != bundle:
        return "it was made with an older node bundle"
    return None


def replace_dated(draft: Draft, pool: PoolPolicy, old: dict[str, str], ready: dict[str, Bin]) -> None:
    """Closes what ends soon, and adds the next step of at most one replacement to the plan."""
    if not old:
        return
    _close_ending(draft, pool, old)
    rows = [(intent, node) for intent, node in _ready(draft, pool) if intent.operation_id in old]
    if not rows or not draft.world.clock_settled:
        return
    name = f"pool {pool.name}"
    leaving = (intent for intent in draft.rows(pool, {S.DRAINING}) if intent.cause == DRIFT)
    if any(not is_overdue(intent, pool, draft.now) for intent in leaving):
        draft.wait(name, WaitKind.REPLACING, f"{len(rows)} nodes are out of date; one is on its way out already")
        return
    if draft.starting(pool) or draft.boots(pool):
        draft.wait(name, WaitKind.REPLACING, f"{len(rows)} nodes are out of date; what is on its way comes first")
        return
    oldest, node = min(rows, key=lambda row: _urgency(draft, pool, row[0], ready))
    reason = old[oldest.operation_id]
    has_stand_in = _has_stand_in(draft, pool, oldest, old, ready)
    # At the maximum there is no room for a second one; an idle node can go first.
    refusal = pool_refusal(draft, pool)
    goes_first = node.is_empty and refusal is not None and refusal.kind in FULL
    if not has_stand_in and not goes_first:
        boot(draft, pool, None, f"{oldest.name} is to be replaced: {reason}")
    elif (failed := cannot_stop(draft, pool)) is not None:
        draft.wait(name, WaitKind.BACKOFF, f"{len(rows)} nodes are out of date, but {failed}")
    else:
        why = "another has its place" if has_stand_in else "it is idle"
        draft.actions.append(Drain(oldest.operation_id, node.id, f"{reason}; {why}", cause=DRIFT))


def _close_ending(draft: Draft, pool: PoolPolicy, old: dict[str, str]) -> None:
    """What ends before its work could is given no more of it, whether or not there is a replacement."""
    for intent, node in _ready(draft, pool):
        end = ending(draft, pool, intent) if intent.operation_id in old else None
        if end is not None and end.left <= end.close_at:
            reason = f"{end.reason}; nothing new is to begin there"
            draft.actions.append(Drain(intent.operation_id, node.id, reason, cause=DRIFT))


def _ready(draft: Draft, pool: PoolPolicy) -> list[tuple[Intent, Node]]:
    """Rows with nodes that take work, and that this plan does not close yet."""
    closing = {action.operation_id for action in draft.actions if isinstance(action, Drain)}
    rows = [(intent, draft.node(intent)) for intent in draft.rows(pool, {S.READY})]
    return [
        (intent, node)
        for intent, node in rows
        if node is not None and node.state is NodeState.READY and intent.operation_id not in closing
    ]


def _urgency(draft: Draft, pool: PoolPolicy, intent: Intent, ready: dict[str, Bin]) -> tuple[float, bool, float]:
    """What ends first goes first, then what is idle, then what is old."""
    end = ending(draft, pool, intent)
    return float("inf") if end is None else end.left, not _is_idle(draft, intent, ready), intent.created_at


def _is_idle(draft: Draft, intent: Intent, ready: dict[str, Bin]) -> bool:
    node, bin_ = draft.node(intent), ready.get(intent.name)
    return node is not None and node.state is NodeState.READY and node.is_empty and not (bin_ and bin_.used)


def _has_stand_in(draft: Draft, pool: PoolPolicy, leaving: Intent, old: dict[str, str], ready: dict[str, Bin]) -> bool:
    """Whether the pool can do without this node: an up-to-date one is idle, or it is idle itself and over the floor."""
    fresh = [intent for intent, _ in _ready(draft, pool) if intent.operation_id not in old]
    if any(_is_idle(draft, intent, ready) for intent in fresh):
        return True
    return _is_idle(draft, leaving, ready) and draft.kept(pool) > draft.floor(pool)
