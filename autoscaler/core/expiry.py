"""Instances that are paid for until a certain moment, and how long before it something is to happen.

Times are the provider's on both sides, so a jump of our clock changes nothing.
"""

from dataclasses import dataclass

from autoscaler.core.model import Intent, PoolPolicy
from autoscaler.core.plan_builder import Draft


@dataclass(frozen=True)
class Ending:
    """The end of one instance's paid time."""

    reason: str
    left: float
    """Seconds until then."""
    replace_at: float
    """A replacement is ordered when no more seconds than this are left."""
    close_at: float
    """It takes nothing new when no more seconds than this are left."""


def ending(draft: Draft, pool: PoolPolicy, intent: Intent) -> Ending | None:
    """``None`` for what has no end, or is not listed.

    There is room for a boot and a drain as the pool counts them.  Of what was paid for a short time, both are cut so
    that the first is not above half: else a new one would be out of date as soon as it came.
    """
    seen = draft.listed.get(pool.provider)
    instance = seen.first(intent.operation_id) if seen is not None else None
    if instance is None or instance.expires_at is None:
        return None
    lead = pool.start_seconds + pool.boot_seconds + pool.drain_seconds
    paid = max(0.0, (instance.expires_at - instance.created_at).total_seconds())
    part = min(1.0, paid / 2 / lead)
    return Ending(
        reason=f"its paid time ends at {instance.expires_at:%Y-%m-%d %H:%M:%S}",
        left=instance.expires_at.timestamp() - draft.world.providers[pool.provider].taken_at,
        replace_at=lead * part,
        close_at=pool.drain_seconds * part,
    )
