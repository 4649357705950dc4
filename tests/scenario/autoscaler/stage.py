"""The stage on which worlds are played: three clouds of three kinds, five pools, and limits that are soon reached."""

from dataclasses import replace
from decimal import Decimal
from typing import Final

from autoscaler.core.pools import FleetPolicy, OfferKey, OfferOrder
from gateway.wire.resources import Shape
from providers.base import Billing, Offer, Resources
from providers.testing.fake import CAPS
from tests.scenario.autoscaler.fleet import DEPLOYMENT, SMALL, pool

BIG: Final = Shape(cpus=3, memory_mb=6000, disk_mb=2048, slots=1)
GPU: Final = Shape(cpus=1, memory_mb=1024, disk_mb=1024, gpus=1, slots=1)
SHAPES: Final = {"small": SMALL, "big": BIG, "gpu": GPU}
START, BOOT, ORPHAN, SETTLE = 90.0, 60.0, 300.0, 30.0

NODE = Resources(cpus=4, memory_mb=8192, disk_mb=81920)
HERE, THERE, GPUS = OfferKey("small", "here"), OfferKey("small", "there"), OfferKey("gpu", "here")
OFFERS = (
    Offer("small", "here", NODE, Decimal("0.01"), available=True),
    Offer("small", "there", NODE, Decimal("0.02"), available=True),
    Offer("gpu", "here", replace(NODE, gpus=1), Decimal("0.03"), available=True),
)
CLOUDS: Final = {
    "east": CAPS,
    "west": replace(CAPS, billing=Billing.HOURLY_ROUND_UP, has_gpu=False),
    "north": replace(
        CAPS,
        unique_names=False,
        list_is_atomic=False,
        deleted_vanish=False,
        settle_seconds=SETTLE,
        calls_per_hour=90,
    ),
}
"""One with unique names, one that charges started hours, and one that has neither names nor many calls to give."""
CLOCKS: Final = {"east": 0.0, "west": 5400.0, "north": -5400.0}
"""Seconds that each cloud's stamps are off."""
TIMES: Final = {"start_seconds": START, "boot_seconds": BOOT, "idle_seconds": 20.0}
POOLS = (
    pool(
        name="cpu", provider="east", max=3, offers=(HERE, THERE), max_hourly=Decimal("0.03"),
        max_monthly=Decimal("0.05"), max_in_flight=3, **TIMES,
    ),
    pool(name="far", provider="north", max=2, offers=(HERE, THERE), **TIMES),
    pool(name="more", provider="west", min=1, max=2, offers=(THERE, HERE), order=OfferOrder.PRICE, **TIMES),
    pool(name="gpu", provider="north", max=1, offers=(GPUS,), **TIMES),
    pool(name="build", provider="east", role="builder", max=1, offers=(HERE,), **TIMES),
)  # fmt: skip
TRUTH = FleetPolicy(
    DEPLOYMENT,
    POOLS,
    max=5,
    max_hourly=Decimal("0.06"),
    creates_per_tick=3,
    stops_per_tick=2,
    orphan_seconds=ORPHAN,
    silent_seconds=400.0,
)
