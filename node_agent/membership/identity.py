"""Who this node is: what registration answered, kept in a file that only root reads."""

import hashlib
import logging
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from node_agent.host.disk import write_atomically

log = logging.getLogger(__name__)


class Identity(BaseModel):
    """The node's id and both credentials."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    node_id: str
    credential: str
    control_token: str
    gateway_url: str
    join_token_sha256: str
    """Digest of the join token that was used up for this."""


class IdentityFile:
    """The file ``identity.json`` below the node's root."""

    def __init__(self, root: Path) -> None:
        self._path = root / "identity.json"

    def load(self, gateway_url: str) -> Identity | None:
        """The kept identity; ``None`` when there is none for this gateway."""
        try:
            kept = Identity.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError:
            log.warning("%s is damaged; this node has to register again", self._path)
            return None
        if kept.gateway_url != gateway_url:
            log.warning("the kept identity belongs to %s; registering at %s", kept.gateway_url, gateway_url)
            return None
        return kept

    def save(self, identity: Identity) -> None:
        """Keeps the identity, also over a power cut: its credentials are told once.

        Raises:
            OSError: it could not be written.
        """
        write_atomically(self._path, identity.model_dump_json().encode(), durable=True)


def digest(token: str) -> str:
    """Hex digest by which a used token is recognised without keeping it."""
    return hashlib.sha256(token.encode()).hexdigest()
