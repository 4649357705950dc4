"""Nodes that are out of date: made from another spec than the pool's, or of an offer that ends.

One at a time in each pool: a replacement boots beside it, and only when an up-to-date node stands idle is the old one
closed.  It is deleted when its last sandbox has ended; nothing is moved and nothing is killed.
"""

from autoscaler.core.draft import Draft
from autoscaler.core.lifecycle import IntentState
from autoscaler.core.limits import pool_refusal
from autoscaler.core.model import Drain, Intent, OfferKey, PoolPolicy
from autoscaler.core.ordering import boot
from autoscaler.core.packing import Bin
from autoscaler.core.rows import DRIFT
from autoscaler.core.supply import ends_soon
from gateway.wire.states import NodeState

S = IntentState


def dated(draft: Draft, pool: PoolPolicy) -> dict[str, str]:
    """Why the instances of some rows are to be replaced, by operation."""
    view = draft.world.providers.get(pool.provider)
    ending = {
        OfferKey(offer.type, offer.location): f"{offer.type}@{offer.location} ends on {offer.gone_after:%Y-%m-%d}"
        for offer in (view.offers if view is not None else ())
        if offer.gone_after is not None and ends_soon(offer, draft.now)
    }
    found: dict[str, str] = {}
    for intent in draft.rows(pool):
        if pool.spec and intent.spec and intent.spec != pool.spec:
            found[intent.operation_id] = "it was made from an older spec"
        elif ending and intent.offer in ending:
            found[intent.operation_id] = ending[intent.offer]
    return found


def replace_dated(draft: Draft, pool: PoolPolicy, old: dict[str, str], ready: dict[str, Bin]) -> None:
    """Adds the next step of at most one replacement to the plan."""
    rows = [intent for intent in draft.rows(pool, {S.READY}) if intent.operation_id in old]
    if not rows or not draft.world.clock_settled:
        return
    name = f"pool {pool.name}"
    if any(intent.cause == DRIFT for intent in draft.rows(pool, {S.DRAINING})):
        draft.wait(name, f"{len(rows)} nodes are out of date; one is on its way out already")
        return
    if draft.starting(pool) or draft.boots(pool):
        draft.wait(name, f"{len(rows)} nodes are out of date; what is on its way comes first")
        return
    oldest = min(rows, key=lambda intent: (not _is_idle(draft, intent, ready), intent.created_at))
    node = draft.node(oldest)
    if node is None or node.state is not NodeState.READY:
        return
    reason = old[oldest.operation_id]
    if _has_stand_in(draft, pool, oldest, old, ready):
        draft.actions.append(Drain(oldest.operation_id, node.id, f"{reason}; another has its place", cause=DRIFT))
        return
    if (refusal := pool_refusal(draft, pool)) is not None and refusal.startswith("it has") and node.is_empty:
        # At the maximum there is no room for a second one; an idle node can go first.
        draft.actions.append(Drain(oldest.operation_id, node.id, f"{reason}; it is idle", cause=DRIFT))
        return
    boot(draft, pool, None, f"{oldest.name} is to be replaced: {reason}")


def _is_idle(draft: Draft, intent: Intent, ready: dict[str, Bin]) -> bool:
    node, bin_ = draft.node(intent), ready.get(intent.name)
    return node is not None and node.state is NodeState.READY and node.is_empty and not (bin_ and bin_.used)


def _has_stand_in(draft: Draft, pool: PoolPolicy, leaving: Intent, old: dict[str, str], ready: dict[str, Bin]) -> bool:
    """Whether the pool can do without this node: an up-to-date one is idle, or it is idle itself and over the floor."""
    fresh = [intent for intent in draft.rows(pool, {S.READY}) if intent.operation_id not in old]
    if any(_is_idle(draft, intent, ready) for intent in fresh):
        return True
    return _is_idle(draft, leaving, ready) and draft.kept(pool) > draft.floor(pool)
