"""Nodes as they register, report and leave."""

from gateway.services.ports import NodeAddress
from gateway.wire.nodes import (
    Heartbeat,
    HeartbeatAnswer,
    JoinToken,
    JoinTokenRequest,
    NodeEnvelope,
    NodeList,
    RegisterAnswer,
    RegisterRequest,
)


class NodeService:
    """Registration, heartbeats, drain and removal of nodes."""

    async def make_join_token(self, request: JoinTokenRequest) -> JoinToken:
        """A secret with which one instance may register once."""
        raise AssertionError

    async def register(self, join_token: str, request: RegisterRequest) -> RegisterAnswer:
        """Both credentials of the node.

        Raises:
            ApiError: ``UNAUTHORIZED`` (unknown or expired token), ``FORBIDDEN`` (made for another instance),
                ``TOKEN_USED``.
        """
        raise AssertionError

    async def heartbeat(self, node_id: str, beat: Heartbeat) -> HeartbeatAnswer:
        """Takes in the node's truth; answers what the node shall remove.

        Raises:
            ApiError: ``NODE_NOT_FOUND``: it was removed and must register again.
        """
        raise AssertionError

    async def all(self) -> NodeList:
        """All nodes that are not gone, oldest first."""
        raise AssertionError

    async def drain(self, node_id: str, draining: bool) -> NodeEnvelope:
        """Closes or opens it for new sandboxes.

        Raises:
            ApiError: ``NODE_NOT_FOUND``.
        """
        raise AssertionError

    async def remove(self, node_id: str) -> NodeEnvelope:
        """Forgets a node and its credential.

        Raises:
            ApiError: ``NODE_NOT_FOUND``; ``CONFLICT`` while it holds live sandboxes and is not lost.
        """
        raise AssertionError

    async def address(self, node_id: str) -> NodeAddress:
        """Where it is reached.

        Raises:
            ApiError: ``NODE_NOT_FOUND``.
        """
        raise AssertionError
