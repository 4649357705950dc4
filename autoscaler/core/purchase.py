"""The purchase of one instance within every limit: the first offer of a pool that may be bought, or a refusal.

Limits are counts, money and back-offs.  Every row that is not gone counts, called or not.
"""

from collections.abc import Iterator
from decimal import Decimal
from typing import Final

from autoscaler.core import backoff
from autoscaler.core.actions import Boot, BootRefusal, RefusalKind
from autoscaler.core.offers import PoolOffer, missing_offers
from autoscaler.core.packing import Bin, Group, fits
from autoscaler.core.plan_builder import PlanBuilder
from autoscaler.core.pools import PoolPolicy
from autoscaler.core.states import IntentState
from autoscaler.core.world import DemandItem

R = RefusalKind
NOTHING: Final = Decimal(0)


def boot(draft: PlanBuilder, pool: PoolPolicy, group: Group | None, why: str, cause: str = "") -> BootRefusal | None:
    """Add a boot of the first offer that may be bought and fits ``group`` to the plan.

    Args:
        draft: the plan.
        pool: whose offers are tried, in its order of preference.
        group: what a node must have room for one of; ``None`` for any node.
        why: the reason, with ``{}`` where the shape of ``group`` is to be named.
        cause: see `Intent.cause`.

    Returns:
        ``None`` if there is a boot, else why there is none.
    """
    reason = why.format(describe_item(group.item)) if group is not None else why
    refusal = pool_refusal(draft, pool)
    if refusal is None:
        refusal = _nothing_to_buy(draft, pool)
        for offer in draft.offers(pool):
            if group is not None and not suits(draft, pool, offer, group):
                continue
            refusal = offer_refusal(draft, pool, offer)
            if refusal is None:
                _order(draft, pool, offer, reason, cause, group.item if group is not None else None)
                return None
    if group is None:
        draft.wait(f"pool {pool.name}", refusal.kind, f"{reason}, but {refusal.text}")
    return refusal


def _order(
    draft: PlanBuilder, pool: PoolPolicy, offer: PoolOffer, reason: str, cause: str, item: DemandItem | None
) -> None:
    bundle = draft.world.bundle if pool.installs else ""
    draft.actions.append(
        Boot(
            pool.name,
            pool.provider,
            offer.key,
            pool.start_seconds,
            reason,
            price=offer.price,
            item=item,
            cause=cause,
            spec=f"{pool.spec}-{bundle}" if pool.spec and bundle else pool.spec,
        )
    )
    draft.booted.append((pool, offer, Bin(pool.name, offer.room, pool.runtimes, pool.isolations, pool.name)))


def suits(draft: PlanBuilder, pool: PoolPolicy, offer: PoolOffer, group: Group) -> bool:
    """Return whether a node of this offer has room for one of ``group``, and can run it."""
    item = group.item
    return (
        fits(group.need, offer.room)
        and any(item.isolation == gives and item.runtime in (None, name) for name, gives in draft.engines(pool))
        and item.pool in (None, pool.name)
    )


def may_grow(draft: PlanBuilder, pool: PoolPolicy) -> bool:
    """Return whether a pool may boot now or soon, so that what is wanted need not go elsewhere."""
    refusal = pool_refusal(draft, pool)
    if refusal is not None:
        return refusal.kind.is_brief or refusal.kind is R.POOL_FULL
    return any(offer_refusal(draft, pool, offer) is None for offer in draft.offers(pool))


# -- limits of a pool -------------------------------------------------------------------------------------------------


def pool_refusal(draft: PlanBuilder, pool: PoolPolicy) -> BootRefusal | None:
    """Return why a pool may have no more instances now, or ``None`` if it may."""
    if pool.name not in draft.refusals:
        refusal = _pool_refusal(draft, pool)
        if refusal is None:
            return None
        draft.refusals[pool.name] = refusal
    return draft.refusals[pool.name]


def _pool_refusal(draft: PlanBuilder, pool: PoolPolicy) -> BootRefusal | None:
    view = draft.world.providers.get(pool.provider)
    if view is None or view.instances is None:
        if view is not None and view.is_resting:
            return BootRefusal(R.RESTING, f"provider {pool.provider} rests: {view.problem}")
        return BootRefusal(R.BLIND, f"provider {pool.provider} cannot be listed")
    if pool.name in draft.failing:
        return BootRefusal(R.FAILED_BOOT, "an instance of it has just failed to become a node")
    rows = len(draft.rows(pool)) + draft.booting(pool)
    if rows >= pool.max:
        return BootRefusal(R.POOL_FULL, f"the pool has {rows} of at most {pool.max} instances")
    fleet = len(draft.world.intents) + len(draft.booted)
    if draft.policy.max is not None and fleet >= draft.policy.max:
        return BootRefusal(R.FLEET_FULL, f"the fleet has {fleet} of at most {draft.policy.max} instances")
    if len(draft.booted) >= draft.policy.creates_per_tick:
        return BootRefusal(R.TICK_FULL, f"a tick boots at most {draft.policy.creates_per_tick}")
    in_flight, most = draft.starting(pool), _most_in_flight(draft, pool)
    if in_flight >= most:
        return BootRefusal(R.IN_FLIGHT, f"{in_flight} of at most {most} at once are on their way")
    return None


def _most_in_flight(draft: PlanBuilder, pool: PoolPolicy) -> int:
    """Return as many as work, which doubles the pool at most; one probe after a boot that failed."""
    failing = draft.world.backoffs.get(backoff.pool_key(pool.name))
    if failing is not None and draft.now - failing.failed_at < backoff.FORGET_SECONDS:
        return 1
    return max(pool.max_in_flight, len(draft.rows(pool, {IntentState.READY})))


# -- limits of an offer -----------------------------------------------------------------------------------------------


def offer_refusal(draft: PlanBuilder, pool: PoolPolicy, offer: PoolOffer) -> BootRefusal | None:
    """Return why this offer may not be bought for this pool now, or ``None`` if it may."""
    for key in backoff.keys(pool.provider, pool.name, offer.key):
        if (held := draft.world.held_back(key, draft.now)) is not None:
            return BootRefusal(R.BACKOFF, f"{key} is held back for {held.until - draft.now:.0f} s: {held.reason}")
    if not offer.offer.available:
        return BootRefusal(R.UNAVAILABLE, f"{offer.key} is not available")
    if (text := next(_broken_caps(draft, pool, offer), None)) is not None:
        return BootRefusal(R.PRICE, text)
    return None


def _nothing_to_buy(draft: PlanBuilder, pool: PoolPolicy) -> BootRefusal:
    view = draft.world.providers.get(pool.provider)
    if missing := missing_offers(pool, view.offers if view is not None else ()):
        return BootRefusal(R.UNSOLD, missing)
    if draft.offers(pool):
        return BootRefusal(R.UNFIT, "none of its offers fits")
    if pool.gpus:
        return BootRefusal(R.UNSOLD, f"nothing that it may buy is sold with {pool.gpus} GPUs")
    return BootRefusal(R.UNSOLD, f"{pool.provider} will not sell its offers much longer")


def _broken_caps(draft: PlanBuilder, pool: PoolPolicy, offer: PoolOffer) -> Iterator[str]:
    """Yield a sentence for each price cap that one more of this offer would break."""
    fleet = draft.policy
    caps = (pool.max_price, pool.max_hourly, pool.max_monthly, fleet.max_hourly, fleet.max_monthly)
    if all(cap is None for cap in caps):
        return
    if offer.price is None:
        yield f"{offer.key} has no known price, and a price cap is set"
        return
    if pool.max_price is not None and offer.price > pool.max_price:
        yield f"{offer.key} costs {offer.price} €/h, more than {pool.max_price}"
    own = sum((bought.price or NOTHING for booted, bought, _ in draft.booted if booted is pool), offer.price)
    every = sum((bought.price or NOTHING for _, bought, _ in draft.booted), offer.price)
    spent = draft.world.spent.get(pool.name, NOTHING)
    yield from _over(f"pool {pool.name}", draft.bill(pool), own, (pool.max_hourly, pool.max_monthly), spent)
    spent = sum(draft.world.spent.values(), NOTHING)
    yield from _over("the fleet", draft.bill(None), every, (fleet.max_hourly, fleet.max_monthly), spent)


def _over(
    whose: str,
    bill: tuple[Decimal | None, Decimal],
    more: Decimal,
    caps: tuple[Decimal | None, Decimal | None],
    spent: Decimal,
) -> Iterator[str]:
    """Yield how ``more`` euro an hour beside what runs would break the hourly and the monthly cap."""
    (running, so_far), (hourly, monthly) = bill, caps
    if hourly is None and monthly is None:
        return
    if running is None:
        yield f"{whose} has an instance without a known price, and a price cap is set"
        return
    if hourly is not None and running + more > hourly:
        yield f"{whose} would cost {running + more} €/h, more than {hourly}"
    # All that runs may start one more hour before anything can be stopped.
    by_then = spent + so_far + running + more
    if monthly is not None and by_then > monthly:
        yield f"{whose} could cost {by_then} € this month, more than {monthly}"


def describe_item(item: DemandItem) -> str:
    """Return a shape in words."""
    shape = item.shape
    gpus = f", {shape.gpus} gpus" if shape.gpus else ""
    runtime = f" on {item.runtime}" if item.runtime else ""
    return f"{shape.cpus:g} cpus, {shape.memory_mb} MiB, {shape.disk_mb} MiB disk{gpus} ({item.isolation}{runtime})"
