"""How the instances of a pool are made ready to become nodes, and the digest of all that they are made from."""

import hashlib
import json
from dataclasses import replace
from importlib import metadata
from typing import Final

from autoscaler.bootstrap import INSTALLED, NodeBoot, renderer
from autoscaler.core.model import FleetPolicy
from autoscaler.creating import Preparation
from autoscaler.settings import AutoscalerSettings, PoolSettings
from gateway.client import GatewayClient

DISTRIBUTION: Final = "sandbox-fleet"
DIGITS: Final = 12


def preparation(pool: PoolSettings, settings: AutoscalerSettings, gateway: GatewayClient) -> Preparation:
    """The image and the user data of one pool."""
    kind = _kind(pool, settings)
    render = renderer(kind)

    def user_data(instance: str, join_token: str) -> str:
        boot = _boot(pool, settings, instance, join_token)
        return render(replace(boot, bundle_sha256=gateway.bundle().sha256) if kind not in INSTALLED else boot)

    return Preparation(pool.image, user_data)


def policy(settings: AutoscalerSettings) -> FleetPolicy:
    """The fleet as the policy sees it, with the digest of each pool that replaces what is out of date.

    Raises:
        BootstrapError: the user data of a pool is larger than its cloud takes.
    """
    fleet = settings.policy()
    specs = {pool.name: spec(pool, settings) if pool.replace_outdated else "" for pool in settings.pools}
    return replace(fleet, pools=tuple(replace(pool, spec=specs[pool.name]) for pool in fleet.pools))


def spec(pool: PoolSettings, settings: AutoscalerSettings) -> str:
    """Digest of what instances of a pool are made from: image, user data, labels, and the release that they install."""
    kind = _kind(pool, settings)
    installs = kind not in INSTALLED
    user_data = renderer(kind)(replace(_boot(pool, settings, "", ""), bundle_sha256="0" * 64 if installs else ""))
    parts = [pool.image, user_data, pool.labels, _release() if installs else ""]
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


def _release() -> str:
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return ""
