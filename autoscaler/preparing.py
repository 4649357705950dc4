"""How the instances of a pool are made ready to become nodes, and the digest of all that they are made from."""

import hashlib
import json
from dataclasses import replace
from typing import Final

from autoscaler.core.model import FleetPolicy
from autoscaler.instances import Preparation
from autoscaler.settings import AutoscalerSettings, PoolSettings
from autoscaler.user_data import INSTALLED, NodeBoot, renderer
from gateway.client import GatewayClient

DIGITS: Final = 12


def preparation(pool: PoolSettings, settings: AutoscalerSettings, gateway: GatewayClient) -> Preparation:
    """The image and the user data of one pool."""
    kind = _kind(pool, settings)
    render = renderer(kind)

    def user_data(instance: str, join_token: str) -> str:
        boot = _boot(pool, settings, instance, join_token)
        return render(replace(boot, bundle_sha256=gateway.bundle().sha256) if _installs(kind) else boot)

    return Preparation(pool.image, user_data)


def policy(settings: AutoscalerSettings) -> FleetPolicy:
    """The fleet as the policy sees it, with the digest of each pool and whether its nodes install the bundle.

    Raises:
        BootstrapError: the user data of a pool is larger than its cloud takes.
    """
    fleet = settings.policy()
    own = {pool.name: pool for pool in settings.pools}
    pools = (
        replace(pool, spec=spec(own[pool.name], settings), installs=_installs(_kind(own[pool.name], settings)))
        for pool in fleet.pools
    )
    return replace(fleet, pools=tuple(pools))


def spec(pool: PoolSettings, settings: AutoscalerSettings) -> str:
    """Digest of what the settings say of a pool's instances: image, user data and labels.

    What they install is the gateway's to say, and may change at any time: see `World.bundle`.
    """
    kind = _kind(pool, settings)
    boot = replace(_boot(pool, settings, "", ""), bundle_sha256="0" * 64 if _installs(kind) else "")
    user_data = renderer(kind)(boot)
    parts = [pool.image, user_data, pool.labels]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:DIGITS]


def _boot(pool: PoolSettings, settings: AutoscalerSettings, instance: str, join_token: str) -> NodeBoot:
    return NodeBoot(
        gateway_url=settings.node_gateway_url or settings.gateway_url,
        join_token=join_token,
        instance=instance,
        pool=pool.name,
        role=pool.role,
        settings=pool.node_settings,
        default_route=pool.default_route,
        resolvers=pool.resolvers,
    )


def _kind(pool: PoolSettings, settings: AutoscalerSettings) -> str:
    return str(settings.providers[pool.provider].get("kind", pool.provider))


def _installs(kind: str) -> bool:
    return kind not in INSTALLED
