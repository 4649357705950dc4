"""The service about itself: its version, its health, and the rows of ``sandboxes doctor``."""

import importlib.metadata
from enum import StrEnum
from typing import Final

from gateway.wire.base import WireAnswer

DISTRIBUTION: Final = "sandbox-fleet"
PACKAGES: Final = ("sandboxes", "gateway", "node_agent", "autoscaler", "simulator", "providers")
"""What it installs at the top level."""


def installed_version() -> str:
    """Return the version of the installed distribution; ``unknown`` in a checkout that is not installed."""
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


class GatewayHealth(WireAnswer):
    """Answer of ``GET /healthz``: the process answers."""

    ok: bool = True
    """Always true."""
    service: str = "gateway"
    """Always ``gateway``."""
    version: str
    """Version of the gateway."""


class GatewayReadiness(WireAnswer):
    """Answer of ``GET /readyz``: the store takes writes, its schema is this version's; 503 if not."""

    ok: bool
    """Whether it can serve."""
    problems: list[str] = []
    """One sentence for each problem."""


class Verdict(StrEnum):
    """How serious a finding is: with a ``warning`` the service runs with less, with an ``error`` it does not run."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


class Check(WireAnswer):
    """One row of ``sandboxes doctor``; every role contributes its own through an entry point."""

    name: str
    """What was examined."""
    verdict: Verdict
    """How serious it is."""
    found: str
    """What was found."""
    cure: str = ""
    """The command that cures it; empty where nothing is wrong."""
