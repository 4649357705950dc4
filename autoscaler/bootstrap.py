"""What a new instance is told so that it becomes a node: where the gateway is, who it is, a token that works once."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final


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


class BootstrapError(Exception):
    """There is no way to tell an instance of this provider anything; the message says what is missing."""


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


RENDERERS: Final[Mapping[str, Callable[[NodeBoot], str]]] = {"local": for_local}


def renderer(kind: str) -> Callable[[NodeBoot], str]:
    """What makes the user data for a kind of provider.

    Raises:
        BootstrapError: there is none.
    """
    try:
        return RENDERERS[kind]
    except KeyError:
        raise BootstrapError(
            f"instances of provider kind {kind!r} cannot be set up: no user data is known for it"
        ) from None


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
