"""What waits for room, and what could be had."""

from gateway.wire.capacity import Ceilings, Demand


class CapacityService:
    """Demand and ceilings, for the autoscaler."""

    async def demand(self) -> Demand:
        """What waits now, oldest first."""
        raise AssertionError

    async def set_ceilings(self, ceilings: Ceilings) -> None:
        """Replaces what the autoscaler said before; waiting sandboxes are judged again."""
        raise AssertionError
