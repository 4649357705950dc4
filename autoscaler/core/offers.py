"""What a pool may buy, in its order, and what a node of it will have for sandboxes."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

from autoscaler.core.packing import Vector, fits, vector
from autoscaler.core.pools import Engine, FleetPolicy, OfferKey, OfferOrder, PoolPolicy
from autoscaler.core.states import IntentState as S
from autoscaler.core.world import World
from gateway.wire.capacity import Ceilings, PoolCeiling
from gateway.wire.resources import Shape
from providers.base import Offer

LAST_SECONDS: Final = 7 * 86_400.0
"""An offer that ends so soon is not bought any more, and what was bought of it is replaced."""
SHOWN: Final = 4
"""Offers that a sentence names."""


@dataclass(frozen=True)
class PoolOffer:
    """An offer as one pool sees it."""

    key: OfferKey
    offer: Offer
    room: Vector
    """What a node of it will have for sandboxes."""

    @property
    def price(self) -> Decimal | None:
        """Euro an hour."""
        return self.offer.price_per_hour


def pool_offers(world: World, pool: PoolPolicy, now: float) -> tuple[PoolOffer, ...]:
    """Return what a pool may buy, in its order of preference, without what ends soon."""
    return tuple(
        PoolOffer(OfferKey(offer.type, offer.location), offer, vector(expected_shape(world, pool, offer)))
        for offer in _sold_to(world, pool)
        if not ends_soon(offer, now)
    )


def offers_for(pool: PoolPolicy, offers: Iterable[Offer]) -> list[Offer]:
    """Return those of a provider's offers that a pool may use, in its order of preference."""
    fit = (offer for offer in offers if offer.resources.gpus >= pool.gpus)
    sold = {OfferKey(offer.type, offer.location): offer for offer in fit}
    if not pool.offers:
        return _cheapest_first(list(sold.values()))
    chosen = [sold[key] for key in pool.offers if key in sold]
    return _cheapest_first(chosen) if pool.order is OfferOrder.PRICE else chosen


def missing_offers(pool: PoolPolicy, offers: Iterable[Offer]) -> str:
    """Return a sentence about offers of a pool that its provider does not have; empty when there are none."""
    sold = [OfferKey(offer.type, offer.location) for offer in offers]
    if not sold:
        return f"{pool.provider} lists no offers"
    missing = ", ".join(str(key) for key in pool.offers if key not in sold)
    if not missing:
        return ""
    more = f" and {len(sold) - SHOWN} more" if len(sold) > SHOWN else ""
    return f"{pool.provider} does not sell {missing}; it sells {', '.join(map(str, sold[:SHOWN]))}{more}"


def ends_soon(offer: Offer, now: float) -> bool:
    """Return whether the provider has announced that it will not sell or run this much longer."""
    return offer.gone_after is not None and offer.gone_after <= datetime.fromtimestamp(now + LAST_SECONDS, UTC)


def expected_shape(world: World, pool: PoolPolicy, offer: Offer) -> Shape:
    """Return what a node of this offer will have for sandboxes: as seen before, or the offer less what a node keeps."""
    if (seen := world.learned.get((pool.name, offer.type, pool.spec))) is not None:
        return seen
    has = offer.resources
    return Shape(
        cpus=pool.gives.get("cpus", has.cpus * pool.cpu_overcommit),
        memory_mb=int(pool.gives.get("memory_mb", max(0, has.memory_mb - pool.reserve_memory_mb))),
        disk_mb=int(pool.gives.get("disk_mb", max(0, has.disk_mb - pool.reserve_disk_mb))),
        gpus=has.gpus,
        slots=pool.slots,
    )


def _sold_to(world: World, pool: PoolPolicy) -> list[Offer]:
    view = world.providers.get(pool.provider)
    return offers_for(pool, view.offers if view is not None else ())


def _cheapest_first(offers: list[Offer]) -> list[Offer]:
    """Sort by price, those without a known price last."""
    return sorted(offers, key=lambda o: (o.price_per_hour is None, o.price_per_hour or 0, o.type))


def engines(world: World, pool: PoolPolicy) -> frozenset[Engine]:
    """Return what a pool runs: as its nodes report it, and while it has none, as it promises.

    A promise that its image does not keep would else buy node after node for what none of them can run, and let
    sandboxes wait for what never comes.
    """
    rows = (each for each in world.intents if (each.pool, each.state, each.base) == (pool.name, S.READY, pool.spec))
    nodes = [node for row in rows if (node := world.node_of(row)) is not None]
    return frozenset().union(*(node.engines for node in nodes)) if nodes else pool.engines


# -- ceilings ---------------------------------------------------------------------------------------------------------


def ceilings(world: World, policy: FleetPolicy) -> Ceilings | None:
    """Return the largest nodes of each pool that may have nodes, so that the gateway refuses what can never fit.

    A pool has several where no one of them is the largest in everything: what has many cores and what has GPUs; and
    where its runtimes give different isolations.
    ``None`` while the offers of a pool are unknown: a ceiling that is too low would refuse what fits.
    """
    pools: list[PoolCeiling] = []
    for pool in policy.pools:
        if pool.max == 0 or not pool.hosts_sandboxes:
            continue
        offers = _sold_to(world, pool)
        if not offers and not _sold_to(world, replace(pool, gpus=0)):
            return None
        largest, kinds = _largest(world, pool, offers), _alike(engines(world, pool))
        for key, shape in largest.items():
            for isolations, runtimes in kinds.items():
                parts = [str(key)] * (len(largest) > 1) + ["+".join(runtimes)] * (len(kinds) > 1)
                pools.append(
                    PoolCeiling(
                        pool=f"{pool.name} ({', '.join(parts)})" if parts else pool.name,
                        shape=shape,
                        runtimes=runtimes,
                        isolations=list(isolations),
                        max_nodes=pool.max,
                    )
                )
    return Ceilings(pools=pools)


def _alike(found: frozenset[Engine]) -> dict[tuple[str, ...], list[str]]:
    """Return the runtimes that give the same isolations, by these: a ceiling promises each with each."""
    kinds: dict[tuple[str, ...], list[str]] = {}
    for runtime in sorted({name for name, _ in found}):
        kinds.setdefault(tuple(sorted(gives for name, gives in found if name == runtime)), []).append(runtime)
    return kinds


def _largest(world: World, pool: PoolPolicy, offers: Iterable[Offer]) -> dict[OfferKey, Shape]:
    """Return the shapes that no other one holds."""
    found: dict[OfferKey, Shape] = {}
    for offer in offers:
        shape = expected_shape(world, pool, offer)
        if any(fits(vector(shape), vector(other)) for other in found.values()):
            continue
        found = {key: other for key, other in found.items() if not fits(vector(other), vector(shape))}
        found[OfferKey(offer.type, offer.location)] = shape
    return found
