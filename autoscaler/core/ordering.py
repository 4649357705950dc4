"""One boot more: the first offer of a pool that may be bought, or the reason why there is none."""

from autoscaler.core.model import Boot, PoolPolicy, Waiting
from autoscaler.core.offers import Ware, unsold
from autoscaler.core.packing import Bin, Group, fits
from autoscaler.core.plan_builder import Draft
from autoscaler.core.purchase import pool_refusal, ware_refusal


def suits(draft: Draft, pool: PoolPolicy, ware: Ware, group: Group) -> bool:
    """Whether a node of this offer has room for one of ``group``, and can run it."""
    item, (runtimes, isolations) = group.item, draft.engines(pool)
    return (
        fits(group.need, ware.gives)
        and item.isolation in isolations
        and (item.runtime is None or item.runtime in runtimes)
        and item.pool in (None, pool.name)
    )


def boot(draft: Draft, pool: PoolPolicy, group: Group | None, why: str, cause: str = "") -> str | None:
    """Adds one boot to the plan, of the first offer that may be bought and fits ``group``; or says why not."""
    refusal = pool_refusal(draft, pool)
    reason = why.format(words(group.item)) if group is not None else why
    if refusal is None:
        refusal = _nothing_sold(draft, pool)
        for ware in draft.wares(pool):
            if group is not None and not suits(draft, pool, ware, group):
                continue
            held = ware_refusal(draft, pool, ware)
            if held is None:
                item = group.item if group is not None else None
                draft.actions.append(
                    Boot(
                        pool.name,
                        pool.provider,
                        ware.key,
                        pool.start_seconds,
                        reason,
                        price=ware.price,
                        item=item,
                        cause=cause,
                        spec=_spec(draft, pool),
                    )
                )
                draft.booted.append((pool, ware, _room(pool, ware)))
                return None
            refusal = held
    if group is None:
        draft.wait(f"pool {pool.name}", f"{reason}, but {refusal}")
    return refusal


def _spec(draft: Draft, pool: PoolPolicy) -> str:
    bundle = draft.world.bundle if pool.installs else ""
    return f"{pool.spec}-{bundle}" if pool.spec and bundle else pool.spec


def _nothing_sold(draft: Draft, pool: PoolPolicy) -> str:
    view = draft.world.providers.get(pool.provider)
    if missing := unsold(pool, view.offers if view else ()):
        return missing
    if draft.wares(pool):
        return "none of its offers fits"
    if pool.gpus:
        return f"nothing that it may buy is sold with {pool.gpus} GPUs"
    return f"{pool.provider} will not sell its offers much longer"


def _room(pool: PoolPolicy, ware: Ware) -> Bin:
    return Bin(pool.name, ware.gives, pool.runtimes, pool.isolations, pool.name)


def words(item: Waiting) -> str:
    """A shape for people."""
    shape = item.shape
    gpus = f", {shape.gpus} gpus" if shape.gpus else ""
    runtime = f" on {item.runtime}" if item.runtime else ""
    return f"{shape.cpus:g} cpus, {shape.memory_mb} MiB, {shape.disk_mb} MiB disk{gpus} ({item.isolation}{runtime})"
