"""What a pool may buy, in its order, and what a node of it will give."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

from autoscaler.core.model import World
from autoscaler.core.packing import Vector, vector
from autoscaler.core.pools import OfferKey, Order, PoolPolicy
from gateway.wire.resources import Shape
from providers.base import Offer

LAST_DAYS: Final = 7 * 86_400.0
"""An offer that ends so soon is bought no more, and what was bought of it is replaced."""

SHOWN: Final = 4
"""Offers that a sentence names."""


@dataclass(frozen=True)
class Ware:
    """An offer as one pool sees it."""

    key: OfferKey
    offer: Offer
    gives: Vector

    @property
    def price(self) -> Decimal | None:
        """Euro an hour."""
        return self.offer.price_per_hour


def wares(world: World, pool: PoolPolicy, now: float) -> tuple[Ware, ...]:
    """What a pool may buy, in its order of preference; what ends soon is left out."""
    return tuple(
        Ware(OfferKey(offer.type, offer.location), offer, vector(expected_shape(world, pool, offer)))
        for offer in offers_of(world, pool)
        if not ends_soon(offer, now)
    )


def offers_of(world: World, pool: PoolPolicy) -> list[Offer]:
    """The offers that a pool may use, in its order of preference."""
    view = world.providers.get(pool.provider)
    return bought_by(pool, view.offers if view else ())


def bought_by(pool: PoolPolicy, offers: Iterable[Offer]) -> list[Offer]:
    """Those of a provider's offers that a pool may use, in its order of preference."""
    fit = (offer for offer in offers if offer.resources.gpus >= pool.gpus)
    sold = {OfferKey(offer.type, offer.location): offer for offer in fit}
    if not pool.offers:
        return _cheapest_first(list(sold.values()))
    chosen = [sold[key] for key in pool.offers if key in sold]
    return _cheapest_first(chosen) if pool.order is Order.PRICE else chosen


def unsold(pool: PoolPolicy, offers: Iterable[Offer]) -> str:
    """A sentence about those offers of a pool that its provider does not have at all; empty when there are none."""
    sold = [OfferKey(offer.type, offer.location) for offer in offers]
    if not sold:
        return f"{pool.provider} tells of no offers"
    missing = ", ".join(str(key) for key in pool.offers if key not in sold)
    if not missing:
        return ""
    more = f" and {len(sold) - SHOWN} more" if len(sold) > SHOWN else ""
    return f"{pool.provider} does not sell {missing}; it sells {', '.join(map(str, sold[:SHOWN]))}{more}"


def ends_soon(offer: Offer, now: float) -> bool:
    """Whether the provider has said that it will not sell or run this much longer."""
    return offer.gone_after is not None and offer.gone_after <= datetime.fromtimestamp(now + LAST_DAYS, UTC)


def expected_shape(world: World, pool: PoolPolicy, offer: Offer) -> Shape:
    """What a node of this offer will have for sandboxes: as seen before, or the offer less what a node keeps."""
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


def _cheapest_first(offers: list[Offer]) -> list[Offer]:
    """Those without a known price last."""
    return sorted(offers, key=lambda o: (o.price_per_hour is None, o.price_per_hour or 0, o.type))
