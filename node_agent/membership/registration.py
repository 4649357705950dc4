"""How the node becomes one of its gateway's: it introduces itself once, with a join token, and keeps the answer.

The identity lies in a file that only root reads.  With it a restart needs no token; a gateway that no longer knows it
makes the node register anew, which takes a new token.
"""

import hashlib
import logging
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, Protocol

from pydantic import BaseModel, ConfigDict, ValidationError

from gateway.client import GatewayError
from gateway.wire.nodes import Heartbeat, HeartbeatAnswer, RegisterAnswer, RegisterRequest
from node_agent.host.disk import write_atomically

log = logging.getLogger(__name__)

NO_SUCH_NODE: Final = frozenset({401, 403, 404})
"""Statuses of a heartbeat after which the credential is of no use any more."""


class GatewayApi(Protocol):
    """What the node needs of `gateway.client.GatewayClient`."""

    def register(self, request: RegisterRequest) -> RegisterAnswer:
        """Introduce the node; the client's token is the join token."""

    def heartbeat(self, node_id: str, heartbeat: Heartbeat) -> HeartbeatAnswer:
        """Report the node's complete truth."""


Connect = Callable[[str, str], GatewayApi]
"""Makes a client of the gateway from its URL and a token."""


class Identity(BaseModel):
    """The node's id and both credentials."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    node_id: str
    credential: str
    control_token: str
    gateway_url: str
    join_token_sha256: str
    """Digest of the join token that was used up for this: recognised without being kept."""


class IdentityFile:
    """The file ``identity.json`` below the node's root."""

    def __init__(self, root: Path) -> None:
        self._path = root / "identity.json"

    def load(self, gateway_url: str) -> Identity | None:
        """Return the kept identity; ``None`` when there is none for this gateway."""
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
        """Keep the identity, also over a power cut: its credentials are shown once.

        Raises:
            OSError: it could not be written.
        """
        write_atomically(self._path, identity.model_dump_json().encode(), durable=True)


class CannotRegisterError(Exception):
    """Registration needs something that a person has to bring; the sentence says what."""


class NodeRegistration:
    """Whom the gateway knows this node as.  Used by the heartbeat's thread; `identity` is read by any.

    Args:
        gateway_url: where the gateway is.
        join_token_file: holds a token that registers once; ``None`` where the identity is enough.
        file: keeps the identity over restarts.
        connect: makes a client of the gateway.
        introduction: returns what the node says of itself, asked anew at each registration.
    """

    def __init__(
        self,
        gateway_url: str,
        join_token_file: Path | None,
        file: IdentityFile,
        connect: Connect,
        introduction: Callable[[], RegisterRequest],
    ) -> None:
        self._gateway_url = gateway_url
        self._join_token_file = join_token_file
        self._file = file
        self._connect = connect
        self._introduction = introduction
        self._refused = False
        self.identity = file.load(gateway_url)
        """``None`` until the node has registered."""
        self._client = connect(gateway_url, self.identity.credential) if self.identity else None

    @property
    def valid(self) -> bool:
        """Whether the gateway knows this node, as far as it has said."""
        return self.identity is not None and not self._refused

    def control_token(self) -> str | None:
        """Return the token that the gateway shows to this node; ``None`` before the first registration."""
        return self.identity.control_token if self.identity else None

    def heartbeat(self, heartbeat: Heartbeat) -> HeartbeatAnswer:
        """Send one heartbeat.

        Raises:
            GatewayError: the gateway refused; one of `NO_SUCH_NODE` makes the registration invalid.
            GatewayUnreachableError: it did not answer.
        """
        if self.identity is None or self._client is None:
            raise RuntimeError("a heartbeat before the first registration")
        try:
            return self._client.heartbeat(self.identity.node_id, heartbeat)
        except GatewayError as error:
            self._refused = error.status in NO_SUCH_NODE
            raise

    def register(self) -> RegisterAnswer:
        """Register with the join token that is in the file, unless it was used before.

        Raises:
            CannotRegisterError: there is no join token, it was used, or the gateway refuses it.
            GatewayError: the gateway refused for the moment.
            GatewayUnreachableError: it did not answer.
        """
        token = self._join_token()
        try:
            answer = self._connect(self._gateway_url, token).register(self._introduction())
        except GatewayError as error:
            if error.retryable:
                raise
            raise CannotRegisterError(
                f"the gateway refused the registration ({error.status}): {error}; "
                f"put a new join token into {self._join_token_file}"
            ) from error
        identity = Identity(
            node_id=answer.node_id,
            credential=answer.credential,
            control_token=answer.control_token,
            gateway_url=self._gateway_url,
            join_token_sha256=_digest(token),
        )
        try:
            self._file.save(identity)
        except OSError as error:
            # The node works with what it holds; only the next start will need another token.
            log.error("the node's identity could not be kept: %s", error)
        self.identity, self._refused = identity, False
        self._client = self._connect(self._gateway_url, identity.credential)
        log.info("registered at %s as node %s", self._gateway_url, identity.node_id)
        return answer

    def _join_token(self) -> str:
        cure = f"put a new join token into {self._join_token_file or 'a file and name it in join_token_file'}"
        if self._join_token_file is None:
            raise CannotRegisterError(f"this node is not registered and has no join token: {cure}")
        try:
            token = self._join_token_file.read_text().strip()
        except OSError as error:
            raise CannotRegisterError(f"this node is not registered: {error}; {cure}") from error
        if not token or (self.identity is not None and _digest(token) == self.identity.join_token_sha256):
            raise CannotRegisterError(f"the gateway refused this node and its join token is used up: {cure}")
        return token


def agent_version() -> str:
    """Return the version of the installed distribution; ``unknown`` in a checkout that is not installed."""
    try:
        return version("sandbox-fleet")
    except PackageNotFoundError:
        return "unknown"


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
