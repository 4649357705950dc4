"""How a gateway says that it is alive and able to serve."""

from gateway.wire.base import Answer


class GatewayHealth(Answer):
    """Answer of ``GET /healthz``: the process answers."""

    ok: bool = True
    service: str = "gateway"
    version: str


class GatewayReadiness(Answer):
    """Answer of ``GET /readyz``: the store answers and its schema is this version's; 503 with ``ok: false`` if not."""

    ok: bool
    problems: list[str] = []
    """One sentence for each thing that is missing."""
