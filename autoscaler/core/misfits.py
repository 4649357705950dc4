"""Pools that could never work, found before anything is started."""

from collections.abc import Iterable, Mapping

from autoscaler.core.pools import PoolPolicy
from providers.base import Caps


def misfits(pools: Iterable[PoolPolicy], caps: Mapping[str, Caps]) -> list[str]:
    """A sentence for each pool that its provider cannot serve.

    Args:
        pools: as the settings have them.
        caps: what each provider can do; one that is left out is not judged.
    """
    return [
        f"pool {pool.name}: it wants GPUs ({_wish(pool)}), and provider {pool.provider} has none; name a provider that "
        "has, turn them on in that provider's own settings where it has a key for it, or take the GPUs out of the pool"
        for pool in pools
        if pool.wants_gpus and pool.provider in caps and not caps[pool.provider].has_gpu
    ]


def _wish(pool: PoolPolicy) -> str:
    if pool.gpus:
        return f"gpus = {pool.gpus}"
    return f"gpus = {max(floor.shape.gpus for floor in pool.warm)} in its warm room"
