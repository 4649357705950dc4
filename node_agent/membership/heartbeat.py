"""The node's heartbeat: its complete truth to the gateway, at every interval and at every change.

It runs on a thread of its own and registers first where it has to.  Sandboxes never depend on it: whatever the gateway
says or fails to say, what runs goes on.
"""

import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Final

from gateway.client import GatewayError, GatewayUnreachableError
from gateway.wire import limits
from gateway.wire.nodes import Heartbeat, HeartbeatAnswer, RuntimeReport
from gateway.wire.sandboxes import RuntimeName
from node_agent.errors import NodeError, RuntimeFailure
from node_agent.host.machine import HostMachine
from node_agent.membership.registration import NO_SUCH_NODE, CannotRegisterError, NodeRegistration
from node_agent.runtime.base import SandboxRuntime
from node_agent.sandboxes.manager import SandboxManager

log = logging.getLogger(__name__)

FIRST_BACKOFF: Final = 1.0
MAX_BACKOFF: Final = 30.0
STOP_SECONDS: Final = 15.0
IMAGES_AGE: Final = 30.0  # a listing of images costs an engine call, and a heartbeat must not


@dataclass(frozen=True)
class NodeReport:
    """What a heartbeat says beside the inventory of sandboxes."""

    node_url: str
    agent_version: str
    runtimes: list[RuntimeReport]
    machine: HostMachine
    images: Callable[[], list[str]]
    live_execs: Callable[[], Counter[str]]


class HeartbeatLoop:
    """Registers and heartbeats until `stop`."""

    def __init__(self, registration: NodeRegistration, sandboxes: SandboxManager, report: NodeReport) -> None:
        self._registration = registration
        self._sandboxes = sandboxes
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
        for removal in answer.remove:
            try:
                self._sandboxes.delete(removal.sandbox_id, removal.generation)
            except NodeError as error:
                log.info("not removed, as the gateway asked: %s", error)

    def heartbeat(self) -> Heartbeat:
        """Return the node's truth at this moment."""
        report, use = self._report, self._report.machine.use()
        self._sequence += 1
        live = report.live_execs()
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
            inventory=[sandbox.inventory_item(live[sandbox.id]) for sandbox in self._sandboxes.sandboxes()],
            # So that nothing is placed here only to be refused.
            draining=self._sandboxes.draining or report.machine.disk_shortage() is not None,
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
