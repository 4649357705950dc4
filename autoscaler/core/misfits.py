"""Pools that could never work, found before anything is started."""

from collections.abc import Iterable, Mapping
from typing import Final

from autoscaler.core.pools import PoolPolicy
from providers.base import Caps

GPU_RUNTIME: Final = "docker"
"""The one that hands GPUs on to sandboxes."""


def misfits(pools: Iterable[PoolPolicy], caps: Mapping[str, Caps]) -> list[str]:
    """A sentence for each pool that its provider cannot serve.

    Args:
        pools: as the settings have them.
        caps: what each provider can do; one that is left out is not judged.
    """
    return [f"pool {pool.name}: {problem}" for pool in pools if (problem := _problem(pool, caps.get(pool.provider)))]


def _problem(pool: PoolPolicy, caps: Caps | None) -> str | None:
    if not pool.wants_gpus:
        return None
    if caps is not None and not caps.has_gpu:
        return (
            f"it wants GPUs ({_wish(pool)}), and provider {pool.provider} has none; name a provider that has, turn "
            "them on in that provider's own settings where it has a key for it, or take the GPUs out of the pool"
        )
    if GPU_RUNTIME not in pool.runtimes:
        return (
            f"it wants GPUs ({_wish(pool)}), and of its runtimes none hands them on; add {GPU_RUNTIME} to them, "
            "or take the GPUs out of the pool"
        )
    return None


def _wish(pool: PoolPolicy) -> str:
    if pool.gpus:
        return f"gpus = {pool.gpus}"
    return f"gpus = {max(floor.shape.gpus for floor in pool.warm)} in its warm room"
