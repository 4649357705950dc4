"""A cloud in virtual time that boots in drawn times, runs out of stock, and keeps the bill."""

import math
import random
from collections import Counter
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import ClassVar, Final

from providers.base import (
    OPERATION_LABEL,
    Applied,
    Billing,
    Caps,
    Create,
    Deleted,
    ErrorKind,
    Instance,
    ProviderError,
    Ref,
    Scope,
)
from providers.testing.fake import FakeCloud, FakeProvider
from simulator.settings import CloudSettings, SimulatedOffer

HOUR: Final = 3600.0


@dataclass
class SimulatedInstance:
    """One instance over its whole life."""

    name: str
    pool: str
    operation_id: str
    offer: SimulatedOffer
    created_at: float
    registers_at: float | None
    """When its node joins; ``None`` when it never will."""
    deleted_at: float | None = None
    """When it is gone and no longer paid for."""

    def seconds(self, now: float) -> float:
        """Return for how long it has been paid."""
        return (now if self.deleted_at is None else min(now, self.deleted_at)) - self.created_at

    def cost(self, billing: Billing, now: float) -> float:
        """Return what it has cost, in euro."""
        hours = self.seconds(now) / HOUR
        return float(self.offer.price) * (max(1, math.ceil(hours)) if billing is Billing.HOURLY_ROUND_UP else hours)


class SimulatedProvider(FakeProvider):
    """The fake provider with boot times, stock and a ledger.

    Attributes:
        instances: every instance that was ever made, in order.
        refused: how many creates were refused.
    """

    def __init__(self, settings: CloudSettings, deployment: str, chance: random.Random) -> None:
        cloud = FakeCloud(stop_seconds=settings.delete_seconds, offers=tuple(o.offer() for o in settings.offers))
        super().__init__(cloud, deployment)
        self.settings = settings
        self.instances: list[SimulatedInstance] = []
        self.refused = 0
        self._by_name: dict[str, SimulatedInstance] = {}
        self._chance = chance
        self._offers = {(offer.type, offer.location): offer for offer in settings.offers}
        self._born = cloud.now

    def at(self, seconds: float) -> datetime:
        """Return a moment of the simulation by the cloud's clock."""
        return self._born + timedelta(seconds=seconds)

    def create(self, want: Create) -> Instance:
        """Create an instance as the port says, and draw when it boots and joins."""
        offer = self._offers.get((want.type, want.location))
        if offer is not None and want.name not in self._by_name and self._is_out(offer):
            self.refused += 1
            raise ProviderError(
                f"simulated: {want.type} at {want.location} is out of stock",
                kind=ErrorKind.CAPACITY,
                applied=Applied.NO,
                scope=Scope.OFFER,
            )
        self.cloud.boot_seconds = self.settings.boot.draw(self._chance)
        instance = super().create(want)
        if instance.name not in self._by_name and offer is not None:
            self._enter(want, offer)
        return instance

    def delete(self, ref: Ref) -> Deleted:
        """Delete an instance as the port says, and end its bill."""
        answer = super().delete(ref)
        instance = self._by_name.get(ref.name or "")
        if answer is Deleted.ACCEPTED and instance is not None and instance.deleted_at is None:
            instance.deleted_at = self._seconds() + self.settings.delete_seconds
        return answer

    def alive(self) -> list[SimulatedInstance]:
        """Return the instances that are still paid for."""
        now = self._seconds()
        return [each for each in self._by_name.values() if each.deleted_at is None or each.deleted_at > now]

    def forget_gone(self) -> None:
        """Drop what is gone from what is searched; `instances` keeps it."""
        self._by_name = {each.name: each for each in self.alive()}

    def _is_out(self, offer: SimulatedOffer) -> bool:
        there = Counter((each.offer.type, each.offer.location) for each in self.alive())
        if offer.stock is not None and there[offer.type, offer.location] >= offer.stock:
            return True
        return self.settings.refusals > 0 and self._chance.random() < self.settings.refusals

    def _enter(self, want: Create, offer: SimulatedOffer) -> None:
        now = self._seconds()
        joins: float | None = now + self.cloud.boot_seconds + self.settings.join.draw(self._chance)
        if self.settings.boot_failures and self._chance.random() < self.settings.boot_failures:
            joins = None
        instance = SimulatedInstance(want.name, want.pool, want.labels[OPERATION_LABEL], offer, now, joins)
        self.instances.append(instance)
        self._by_name[want.name] = instance

    def _seconds(self) -> float:
        return (self.cloud.now - self._born).total_seconds()


class HourlyProvider(SimulatedProvider):
    """A simulated provider that charges every started hour."""

    caps: ClassVar[Caps] = replace(FakeProvider.caps, billing=Billing.HOURLY_ROUND_UP)


def simulated_provider(settings: CloudSettings, deployment: str, chance: random.Random) -> SimulatedProvider:
    """Return the provider that these settings describe."""
    cls = HourlyProvider if settings.billing is Billing.HOURLY_ROUND_UP else SimulatedProvider
    return cls(settings, deployment, chance)
