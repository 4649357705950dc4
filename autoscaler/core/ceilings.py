"""What the gateway is told could be had at most, so that it refuses what can never fit."""

from autoscaler.core.model import FleetPolicy, World
from autoscaler.core.supply import expected_shape, offers_of
from gateway.wire.capacity import Ceilings, PoolCeiling


def ceilings(world: World, policy: FleetPolicy) -> Ceilings | None:
    """The largest node of each pool that may have nodes.

    ``None`` while the offers of a pool are unknown: a ceiling that is too low would refuse what fits.
    """
    pools: list[PoolCeiling] = []
    for pool in policy.pools:
        if pool.max == 0 or not pool.hosts_sandboxes:
            continue
        shapes = [expected_shape(world, pool, offer) for offer in offers_of(world, pool)]
        if not shapes:
            return None
        pools.append(
            PoolCeiling(
                pool=pool.name,
                shape=max(shapes, key=lambda shape: (shape.gpus, shape.memory_mb, shape.cpus, shape.disk_mb)),
                runtimes=sorted(pool.runtimes),
                isolations=sorted(pool.isolations),
                max_nodes=pool.max,
            )
        )
    return Ceilings(pools=pools)
