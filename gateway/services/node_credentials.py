"""How the gateway shows nodes who it is: a secret of its own, and a control token for each node derived from it."""

import fcntl
import hashlib
import hmac
import os
import secrets
from pathlib import Path
from typing import IO, Final

from sqlmodel import Session

from gateway.core.model import Node, NodeAddress
from gateway.errors import GatewayStartError, StoreError
from gateway.store import nodes, tokens
from gateway.store.db import Database
from gateway.wire.states import NodeState

SECRET_BYTES: Final = 32


class NodeDirectory:
    """Addresses of nodes. Control tokens are derived from one secret, so that none is stored."""

    def __init__(self, db: Database, secret: bytes) -> None:
        self._db = db
        self._secret = secret

    def control_token(self, node_id: str) -> str:
        """Return the bearer that this node expects of the gateway."""
        digest = hmac.new(self._secret, f"control:{node_id}".encode(), hashlib.sha256).hexdigest()
        return f"sbxc_{digest}"

    def address_of(self, node: Node) -> NodeAddress:
        """Return where this node is reached."""
        return NodeAddress(node.id, node.node_url, self.control_token(node.id))

    async def address(self, node_id: str) -> NodeAddress | None:
        """Return where the node of this id is reached; ``None`` when it is unknown or gone."""
        node = await self._db.read(lambda session: nodes.get(session, node_id))
        return None if node is None or node.state is NodeState.GONE else self.address_of(node)

    async def require_agreement(self) -> None:
        """Make sure that every gateway on this database has the same secret; the first one to start says which.

        Raises:
            GatewayStartError: this one has another, so nodes would refuse its calls.
        """
        if not self._db.shared:
            return  # nobody else could have another
        salt = secrets.token_hex(16)

        def fn(session: Session) -> bool:
            known = tokens.secret_fingerprint(session)
            if known is None:
                tokens.add_secret_fingerprint(session, salt, self._fingerprint(salt))
                return True
            return hmac.compare_digest(known[1], self._fingerprint(known[0]))

        if not await self._db.write(fn):
            raise GatewayStartError(
                "the file node-secret in this gateway's state_dir is not that of the other gateways on its database,"
                " and nodes would refuse its calls; copy the file from the state_dir of one that runs"
            )

    def _fingerprint(self, salt: str) -> str:
        return hashlib.scrypt(self._secret, salt=bytes.fromhex(salt), n=2**14, r=8, p=1).hex()


# -- files in the state directory -------------------------------------------------------------------------------------


def node_secret(state_dir: Path) -> bytes:
    """Return the secret from which control tokens are derived; it is made on the first call, for its owner's eyes only.

    Raises:
        StoreError: the file can be neither read nor made, or is not a secret.
    """
    path = state_dir / "node-secret"
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            _write_once(path)
        secret = bytes.fromhex(path.read_text().strip())
    except (OSError, ValueError) as error:
        raise StoreError(f"secret file {path}: {error}") from error
    if len(secret) != SECRET_BYTES:
        raise StoreError(f"secret file {path}: holds {len(secret)} bytes instead of {SECRET_BYTES}; remove it")
    return secret


def _write_once(path: Path) -> None:
    """Make the file whole or not at all; one that somebody else made meanwhile stays."""
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(SECRET_BYTES))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            return
    finally:
        draft.unlink(missing_ok=True)


def lock_state(state_dir: Path) -> IO[str]:
    """Return an open file that keeps every other gateway out of ``state_dir`` until it is closed.

    Raises:
        StoreError: another gateway uses the directory.
    """
    path = state_dir / "gateway.lock"
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
        file = path.open("a")
    except OSError as error:
        raise StoreError(f"lock file {path}: {error.strerror}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise StoreError(f"another gateway uses {state_dir}; stop it first, or choose another state_dir") from error
    return file
