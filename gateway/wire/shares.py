"""One rule for every bounded pool of gateway and nodes: who may take how much of it.

Pure: it counts and decides, and knows neither clocks nor what is counted.  See docs/decisions/0014-fair-shares.md.
"""

import threading
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

from gateway.wire.tenants import tenant_of

RESERVE: Final = 4
"""A pool keeps one part in this many for those who hold little."""


MAX_PACED: Final = 1000
"""Holders after which those that were slow are forgotten."""


class ShareOf(StrEnum):
    """Whose share is used up; the values are the words of refusals."""

    SANDBOX = "this sandbox's share is used up"
    TENANT = "this tenant's share is used up"
    POOL = "everything is in use"


@dataclass(frozen=True)
class Holder:
    """Who takes from a pool.

    Attributes:
        tenant: whose share it comes from.
        sandbox: for what; empty where a pool is shared among tenants only.
    """

    tenant: str
    sandbox: str = ""

    @classmethod
    def of(cls, qualified_id: str) -> Self:
        """Return who takes for the sandbox with this qualified id."""
        return cls(tenant_of(qualified_id), qualified_id)


def limit(capacity: int, others: int, least: int) -> int:
    """Return how much one holder may have while the others hold ``others``.

    Half of what they leave, without the reserve; never less than ``least``.
    """
    return max(least, (capacity - capacity // RESERVE - others) // 2)


class FairPool:
    """What is taken of one pool, and by whom.  Safe from any thread.

    Args:
        capacity: units in the pool.
        least: units that a tenant, and a sandbox within its tenant's limit, may have however much others hold.
    """

    def __init__(self, capacity: int, least: int = 1) -> None:
        self.capacity = capacity
        self._least = least
        self._total = 0
        self._by_tenant: Counter[str] = Counter()
        self._by_holder: Counter[Holder] = Counter()
        self._lock = threading.Lock()

    @property
    def total(self) -> int:
        """Units that are taken."""
        return self._total

    def held(self, holder: Holder) -> int:
        """Return the units that a holder has."""
        return self._by_holder[holder]

    def take(self, holder: Holder, units: int = 1) -> ShareOf | None:
        """Take units, all or none; return whose share does not allow it, or ``None`` when they are taken."""
        with self._lock:
            full = self._full(holder, units)
            if full is None:
                self._add(holder, units)
            return full

    def take_over(self, holder: Holder, units: int) -> None:
        """Count units that were taken in an earlier life, whatever the shares are now."""
        with self._lock:
            self._add(holder, units)

    def give(self, holder: Holder, units: int = 1) -> None:
        """Give units back that `take` took."""
        with self._lock:
            self._add(holder, -units)
            if not self._by_tenant[holder.tenant]:
                del self._by_tenant[holder.tenant]
            if not self._by_holder[holder]:
                del self._by_holder[holder]

    def largest(self) -> Holder | None:
        """Return the holder with the most of the tenant with the most; ``None`` while nothing is taken."""
        with self._lock:
            if not self._by_tenant:
                return None
            tenant = max(self._by_tenant, key=self._by_tenant.__getitem__)
            of_tenant = (holder for holder in self._by_holder if holder.tenant == tenant)
            return max(of_tenant, key=self._by_holder.__getitem__)

    def _add(self, holder: Holder, units: int) -> None:
        self._total += units
        self._by_tenant[holder.tenant] += units
        self._by_holder[holder] += units

    def _full(self, holder: Holder, units: int) -> ShareOf | None:
        of_tenant, own = self._by_tenant[holder.tenant], self._by_holder[holder]
        for_tenant = limit(self.capacity, self._total - of_tenant, self._least)
        if self._total + units > self.capacity:
            return ShareOf.POOL
        if of_tenant + units > for_tenant:
            return ShareOf.TENANT
        if holder.sandbox and own + units > limit(for_tenant, of_tenant - own, self._least):
            return ShareOf.SANDBOX
        return None


class FairPace:
    """Units per second of each holder by itself, for work that costs everybody processor time.  Safe from any thread.

    Args:
        rate: units per second.
        burst: units that a holder who was slower may be ahead.
    """

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._ahead = burst / rate
        self._paid: dict[Holder, float] = {}  # until when each has used up its rate
        self._lock = threading.Lock()

    def pause(self, holder: Holder, units: int, now: float) -> float:
        """Count units; return the seconds for which the holder has to pause after them, at ``now`` of a clock."""
        with self._lock:
            if len(self._paid) > MAX_PACED:
                self._paid = {one: paid for one, paid in self._paid.items() if paid > now - self._ahead}
            paid = max(self._paid.get(holder, 0.0), now - self._ahead) + units / self._rate
            self._paid[holder] = paid
            return max(0.0, paid - now)
