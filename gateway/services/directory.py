"""Where nodes are reached, and with which token."""

import hashlib
import hmac

from gateway.core.model import Node
from gateway.services.ports import NodeAddress
from gateway.store import nodes
from gateway.store.db import Database
from gateway.wire.states import NodeState


class Directory:
    """Addresses of nodes.  Control tokens are derived from one secret, so that none is stored."""

    def __init__(self, db: Database, secret: bytes) -> None:
        self._db = db
        self._secret = secret

    def control_token(self, node_id: str) -> str:
        """The bearer that this node expects of the gateway."""
        digest = hmac.new(self._secret, f"control:{node_id}".encode(), hashlib.sha256).hexdigest()
        return f"sbxc_{digest}"

    def address_of(self, node: Node) -> NodeAddress:
        """Where this node is reached."""
        return NodeAddress(node.id, node.node_url, self.control_token(node.id))

    async def address(self, node_id: str) -> NodeAddress | None:
        """Where the node of this id is reached; ``None`` when it is unknown or gone."""
        node = await self._db.read(lambda session: nodes.get(session, node_id))
        return None if node is None or node.state is NodeState.GONE else self.address_of(node)
