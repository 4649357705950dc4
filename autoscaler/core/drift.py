"""Drift: the replacement of nodes that are out of date, or whose paid time ends.

Out of date is what was made from another spec than the pool's, with another node bundle than the gateway serves now, or
of an offer that ends.  One at a time in each pool: a replacement boots beside it, and only when an up-to-date node
stands idle is the old one closed.  It is deleted when its last sandbox has ended; nothing is moved, nothing is killed.
"""

from dataclasses import dataclass
from typing import Final

from autoscaler.core.actions import Drain, RefusalKind, WaitKind
from autoscaler.core.offers import ends_soon
from autoscaler.core.plan_builder import PlanBuilder
from autoscaler.core.pools import OfferKey, PoolPolicy
from autoscaler.core.purchase import boot, pool_refusal
from autoscaler.core.scale_down import delete_failure, is_overdue
from autoscaler.core.states import IntentState
from autoscaler.core.world import DRIFT, Intent, NodeView

S = IntentState
FULL: Final = frozenset({RefusalKind.POOL_FULL, RefusalKind.FLEET_FULL})


def outdated(draft: PlanBuilder, pool: PoolPolicy) -> dict[str, str]:
    """Return why the instances of some rows are to be replaced, by operation."""
    view = draft.world.providers.get(pool.provider)
    sold_until = {
        OfferKey(offer.type, offer.location): f"{offer.type}@{offer.location} ends on {offer.gone_after:%Y-%m-%d}"
        for offer in (view.offers if view is not None else ())
        if offer.gone_after is not None and ends_soon(offer, draft.now)
    }
    found: dict[str, str] = {}
    for intent in draft.rows(pool):
        expiry = _expiry(draft, pool, intent)
        if expiry is not None and expiry.left <= expiry.replace_at:
            found[intent.operation_id] = expiry.reason
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


def replace_outdated(draft: PlanBuilder, pool: PoolPolicy, outdated: dict[str, str]) -> None:
    """Close what ends soon, and add the next step of at most one replacement to the plan."""
    if not outdated:
        return
    _close_expiring(draft, pool, outdated)
    rows = [(intent, node) for intent, node in draft.open_nodes(pool) if intent.operation_id in outdated]
    if not rows or not draft.world.clock_settled:
        return
    subject, found = f"pool {pool.name}", f"{len(rows)} nodes are out of date"
    leaving = (intent for intent in draft.rows(pool, {S.DRAINING}) if intent.cause == DRIFT)
    if any(not is_overdue(intent, pool, draft.now) for intent in leaving):
        draft.wait(subject, WaitKind.REPLACING, f"{found}; one is on its way out already")
        return
    if draft.starting(pool):
        draft.wait(subject, WaitKind.REPLACING, f"{found}; what is on its way comes first")
        return
    oldest, node = min(rows, key=lambda row: _urgency(draft, pool, *row))
    reason = outdated[oldest.operation_id]
    has_stand_in = _has_stand_in(draft, pool, oldest, node, outdated)
    # At the maximum there is no room for a second one; an idle node can go first.
    refusal = pool_refusal(draft, pool)
    goes_first = node.is_empty and refusal is not None and refusal.kind in FULL
    if not has_stand_in and not goes_first:
        boot(draft, pool, None, f"{oldest.name} is to be replaced: {reason}")
    elif (failed := delete_failure(draft, pool)) is not None:
        draft.wait(subject, WaitKind.BACKOFF, f"{found}, but {failed}")
    else:
        why = "another has its place" if has_stand_in else "it is idle"
        draft.actions.append(Drain(oldest.operation_id, node.id, f"{reason}; {why}", cause=DRIFT))


def _urgency(draft: PlanBuilder, pool: PoolPolicy, intent: Intent, node: NodeView) -> tuple[float, bool, float]:
    """Order what ends first before what is idle, and that before what is old."""
    expiry = _expiry(draft, pool, intent)
    return float("inf") if expiry is None else expiry.left, not draft.is_idle(intent, node), intent.created_at


def _has_stand_in(
    draft: PlanBuilder, pool: PoolPolicy, leaving: Intent, node: NodeView, outdated: dict[str, str]
) -> bool:
    """Return whether the pool can do without this node: an up-to-date one is idle, or it is itself, over the floor."""
    fresh = (row for row in draft.open_nodes(pool) if row[0].operation_id not in outdated)
    if any(draft.is_idle(*row) for row in fresh):
        return True
    return draft.is_idle(leaving, node) and draft.kept(pool) > draft.floor(pool)


# -- paid time --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PaidTime:
    """The end of one instance's paid time.

    Times are the provider's on both sides, so a jump of our clock changes nothing.
    """

    reason: str
    left: float
    """Seconds until then."""
    replace_at: float
    """A replacement is ordered when no more seconds than this are left."""
    close_at: float
    """It takes nothing new when no more seconds than this are left."""


def _close_expiring(draft: PlanBuilder, pool: PoolPolicy, outdated: dict[str, str]) -> None:
    """Close what ends before its work could, whether or not there is a replacement."""
    for intent, node in draft.open_nodes(pool):
        expiry = _expiry(draft, pool, intent) if intent.operation_id in outdated else None
        if expiry is not None and expiry.left <= expiry.close_at:
            reason = f"{expiry.reason}; nothing new is to begin there"
            draft.actions.append(Drain(intent.operation_id, node.id, reason, cause=DRIFT))


def _expiry(draft: PlanBuilder, pool: PoolPolicy, intent: Intent) -> PaidTime | None:
    """Return the end of a row's paid time, or ``None`` for what has no end or is not listed.

    There is room for a boot and a drain as the pool counts them.  Of what was paid for a short time, both are cut so
    that the first is not above half: else a new one would be out of date as soon as it came.
    """
    index = draft.world.listed.get(pool.provider)
    instance = index.first(intent.operation_id) if index is not None else None
    if instance is None or instance.expires_at is None:
        return None
    lead = pool.start_seconds + pool.boot_seconds + pool.drain_seconds
    paid = max(0.0, (instance.expires_at - instance.created_at).total_seconds())
    part = min(1.0, paid / 2 / lead)
    return PaidTime(
        reason=f"its paid time ends at {instance.expires_at:%Y-%m-%d %H:%M:%S}",
        left=instance.expires_at.timestamp() - draft.world.providers[pool.provider].taken_at,
        replace_at=lead * part,
        close_at=pool.drain_seconds * part,
    )
