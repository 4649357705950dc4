"""What a new instance is told so that it becomes a node: where the gateway is, who it is, a token that works once."""

import base64
import hashlib
import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from string import Template
from typing import Final

from autoscaler.core.pools import FleetPolicy
from autoscaler.instances import Preparation
from autoscaler.settings import AutoscalerSettings, PoolSettings
from gateway.client import GatewayClient

MAX_CLOUD_INIT: Final = 32_768
"""Bytes: what Hetzner Cloud takes as user data."""
MAX_LABEL: Final = 4096
"""Bytes: what our `ucloud` provider puts into one label."""
CONFIG: Final = "/etc/sandbox-fleet"
ROOT: Final = "/var/lib/sandbox-fleet/node"
STAGES: Final = "/run/sandbox-fleet/boot-stages"
DIGITS: Final = 12
"""Of the digest of a pool's settings."""
_TEMPLATES: Final = files("autoscaler") / "templates"


@dataclass(frozen=True)
class NodeBoot:
    """One instance that is to become a node."""

    gateway_url: str
    """Where the node reaches the gateway."""
    join_token: str
    instance: str
    pool: str
    role: str
    settings: Mapping[str, object]
    """More keys of the node agent's settings file."""
    bundle_sha256: str = ""
    """Digest of the gateway's bundle that a machine installs; all kinds but those in `INSTALLED` need it."""
    default_route: str | None = None
    """Router of machines whose network tells them none."""
    resolvers: tuple[str, ...] = ()
    """Name servers of machines whose network tells them none."""


class BootstrapError(Exception):
    """An instance cannot be told what it needs; the message says what is missing."""


def for_local(boot: NodeBoot) -> str:
    """Files for the `local` provider: the agent's settings, and the token where only root can read it.

    The provider fills in ``${dir}`` and ``${address}``; they may also stand in ``settings``.
    """
    settings: dict[str, object] = {
        "gateway_url": _literal(boot.gateway_url),
        "join_token_file": "${dir}/join.token",
        "root": "${dir}/node",
        "host": "${address}",
        "port": 0,
        "instance": _literal(boot.instance),
        **boot.settings,
    }
    settings["labels"] = {"pool": boot.pool, "role": boot.role, **_mapping(settings.get("labels", {}))}
    files = [
        {"path": "node.toml", "content": toml(settings), "mode": 0o600},
        {"path": "join.token", "content": _literal(boot.join_token) + "\n", "mode": 0o600},
    ]
    return json.dumps({"files": files})


class _Template(Template):
    """Placeholders that neither YAML nor a shell has: ``@{name}``."""

    delimiter = "@"


def for_cloud_init(boot: NodeBoot) -> str:
    """A cloud-config document for machines that run cloud-init, e.g. on Hetzner Cloud.

    Raises:
        BootstrapError: there is no bundle, or the document is larger than the cloud takes.
    """
    told = _files(boot)
    text = _filled(
        "node.cloud-init.yaml",
        indent=6,
        instance=json.dumps(boot.instance),  # a JSON string is a YAML string
        node_toml=_base64(told["node.toml"]),
        join_token=_base64(told["join.token"]),
        bootstrap_env=_base64(told["bootstrap.env"]),
    )
    return _bounded(text, MAX_CLOUD_INIT)


def for_ucloud(boot: NodeBoot) -> str:
    """The label that `ucloud_init_script` reads on the machine.

    Raises:
        BootstrapError: there is no bundle, or the pool's node settings are too long for a label.
    """
    return _bounded(json.dumps({"files": _files(boot)}, separators=(",", ":")), MAX_LABEL)


def ucloud_init_script() -> str:
    """The script for the drive folder of the `ucloud` provider; the same for all machines of all fleets."""
    return _filled("ucloud-init.sh", indent=0)


def _files(boot: NodeBoot) -> dict[str, str]:
    """What differs between machines: the files below `CONFIG`, by name."""
    if not boot.bundle_sha256:
        raise BootstrapError("the gateway has no bundle to install; make it there with: sandboxes gateway bundle")
    settings: dict[str, object] = {
        "gateway_url": boot.gateway_url,
        "join_token_file": f"{CONFIG}/join.token",
        "root": ROOT,
        "instance": boot.instance,
        "boot_stages_file": STAGES,
        **boot.settings,
    }
    settings["labels"] = {"pool": boot.pool, "role": boot.role, **_mapping(settings.get("labels", {}))}
    environment = {
        "GATEWAY_URL": boot.gateway_url.rstrip("/"),
        "BUNDLE_SHA256": boot.bundle_sha256,
        "DEFAULT_ROUTE": boot.default_route or "",
        "RESOLVERS": " ".join(boot.resolvers),
    }
    return {
        "node.toml": toml(settings),
        "join.token": f"{boot.join_token}\n",
        "bootstrap.env": "".join(f"{key}={shlex.quote(value)}\n" for key, value in environment.items()),
    }


def _filled(name: str, *, indent: int, **words: str) -> str:
    """A template, with the parts that all machines share put in at that depth."""
    parts = {"bootstrap_service": "sandbox-fleet-bootstrap.service", "bootstrap_script": "bootstrap.sh"}
    break_ = "\n" + " " * indent
    shared = {word: break_.join(_read(part).rstrip("\n").split("\n")) for word, part in parts.items()}
    return _Template(_read(name)).substitute(shared | words)


def _read(name: str) -> str:
    return (_TEMPLATES / name).read_text()


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _bounded(text: str, most: int) -> str:
    size = len(text.encode())
    if size > most:
        raise BootstrapError(f"user data has {size} bytes, over the {most} allowed; shorten the pool's node settings")
    return text


RENDERERS: Final[Mapping[str, Callable[[NodeBoot], str]]] = {
    "local": for_local,
    "hetzner": for_cloud_init,
    "ucloud": for_ucloud,
}
INSTALLED: Final = frozenset({"local"})
"""Kinds whose machines have the node agent already; all others install the gateway's bundle."""


def renderer(kind: str) -> Callable[[NodeBoot], str]:
    """What makes the user data for a kind of provider: a cloud-init document for those of plugins."""
    return RENDERERS.get(kind, for_cloud_init)


def toml(values: Mapping[str, object]) -> str:
    """A TOML document: plain values first, then one table for each mapping."""
    plain = [f"{key} = {_value(value)}\n" for key, value in values.items() if not isinstance(value, Mapping)]
    tables = [
        f"\n[{key}]\n" + "".join(f"{_value(name)} = {_value(item)}\n" for name, item in value.items())
        for key, value in values.items()
        if isinstance(value, Mapping)
    ]
    return "".join(plain + tables)


def _value(value: object) -> str:
    if isinstance(value, bool | int | float | str):
        return json.dumps(value, ensure_ascii=False)  # TOML's basic values are written as JSON's
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(item) for item in value)}]"
    raise TypeError(f"{value!r} cannot be written as TOML here")


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _literal(text: str) -> str:
    return text.replace("$", "$$")


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
