"""What the pools may buy: asked of their providers for people, without a gateway and without a journal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoscaler.core.offers import missing_offers, offers_for
from autoscaler.core.pools import PoolPolicy
from providers import registry
from providers.base import ComputeProvider, Offer, ProviderError


@dataclass(frozen=True)
class Offered:
    """What one pool may buy of what its provider sells now."""

    offers: tuple[Offer, ...] = ()
    problem: str = ""
    """Why that is nothing, or less than the pool names."""


def offered(
    pools: Sequence[PoolPolicy], providers: Mapping[str, ComputeProvider], reasons: Mapping[str, str]
) -> dict[str, Offered]:
    """For each pool by its name; each provider is asked once.

    Args:
        pools: of the settings.
        providers: those that could be made.
        reasons: why the others could not.
    """
    asked = {pool.provider for pool in pools} & providers.keys()
    sold = {name: _asked(name, providers[name]) for name in asked}
    return {pool.name: _of_pool(pool, sold.get(pool.provider, reasons.get(pool.provider, ""))) for pool in pools}


def _asked(name: str, provider: ComputeProvider) -> list[Offer] | str:
    """The offers, or a sentence why there are none."""
    try:
        return provider.offers()
    except ProviderError as error:
        return f"{name} cannot be asked: {error}"
    except Exception as error:  # noqa: BLE001 - a plugin's own: its author looks at this
        return f"{name} is broken: {registry.told(error)}"


def _of_pool(pool: PoolPolicy, sold: list[Offer] | str) -> Offered:
    if isinstance(sold, str):
        return Offered(problem=sold)
    return Offered(tuple(offers_for(pool, sold)), missing_offers(pool, sold))
