"""How a gateway says that it is alive and able to serve."""

from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from gateway.wire.base import Answer


class GatewayHealth(Answer):
    """Answer of ``GET /healthz``: the process answers."""

    ok: bool = True
    """Always true."""
    service: str = "gateway"
    """Always ``gateway``."""
    version: str
    """Of the gateway."""


class GatewayReadiness(Answer):
    """Answer of ``GET /readyz``: the store answers and its schema is this version's; 503 with ``ok: false`` if not."""

    ok: bool
    """Whether it can serve."""
    problems: list[str] = []
    """One sentence for each thing that is missing."""


class Verdict(StrEnum):
    """``warning`` lets the service run with less; ``error`` does not."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


class Check(Answer):
    """What was looked at, what was found, and the command that cures it."""

    name: str
    verdict: Verdict
    found: str
    cure: str = ""


DISTRIBUTION: Final = "sandbox-fleet"


def installed_version() -> str:
    """Version of the installed distribution; ``unknown`` when it runs from a checkout that is not installed."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "unknown"
