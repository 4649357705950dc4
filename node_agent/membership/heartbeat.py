"""The node's side of its bond with the gateway: register once, then heartbeat, on a thread of its own.

Sandboxes never depend on it: whatever the gateway says or fails to say, what runs goes on.
"""

import logging
import secrets
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from gateway.client import GatewayError, GatewayUnreachableError
from gateway.wire import limits
from gateway.wire.nodes import Heartbeat, HeartbeatAnswer, RegisterAnswer, RegisterRequest, RuntimeReport
from node_agent.errors import NodeError
from node_agent.host.machine import Machine
from node_agent.membership.identity import Identity, IdentityFile, digest
from node_agent.sandboxes.manager import SandboxManager

log = logging.getLogger(__name__)

FIRST_BACKOFF: Final = 1.0
MAX_BACKOFF: Final = 30.0
FORGOTTEN: Final = frozenset({401, 403, 404})
"""Statuses of a heartbeat after which the kept credential is of no use."""


class Gateway(Protocol):
    """What the agent needs of `gateway.client.GatewayClient`."""

    def register(self, request: RegisterRequest) -> RegisterAnswer:
        """Introduces the node; the client's token is the join token."""

    def heartbeat(self, node_id: str, heartbeat: Heartbeat) -> HeartbeatAnswer:
        """Tells the node's complete truth."""


class NodeFacts:
    """What stays the same during one life of the agent, and what is asked anew for each heartbeat."""

    def __init__(
        self,
        *,
        node_url: str,
        agent_version: str,
        register: Callable[[str, str], RegisterRequest],
        machine: Machine,
        runtimes: list[RuntimeReport],
        images: Callable[[], list[str]],
        live_execs: Callable[[], Counter[str]],
    ) -> None:
        self.node_url = node_url
        self.agent_version = agent_version
        self._register = register
        self.machine = machine
        self.runtimes = runtimes
        self.images = images
        self.live_execs = live_execs

    def introduction(self) -> RegisterRequest:
        """What registration tells."""
        return self._register(self.node_url, self.agent_version)


class Agent:
    """Registers and heartbeats until `stop`."""

    def __init__(
        self,
        *,
        gateway_url: str,
        join_token_file: Path | None,
        identity: IdentityFile,
        connect: Callable[[str, str], Gateway],
        sandboxes: SandboxManager,
        facts: NodeFacts,
    ) -> None:
        """``connect`` makes a client of the gateway from its URL and a token."""
        self._gateway_url = gateway_url
        self._join_token_file = join_token_file
        self._file = identity
        self._connect = connect
        self._sandboxes = sandboxes
        self._facts = facts
        self._identity = identity.load(gateway_url)
        self._client = connect(gateway_url, self._identity.credential) if self._identity else None
        self._refused = False
        self._sequence = 0
        self._boot_id = secrets.token_hex(16)
        self._interval = limits.HEARTBEAT_INTERVAL
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="agent", daemon=True)

    @property
    def identity(self) -> Identity | None:
        """Who the node is; ``None`` until it has registered."""
        return self._identity

    def start(self) -> None:
        """Begins; returns at once."""
        self._thread.start()

    def poke(self) -> None:
        """Something happened: the next heartbeat goes out at once.  Called from any thread."""
        self._wake.set()

    def stop(self) -> None:
        """Ends the thread; waits for a call in flight."""
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=15.0)

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        failures = 0
        while not self._stopping:
            self._wake.clear()
            failures = 0 if self._round() else failures + 1
            pause = min(MAX_BACKOFF, FIRST_BACKOFF * 2 ** min(failures - 1, 10)) if failures else self._interval
            self._wake.wait(min(pause, self._interval) if self._identity and not self._refused else pause)

    def _round(self) -> bool:
        """One registration or heartbeat; whether it worked."""
        try:
            if self._identity is None or self._refused:
                self._register()
            self._heartbeat()
        except GatewayUnreachableError as error:
            log.warning("%s; sandboxes go on, trying again", error)
        except GatewayError as error:
            self._on_refusal(error)
        except _CannotRegisterError as error:
            log.error("%s", error)
        except Exception:
            log.exception("a heartbeat failed inside the agent")
        else:
            return True
        return False

    def _on_refusal(self, error: GatewayError) -> None:
        if error.status not in FORGOTTEN:
            log.error("the gateway refused (%d): %s; trying again", error.status, error)
            return
        self._refused = True
        log.error("the gateway does not know this node any more (%d): %s", error.status, error)

    def _register(self) -> None:
        """Registers with the join token that is in the file, unless it was used before.

        Raises:
            _CannotRegisterError: there is no join token, it was used, or the gateway refuses it.
        """
        token = self._join_token()
        try:
            answer = self._connect(self._gateway_url, token).register(self._facts.introduction())
        except GatewayError as error:
            if error.retryable:
                raise
            raise _CannotRegisterError(
                f"the gateway refused the registration ({error.status}): {error}; "
                f"put a new join token into {self._join_token_file}"
            ) from error
        identity = Identity(
            node_id=answer.node_id,
            credential=answer.credential,
            control_token=answer.control_token,
            gateway_url=self._gateway_url,
            join_token_sha256=digest(token),
        )
        try:
            self._file.save(identity)
        except OSError as error:
            # The node works with what it was told; only the next start will need another token.
            log.error("the node's identity could not be kept: %s", error)
        self._identity, self._refused = identity, False
        self._client = self._connect(self._gateway_url, identity.credential)
        self._interval = answer.heartbeat_seconds
        log.info("registered at %s as node %s", self._gateway_url, identity.node_id)

    def _join_token(self) -> str:
        wish = f"put a new join token into {self._join_token_file or 'a file and name it in join_token_file'}"
        if self._join_token_file is None:
            raise _CannotRegisterError(f"this node is not registered and has no join token: {wish}")
        try:
            token = self._join_token_file.read_text().strip()
        except OSError as error:
            raise _CannotRegisterError(f"this node is not registered: {error}; {wish}") from error
        if not token or (self._identity is not None and digest(token) == self._identity.join_token_sha256):
            raise _CannotRegisterError(f"the gateway refused this node and its join token is used up: {wish}")
        return token

    def _heartbeat(self) -> None:
        if self._identity is None or self._client is None:
            return
        answer = self._client.heartbeat(self._identity.node_id, self.heartbeat())
        self._interval = answer.heartbeat_seconds
        self._sandboxes.draining = answer.draining
        for removal in answer.remove:
            try:
                self._sandboxes.delete(removal.sandbox_id, removal.generation)
            except NodeError as error:
                log.info("not removed, as the gateway asked: %s", error)

    def heartbeat(self) -> Heartbeat:
        """The node's truth at this moment."""
        facts, use = self._facts, self._facts.machine.use()
        self._sequence += 1
        live = facts.live_execs()
        return Heartbeat(
            sequence=self._sequence,
            boot_id=self._boot_id,
            node_url=facts.node_url,
            agent_version=facts.agent_version,
            total=facts.machine.total(),
            reserved=self._sandboxes.reserved(),
            used_memory_mb=use.memory_mb,
            used_disk_mb=use.disk_mb,
            pressure=facts.machine.pressure(),
            runtimes=facts.runtimes,
            images=facts.images(),
            inventory=[s.inventory_item(live[s.id]) for s in self._sandboxes.sandboxes()],
            # So that nothing is placed here only to be refused.
            draining=self._sandboxes.draining or facts.machine.disk_shortage() is not None,
        )


class _CannotRegisterError(Exception):
    """Registration needs something that a person has to bring."""
