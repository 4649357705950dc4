"""All services of one gateway, put together and run."""

from dataclasses import dataclass
from typing import Self

from gateway.services.capacity import CapacityService
from gateway.services.nodes import NodeService
from gateway.services.ports import Clock, NodeGateway
from gateway.services.sandboxes import SandboxService
from gateway.services.tokens import TokenService
from gateway.settings import GatewaySettings


@dataclass(frozen=True)
class Services:
    """What the HTTP edge calls.  ``async with build(...) as services:`` starts and stops the background work."""

    sandboxes: SandboxService
    nodes: NodeService
    capacity: CapacityService
    tokens: TokenService

    async def ready(self) -> None:
        """Returns when the store answers.

        Raises:
            ApiError: ``BUSY`` or ``DISK_FULL``.
        """

    async def __aenter__(self) -> Self:
        """Starts: unsettled sandboxes get their drivers again, nodes their full grace period."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Stops all background tasks and closes the store; rows keep what was left undone."""


def build(settings: GatewaySettings, node_gateway: NodeGateway, clock: Clock | None = None) -> Services:
    """The services over the database of ``settings``: it is made or migrated first (blocking).

    Raises:
        gateway.store.db.StoreError: newer schema, unreachable, not writable or full disk; one clear sentence.
    """
    raise AssertionError
