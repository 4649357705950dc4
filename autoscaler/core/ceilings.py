"""What the gateway is told could be had at most, so that it refuses what can never fit."""

from collections.abc import Iterable
from dataclasses import replace

from autoscaler.core.model import FleetPolicy, OfferKey, PoolPolicy, World
from autoscaler.core.offers import expected_shape, offers_of
from autoscaler.core.packing import fits, vector
from gateway.wire.capacity import Ceilings, PoolCeiling
from gateway.wire.resources import Shape
from providers.base import Offer


def ceilings(world: World, policy: FleetPolicy) -> Ceilings | None:
    """The largest nodes of each pool that may have nodes.

    A pool has several where no one of them is the largest in everything: what has many cores and what has GPUs.
    ``None`` while the offers of a pool are unknown: a ceiling that is too low would refuse what fits.
    """
    pools: list[PoolCeiling] = []
    for pool in policy.pools:
        if pool.max == 0 or not pool.hosts_sandboxes:
            continue
        offers = offers_of(world, pool)
        if not offers and not offers_of(world, replace(pool, gpus=0)):
            return None
        largest = _largest(world, pool, offers)
        pools += [
            PoolCeiling(
                pool=pool.name if len(largest) == 1 else f"{pool.name} ({name})",
                shape=shape,
                runtimes=sorted(pool.runtimes),
                isolations=sorted(pool.isolations),
                max_nodes=pool.max,
            )
            for name, shape in largest.items()
        ]
    return Ceilings(pools=pools)


def _largest(world: World, pool: PoolPolicy, offers: Iterable[Offer]) -> dict[OfferKey, Shape]:
    """The shapes that no other one holds."""
    found: dict[OfferKey, Shape] = {}
    for offer in offers:
        shape = expected_shape(world, pool, offer)
        if any(fits(vector(shape), vector(other)) for other in found.values()):
            continue
        found = {key: other for key, other in found.items() if not fits(vector(other), vector(shape))}
        found[OfferKey(offer.type, offer.location)] = shape
    return found
