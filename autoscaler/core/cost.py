"""What instances cost, in euro.  A started hour counts in full: the strictest way in which clouds charge."""

import math
from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

from autoscaler.core.world import Intent

HOUR: Final = 3600.0


def month_of(now: float) -> str:
    """Return the calendar month of a moment, such as ``2026-11``; UTC."""
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m")


def month_start(now: float) -> float:
    """Return when the calendar month of a moment began."""
    return datetime.fromtimestamp(now, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0).timestamp()


def cost(intent: Intent, now: float) -> Decimal:
    """Return the euro that an instance has cost this month; 0 for what was never made or has no known price."""
    return _since(intent, month_start(now), now)


def cost_of_all(intents: Iterable[Intent], now: float) -> Decimal:
    """Return the `cost` of all of them together."""
    start = month_start(now)
    return sum((_since(intent, start, now) for intent in intents), Decimal(0))


def _since(intent: Intent, start: float, now: float) -> Decimal:
    if intent.instance_id is None or intent.price is None:
        return Decimal(0)
    return intent.price * max(1, math.ceil((now - max(intent.created_at, start)) / HOUR))


def rate(intents: Iterable[Intent]) -> Decimal | None:
    """Return the euro an hour of all rows together, or ``None`` when one has no known price."""
    total = Decimal(0)
    for intent in intents:
        if intent.price is None:
            return None
        total += intent.price
    return total
