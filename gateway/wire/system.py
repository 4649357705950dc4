"""The service about itself: its version, its health, its policy, and the rows of ``sandboxes doctor``."""

import importlib.metadata
from enum import StrEnum
from typing import Final

from pydantic import Field

from gateway.wire.base import WireAnswer
from gateway.wire.resources import Shape
from gateway.wire.tenants import DEFAULT_TENANT

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
    """One sentence for each problem; there may be some with which it serves."""


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


class PolicyValue(WireAnswer):
    """One key of the policy file, or its default."""

    value: list[str] | int | float | None
    """What holds; null is no limit."""
    where: str
    """Where it is set: file, table and key, or that it is the built-in default."""


class PolicyAnswer(WireAnswer):
    """What holds for the clients of one tenant, in the gateway that answers."""

    tenant: str = DEFAULT_TENANT
    """Whose clients."""
    file: str | None = None
    """Path of the policy file on the gateway's machine; null where the built-in defaults hold for everybody."""
    version: str | None = None
    """Changes with the content of the file that holds; null where there is no file."""
    problem: str | None = None
    """What is wrong with the file as it is now, while the one before still holds; null when nothing is."""
    policy: dict[str, PolicyValue] = {}
    """What they may ask for, by key."""
    quota: dict[str, PolicyValue] = {}
    """How much they may have at once, by key."""
    used: Shape = Field(default_factory=Shape)
    """What counts against the quota now."""
    prepared_units: int = 0
    """Unclaimed units of prepared capacity, which count as well."""
    tenants: list[str] = []
    """Tenants with tables of their own in the file."""
