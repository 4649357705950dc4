"""What a boot must not break: counts, money, back-offs.  Every row that is not gone counts, called or not."""

from decimal import Decimal
from typing import Final

from autoscaler.core import backoff
from autoscaler.core.model import PoolPolicy
from autoscaler.core.offers import Ware
from autoscaler.core.plan_builder import Draft
from autoscaler.core.states import IntentState

PATIENCE: Final = "later"
"""How a refusal begins that ends by itself, soon."""
FULL: Final = "it has"
"""How the refusal of a pool begins that is at its own maximum."""
FLEET_FULL: Final = "the fleet has"
"""The same, of the fleet."""


def is_visible(draft: Draft, pool: PoolPolicy) -> bool:
    """Whether the provider of a pool has listed its instances in this tick."""
    view = draft.world.providers.get(pool.provider)
    return view is not None and view.instances is not None


def pool_refusal(draft: Draft, pool: PoolPolicy) -> str | None:
    """Why a pool may have no more instances now; ``None`` when it may."""
    if pool.name not in draft.refusals:
        refusal = _pool_refusal(draft, pool)
        if refusal is None:
            return None
        draft.refusals[pool.name] = refusal
    return draft.refusals[pool.name]


def _pool_refusal(draft: Draft, pool: PoolPolicy) -> str | None:
    if not is_visible(draft, pool):
        view = draft.world.providers.get(pool.provider)
        if view is not None and view.is_resting:
            return f"{PATIENCE}: provider {pool.provider} rests; {view.problem}"
        return f"provider {pool.provider} is blind"
    if pool.name in draft.failed:
        return "an instance of it has just failed to become a node"
    rows = len(draft.rows(pool)) + draft.booting(pool)
    if rows >= pool.max:
        return f"{FULL} {rows} of at most {pool.max}"
    fleet = len(draft.world.intents) + len(draft.booted)
    if draft.policy.max is not None and fleet >= draft.policy.max:
        return f"{FLEET_FULL} {fleet} of at most {draft.policy.max}"
    if len(draft.booted) >= draft.policy.creates_per_tick:
        return f"{PATIENCE}: {draft.policy.creates_per_tick} a tick"
    on_their_way, most = draft.starting(pool), in_flight(draft, pool)
    if on_their_way >= most:
        return f"{PATIENCE}: {on_their_way} are on their way, of at most {most} at once"
    return None


def may_grow(draft: Draft, pool: PoolPolicy) -> bool:
    """Whether a pool may boot, or will soon: what is wanted need not go elsewhere."""
    refusal = pool_refusal(draft, pool)
    if refusal is not None:
        return refusal.startswith((PATIENCE, FULL))
    return any(ware_refusal(draft, pool, ware) is None for ware in draft.wares(pool))


def in_flight(draft: Draft, pool: PoolPolicy) -> int:
    """How many may be on their way at once: at most doubling what works; one probe after a boot that failed."""
    failing = draft.world.backoffs.get(backoff.pool_key(pool.name))
    if failing is not None and draft.now - failing.failed_at < backoff.FORGET_SECONDS:
        return 1
    return max(pool.max_in_flight, len(draft.rows(pool, {IntentState.READY})))


def ware_refusal(draft: Draft, pool: PoolPolicy, ware: Ware) -> str | None:
    """Why this offer may not be bought for this pool now; ``None`` when it may."""
    for key in backoff.keys(pool.provider, pool.name, ware.key):
        held = draft.world.backoffs.get(key)
        if held is not None and draft.now < held.until:
            return f"{key} is held back for {held.until - draft.now:.0f} s: {held.reason}"
    if not ware.offer.available:
        return f"{ware.key} is not available"
    return _too_dear(draft, pool, ware)


def _too_dear(draft: Draft, pool: PoolPolicy, ware: Ware) -> str | None:
    caps = (pool.max_price, pool.max_hourly, pool.max_monthly, draft.policy.max_hourly, draft.policy.max_monthly)
    if all(cap is None for cap in caps):
        return None
    if ware.price is None:
        return f"{ware.key} has no known price, and a price cap is set"
    if pool.max_price is not None and ware.price > pool.max_price:
        return f"{ware.key} costs {ware.price} €/h, more than {pool.max_price}"
    own = sum((bought.price or Decimal(0) for booted, bought, _ in draft.booted if booted is pool), ware.price)
    every = sum((bought.price or Decimal(0) for _, bought, _ in draft.booted), ware.price)
    spent = draft.world.spent
    return _over(
        f"pool {pool.name}",
        draft.bill(pool),
        own,
        (pool.max_hourly, pool.max_monthly),
        spent.get(pool.name, Decimal(0)),
    ) or _over(
        "the fleet",
        draft.bill(None),
        every,
        (draft.policy.max_hourly, draft.policy.max_monthly),
        sum(spent.values(), Decimal(0)),
    )


def _over(
    whose: str,
    bill: tuple[Decimal | None, Decimal],
    more: Decimal,
    caps: tuple[Decimal | None, Decimal | None],
    spent: Decimal,
) -> str | None:
    """What the hourly and the monthly cap say to ``more`` euro an hour beside what runs."""
    (running, so_far), (hourly, monthly) = bill, caps
    if hourly is None and monthly is None:
        return None
    if running is None:
        return f"{whose} has an instance without a known price, and a price cap is set"
    if hourly is not None and running + more > hourly:
        return f"{whose} would cost {running + more} €/h, more than {hourly}"
    # All that runs may start one more hour before anything can be stopped.
    by_then = spent + so_far + running + more
    if monthly is not None and by_then > monthly:
        return f"{whose} could cost {by_then} € this month, more than {monthly}"
    return None
