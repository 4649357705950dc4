"""What sandboxes have used: counted on nodes, reported with heartbeats, booked by the gateway hour by hour.

A node counts each incarnation of a sandbox with a *meter* that only ever grows.  It reports the whole of it again and
again, so a report that is lost, repeated or late changes nothing in the end; the last one is repeated until the
gateway says that it has it.
"""

from typing import Annotated, Final, Literal, Self

from pydantic import AwareDatetime, Field

from gateway.wire import limits
from gateway.wire.base import Timestamp, WireAnswer, WireModel, WireRequest
from gateway.wire.tenants import QualifiedId, TenantName

REPORT_INTERVAL: Final = 60.0
"""Seconds between two reports of a meter that runs; its end is reported at once."""
MAX_REPORTS: Final = 1000
"""Meters in one heartbeat; the others wait for the next."""

UsageBy = Literal["tenant", "sandbox", "hour"]
"""What one item sums up: a tenant, a sandbox, or one hour of one incarnation."""
MeterId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Amount = Annotated[float, Field(ge=0, le=1e18, allow_inf_nan=False, strict=False)]


class UsageAmounts(WireModel):
    """Amounts used."""

    cpu_seconds: Amount = 0.0
    """Processor time, as the kernel counts it for the sandbox's control group."""
    memory_mb_seconds: Amount = 0.0
    """MiB of memory times seconds while it ran."""
    paused_memory_mb_seconds: Amount = 0.0
    """The same while it was paused."""
    disk_mb_seconds: Amount = 0.0
    """MiB used on its disk times seconds, from its start until it is deleted or restarted."""
    egress_bytes: Amount = 0.0
    """Bytes that it sent, as the kernel counts them at the host's end of its network."""

    def plus(self, **amounts: float) -> Self:
        """Return the sum of this and the named amounts."""
        return self.model_copy(update={name: getattr(self, name) + amount for name, amount in amounts.items()})

    def since(self, earlier: "UsageAmounts") -> "UsageAmounts":
        """Return what came on top of an earlier reading of the same meter."""
        return UsageAmounts.model_construct(
            **{name: max(0.0, getattr(self, name) - getattr(earlier, name)) for name in UsageAmounts.model_fields}
        )


class UsageReport(WireRequest):
    """One meter as it stands."""

    meter_id: MeterId
    """Names the meter: new for each incarnation."""
    sandbox_id: QualifiedId
    generation: int = Field(ge=1, le=limits.MAX_COUNTER)
    total: UsageAmounts
    """Everything since the meter began."""
    span_seconds: Amount
    """Seconds from the meter's beginning to its last reading."""
    age_seconds: Amount
    """Seconds since that reading."""
    final: bool = False
    """The sandbox is gone; the meter stands still."""


class UsageItem(WireAnswer):
    """What a tenant, a sandbox, or one incarnation of it used in a time."""

    tenant: str
    """Whose it is."""
    sandbox_id: str | None = None
    """The sandbox, with the tenant for operators; null for a whole tenant."""
    generation: int | None = None
    """Which incarnation; null for all together."""
    begin: Timestamp
    """Beginning of the time that is summed up."""
    end: Timestamp
    """End of that time."""
    amounts: UsageAmounts
    """What was used in it."""


class UsagePage(WireAnswer):
    """One page of what was used, ordered by tenant, or by sandbox, generation and hour."""

    items: list[UsageItem]
    """The sums."""
    next_cursor: str | None = None
    """Where the next page begins; null on the last."""


class UsageQuery(WireModel):
    """Which sums, and where to begin."""

    since: AwareDatetime
    until: AwareDatetime
    tenant: TenantName | None = None
    by: UsageBy = "tenant"
    limit: int
    cursor: str | None = None
