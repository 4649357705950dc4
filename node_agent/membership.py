"""The node's bond with its gateway: it registers once with a join token, keeps the answer, and heartbeats from then on.

The identity lies in a file that only root reads.  With it a restart needs no token; a gateway that no longer knows it
makes the node register again, which takes a new token.

A heartbeat is the complete truth of the node, sent at every interval and at every change, from a thread of its own.
Sandboxes never depend on it: whatever the gateway says or fails to say, what runs goes on.
"""

import hashlib
import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, Protocol

from pydantic import BaseModel, ConfigDict, ValidationError

from gateway.client import GatewayError, GatewayUnreachableError
from gateway.wire import limits
from gateway.wire.nodes import Heartbeat, HeartbeatAnswer, RegisterAnswer, RegisterRequest, RuntimeReport
from gateway.wire.sandboxes import RuntimeName
from node_agent.errors import NodeError, RuntimeFailure
from node_agent.host.disk import write_atomically
from node_agent.host.machine import HostMachine
from node_agent.runtime.base import SandboxRuntime
from node_agent.sandboxes.manager import SandboxManager
from node_agent.sandboxes.meters import Meters

log = logging.getLogger(__name__)

FIRST_BACKOFF: Final = 1.0
MAX_BACKOFF: Final = 30.0
STOP_SECONDS: Final = 15.0
IMAGES_AGE: Final = 30.0  # a listing of images costs an engine call, and a heartbeat must not
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
        introduction: returns what the node says of itself, asked again at each registration.
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


@dataclass(frozen=True)
class NodeReport:
    """What a heartbeat says beside the inventory of sandboxes."""

    node_url: str
    agent_version: str
    runtimes: list[RuntimeReport]
    machine: HostMachine
    images: Callable[[], list[str]]
    live_execs: Callable[[], Counter[str]]
    refusal: Callable[[], str | None]
    """Returns why the machine takes no new sandbox; ``None`` while it does."""
    look_after: Callable[[], None]
    """Called with each heartbeat: has what protects the host looked at; does not wait for that."""


class HeartbeatLoop:
    """Registers and heartbeats until `stop`."""

    def __init__(
        self, registration: NodeRegistration, sandboxes: SandboxManager, meters: Meters, report: NodeReport
    ) -> None:
        self._registration = registration
        self._sandboxes = sandboxes
        self._meters = meters
        self._report = report
        self._sequence = 0
        self._boot_id = secrets.token_hex(16)
        self._interval = limits.HEARTBEAT_INTERVAL
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def poke(self) -> None:
        """Send the next heartbeat at once: something happened.  Called from any thread."""
        self._wake.set()

    def stop(self) -> None:
        """End the thread; wait for a call in flight."""
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=STOP_SECONDS)

    def _run(self) -> None:
        failures = 0
        while not self._stopping:
            self._wake.clear()
            failures = 0 if self._round() else failures + 1
            pause = min(MAX_BACKOFF, FIRST_BACKOFF * 2 ** min(failures - 1, 10)) if failures else self._interval
            self._wake.wait(min(pause, self._interval) if self._registration.valid else pause)

    def _round(self) -> bool:
        """Register where that is needed, then send one heartbeat; return whether it worked."""
        try:
            if not self._registration.valid:
                self._interval = self._registration.register().heartbeat_seconds
            self._obey(self._registration.heartbeat(self.heartbeat()))
        except GatewayUnreachableError as error:
            log.warning("%s; sandboxes go on, trying again", error)
        except GatewayError as error:
            outlook = "it does not know this node any more" if error.status in NO_SUCH_NODE else "trying again"
            log.error("the gateway refused (%d): %s; %s", error.status, error, outlook)
        except CannotRegisterError as error:
            log.error("%s", error)
        except Exception:
            log.exception("a heartbeat failed inside the agent")
        else:
            return True
        return False

    def _obey(self, answer: HeartbeatAnswer) -> None:
        self._interval = answer.heartbeat_seconds
        self._sandboxes.draining = answer.draining
        self._meters.acknowledge(answer.meters_taken)
        for removal in answer.remove:
            try:
                self._sandboxes.delete(removal.sandbox_id, removal.generation)
            except NodeError as error:
                log.info("not removed, as the gateway asked: %s", error)

    def heartbeat(self) -> Heartbeat:
        """Return the node's truth at this moment."""
        report, use = self._report, self._report.machine.use()
        self._sequence += 1
        report.look_after()
        live, sandboxes = report.live_execs(), self._sandboxes.sandboxes()
        self._meters.read_all(sandboxes)
        return Heartbeat(
            sequence=self._sequence,
            boot_id=self._boot_id,
            node_url=report.node_url,
            agent_version=report.agent_version,
            total=report.machine.total(),
            reserved=self._sandboxes.reserved(),
            used_memory_mb=use.memory_mb,
            used_disk_mb=use.disk_mb,
            pressure=report.machine.pressure(),
            runtimes=report.runtimes,
            images=report.images(),
            inventory=[sandbox.inventory_item(live[sandbox.id]) for sandbox in sandboxes],
            usage=self._meters.reports(),
            # So that nothing is placed here only to be refused.
            draining=self._sandboxes.draining or report.refusal() is not None,
        )


class ImageListing:
    """Digests of the images that start here without a pull, as they were listed at most `IMAGES_AGE` seconds ago.

    They are listed behind the heartbeat's back: an engine that hangs must not make the node look dead.
    """

    def __init__(self, runtimes: Mapping[RuntimeName, SandboxRuntime], executor: Executor) -> None:
        self._runtimes = runtimes
        self._executor = executor
        self._digests: list[str] = []
        self._until = 0.0
        self._listing: Future[None] | None = None

    def digests(self) -> list[str]:
        """Return the last listing; begin a new one where it is old."""
        if time.monotonic() >= self._until and (self._listing is None or self._listing.done()):
            self._until = time.monotonic() + IMAGES_AGE
            self._listing = self._executor.submit(self._list)
        return self._digests

    def _list(self) -> None:
        try:
            self._digests = sorted({digest for runtime in self._runtimes.values() for digest in runtime.images()})
        except RuntimeFailure as failure:
            log.warning("the images could not be listed: %s", failure.message)
