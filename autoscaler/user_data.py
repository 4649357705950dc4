"""User data, which makes a new machine a node: where the gateway is, its identity, and a token that works once.

One renderer for each kind of provider: a file list for `local`, a cloud-init document for Hetzner Cloud and plugins, a
label for UCloud.  `launch_template` binds one to a pool, and `fleet_policy` adds to the policy a digest of all that a
pool's machines are made from, so that drift is seen.
"""

import base64
import hashlib
import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from string import Template
from typing import Final

import tomli_w

from autoscaler.core.pools import FleetPolicy
from autoscaler.errors import UserDataError
from autoscaler.settings import AutoscalerSettings, PoolSettings
from gateway.client import GatewayClient

MAX_CLOUD_INIT: Final = 32_768
"""Bytes of user data that Hetzner Cloud accepts."""
MAX_LABEL: Final = 4096
"""Bytes that the `ucloud` provider puts into one label."""
CONFIG: Final = "/etc/sandbox-fleet"
ROOT: Final = "/var/lib/sandbox-fleet/node"
STAGES: Final = "/run/sandbox-fleet/boot-stages"
DIGEST_DIGITS: Final = 12
"""Of the digest of what a pool's machines are made from."""
_TEMPLATES: Final = files("autoscaler") / "templates"


@dataclass(frozen=True)
class NodeBoot:
    """One machine that is to become a node."""

    gateway_url: str
    """Where the node reaches the gateway."""
    join_token: str
    instance: str
    pool: str
    role: str
    settings: Mapping[str, object]
    """More keys of the node agent's settings file."""
    bundle_sha256: str = ""
    """Digest of the gateway's bundle that a machine installs; all kinds but those in `PREINSTALLED` need it."""
    default_route: str | None = None
    """Router of machines whose network announces none."""
    resolvers: tuple[str, ...] = ()
    """Name servers of machines whose network announces none."""


@dataclass(frozen=True)
class LaunchTemplate:
    """What the instances of one pool are created with."""

    image: str
    user_data: Callable[[str, str], str]
    """Renders user data from the instance's name and its join token."""


# -- pools ------------------------------------------------------------------------------------------------------------


def launch_template(pool: PoolSettings, settings: AutoscalerSettings, gateway: GatewayClient) -> LaunchTemplate:
    """Return the image and the user data of one pool."""
    kind = _kind(pool, settings)
    render = renderer(kind)

    def user_data(instance: str, join_token: str) -> str:
        boot = _node_boot(pool, settings, instance, join_token)
        return render(replace(boot, bundle_sha256=gateway.bundle().sha256) if _installs_bundle(kind) else boot)

    return LaunchTemplate(pool.image, user_data)


def fleet_policy(settings: AutoscalerSettings) -> FleetPolicy:
    """Return the policy, with each pool's launch digest and whether its nodes install the gateway's bundle.

    Raises:
        UserDataError: the user data of a pool is larger than its cloud accepts.
    """
    fleet = settings.policy()
    own = {pool.name: pool for pool in settings.pools}
    pools = (
        replace(
            pool,
            spec=launch_digest(own[pool.name], settings),
            installs=_installs_bundle(_kind(own[pool.name], settings)),
        )
        for pool in fleet.pools
    )
    return replace(fleet, pools=tuple(pools))


def launch_digest(pool: PoolSettings, settings: AutoscalerSettings) -> str:
    """Return the digest of what the settings say of a pool's machines: image, user data and labels.

    The bundle that they install is the gateway's, and may change at any time: see `World.bundle`.
    """
    kind = _kind(pool, settings)
    boot = replace(_node_boot(pool, settings, "", ""), bundle_sha256="0" * 64 if _installs_bundle(kind) else "")
    parts = [pool.image, renderer(kind)(boot), pool.labels]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:DIGEST_DIGITS]


def _node_boot(pool: PoolSettings, settings: AutoscalerSettings, instance: str, join_token: str) -> NodeBoot:
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


def _installs_bundle(kind: str) -> bool:
    return kind not in PREINSTALLED


# -- renderers --------------------------------------------------------------------------------------------------------


def for_local(boot: NodeBoot) -> str:
    """Render files for the `local` provider: the agent's settings, and the token where only root can read it.

    The provider fills in ``${dir}`` and ``${address}``; they may also stand in ``settings``.
    """
    own: dict[str, object] = {
        "gateway_url": _literal(boot.gateway_url),
        "join_token_file": "${dir}/join.token",
        "root": "${dir}/node",
        "host": "${address}",
        "port": 0,
        "instance": _literal(boot.instance),
    }
    rendered = [
        {"path": "node.toml", "content": _node_toml(boot, own), "mode": 0o600},
        {"path": "join.token", "content": _literal(boot.join_token) + "\n", "mode": 0o600},
    ]
    return json.dumps({"files": rendered})


def for_cloud_init(boot: NodeBoot) -> str:
    """Render a cloud-config document for machines that run cloud-init, e.g. on Hetzner Cloud.

    Raises:
        UserDataError: there is no bundle, or the document is larger than the cloud accepts.
    """
    contents = _config_files(boot)
    text = _filled(
        "node.cloud-init.yaml",
        indent=6,
        instance=json.dumps(boot.instance),  # a JSON string is a YAML string
        node_toml=_base64(contents["node.toml"]),
        join_token=_base64(contents["join.token"]),
        bootstrap_env=_base64(contents["bootstrap.env"]),
    )
    return _bounded(text, MAX_CLOUD_INIT)


def for_ucloud(boot: NodeBoot) -> str:
    """Render the label that `ucloud_init_script` reads on the machine.

    Raises:
        UserDataError: there is no bundle, or the pool's node settings are too long for a label.
    """
    return _bounded(json.dumps({"files": _config_files(boot)}, separators=(",", ":")), MAX_LABEL)


def ucloud_init_script() -> str:
    """Return the script for the drive folder of the `ucloud` provider; the same for all machines of all fleets."""
    return _filled("ucloud-init.sh", indent=0)


RENDERERS: Final[Mapping[str, Callable[[NodeBoot], str]]] = {
    "local": for_local,
    "hetzner": for_cloud_init,
    "ucloud": for_ucloud,
}
PREINSTALLED: Final = frozenset({"local"})
"""Kinds whose machines have the node agent already; all others install the gateway's bundle."""


def renderer(kind: str) -> Callable[[NodeBoot], str]:
    """Return what renders the user data for a kind of provider: a cloud-init document for those of plugins."""
    return RENDERERS.get(kind, for_cloud_init)


def _config_files(boot: NodeBoot) -> dict[str, str]:
    """Return what differs between machines: the files below `CONFIG`, by name."""
    if not boot.bundle_sha256:
        raise UserDataError("the gateway has no bundle to install; make it there with: sandboxes gateway bundle")
    own: dict[str, object] = {
        "gateway_url": boot.gateway_url,
        "join_token_file": f"{CONFIG}/join.token",
        "root": ROOT,
        "instance": boot.instance,
        "boot_stages_file": STAGES,
    }
    environment = {
        "GATEWAY_URL": boot.gateway_url.rstrip("/"),
        "BUNDLE_SHA256": boot.bundle_sha256,
        "DEFAULT_ROUTE": boot.default_route or "",
        "RESOLVERS": " ".join(boot.resolvers),
    }
    return {
        "node.toml": _node_toml(boot, own),
        "join.token": f"{boot.join_token}\n",
        "bootstrap.env": "".join(f"{key}={shlex.quote(value)}\n" for key, value in environment.items()),
    }


def _node_toml(boot: NodeBoot, own: Mapping[str, object]) -> str:
    """Render the node agent's settings file; the pool's settings win over ``own``."""
    settings = {**own, **boot.settings}
    given = settings.get("labels", {})
    settings["labels"] = {"pool": boot.pool, "role": boot.role, **(given if isinstance(given, Mapping) else {})}
    return tomli_w.dumps(settings)


class _AtTemplate(Template):
    """Placeholders that neither YAML nor a shell has: ``@{name}``."""

    delimiter = "@"


def _filled(name: str, *, indent: int, **values: str) -> str:
    """Fill in a template, with the parts that all machines share indented to that depth."""
    parts = {"bootstrap_service": "sandbox-fleet-bootstrap.service", "bootstrap_script": "bootstrap.sh"}
    line_break = "\n" + " " * indent
    shared = {word: line_break.join(_read(part).rstrip("\n").split("\n")) for word, part in parts.items()}
    return _AtTemplate(_read(name)).substitute(shared | values)


def _read(name: str) -> str:
    return (_TEMPLATES / name).read_text()


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _bounded(text: str, most: int) -> str:
    size = len(text.encode())
    if size > most:
        raise UserDataError(f"user data has {size} bytes, over the {most} allowed; shorten the pool's node settings")
    return text


def _literal(text: str) -> str:
    return text.replace("$", "$$")
