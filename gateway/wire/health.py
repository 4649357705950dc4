"""How a gateway says that it is alive and able to serve."""

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
