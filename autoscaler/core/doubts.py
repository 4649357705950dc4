"""Doubts: what a tick cannot understand, so that it is left out and everything else goes on.

One wish, one node, one offer or one row with numbers that nothing can be counted with must not stop the others.  What
is left out is told.  A pool whose inputs are doubted grows, but is not scaled down; a provider whose listing is
doubted counts as blind, because a machine that was overlooked would be taken for gone.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Final

from gateway.wire import limits
from gateway.wire.resources import Shape
from providers.base import Instance, Inventory, Offer, Phase

MOST: Final = limits.MAX_INTEGER
"""What no amount of anything exceeds."""


@dataclass(frozen=True)
class Doubt:
    """Something that was left out of one tick; the reason is for people only."""

    subject: str
    reason: str = field(compare=False)
    pool: str | None = None
    """The pool that is not scaled down meanwhile."""

    @classmethod
    def of(cls, subject: str, error: Exception, pool: str | None = None) -> "Doubt":
        """Return the doubt about what a rule broke on."""
        return cls(subject, f"it is not understood and left out: {type(error).__name__}: {error}", pool)


def unclear_amounts(shape: Shape) -> str | None:
    """Return why nothing can be counted with these amounts, or ``None`` where it can."""
    # Written out, because it is asked of every waiting sandbox; NaN is in no range.
    if (
        0 <= shape.cpus <= MOST
        and 0 <= shape.memory_mb <= MOST
        and 0 <= shape.disk_mb <= MOST
        and 0 <= shape.gpus <= MOST
        and 0 <= shape.slots <= MOST
    ):
        return None
    return f"its amounts cannot be counted with: {shape!r}"


def unclear_offer(offer: Offer) -> str | None:
    """Return why an offer cannot be understood, or ``None`` where it can."""
    has, price = offer.resources, offer.price_per_hour
    amounts = (has.cpus, has.memory_mb, has.disk_mb, has.gpus)
    if not _are_texts(offer.type, offer.location):
        return f"its type and location are {offer.type!r} and {offer.location!r}"
    if not all(0 <= amount <= MOST for amount in amounts):
        return f"no machine can have {has}"
    if price is not None and not (isinstance(price, Decimal) and price.is_finite()):
        return f"it cannot cost {price!r} euro an hour"
    return None if offer.gone_after is None else _unclear_time("its end", offer.gone_after)


def unclear_listing(inventory: Inventory) -> str | None:
    """Return why a listing cannot be understood, or ``None`` where it can."""
    if (text := _unclear_time("its time", inventory.taken_at)) is not None:
        return text
    if not _are_texts(*inventory.leftovers):
        return "the ids of its leftovers are no texts"
    for instance in inventory.instances:
        if (text := _unclear_instance(instance)) is not None:
            return f"instance {instance.id!r}: {text}"
    return None


def _unclear_instance(instance: Instance) -> str | None:
    if not _are_texts(instance.id, instance.name, instance.type, instance.location):
        return f"its id, name, type and location must be texts, {instance.name!r} among them"
    phase: object = instance.phase  # a plugin may have anything there
    if not isinstance(phase, Phase):
        return f"its phase is {phase!r}"
    if not isinstance(instance.labels, Mapping) or not _are_texts(*instance.labels, *instance.labels.values()):
        return "its labels are no texts"
    later = [each for each in (instance.expires_at, instance.progress_at) if each is not None]
    found = (_unclear_time("one of its times", each) for each in (instance.created_at, *later))
    return next((text for text in found if text is not None), None)


def _unclear_time(what: str, time: object) -> str | None:
    if isinstance(time, datetime) and time.tzinfo is not None:
        return None
    return f"{what} is {time!r}, no moment in a time zone"


def _are_texts(*values: object) -> bool:
    return all(isinstance(value, str) for value in values)


def understood_offers(offers: Iterable[Offer], whose: str) -> tuple[tuple[Offer, ...], tuple[Doubt, ...]]:
    """Return the offers that can be understood, and a doubt about each other one.

    Args:
        offers: of one provider.
        whose: its name.
    """
    good: list[Offer] = []
    doubts: list[Doubt] = []
    for place, offer in enumerate(offers):
        try:
            problem = unclear_offer(offer)
        except Exception as error:  # noqa: BLE001 - a plugin's own object may be anything
            problem = f"{type(error).__name__}: {error}"
        if problem is None:
            good.append(offer)
        else:
            name = f"{getattr(offer, 'type', '?')}@{getattr(offer, 'location', place)}"
            doubts.append(Doubt(f"offer {name} of {whose}", f"it is not understood and not bought: {problem}"))
    return tuple(good), tuple(doubts)
