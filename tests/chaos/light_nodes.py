"""Emulated machines whose node agent is a thread of the test: it registers, beats, and holds nothing.

The gateway is a real one, so nodes come to be, are closed and go as ever; only the processes are spared.
"""

import logging
import threading
import tomllib
from uuid import uuid4

from gateway.client import GatewayClient, GatewayError, GatewayUnreachableError
from gateway.wire.nodes import Heartbeat, RegisterAnswer, RegisterRequest, RuntimeReport
from gateway.wire.resources import Shape
from tests.fakes.booting import Machine
from tests.integration.emulated_machines import node_files

log = logging.getLogger(__name__)

BEAT_SECONDS = 0.2
NOWHERE = "http://127.0.0.1:9"
RUNTIMES = [RuntimeReport(name="runsc", version="0", isolations=["gvisor"])]


class LightNodes:
    """Boots every machine of an emulator."""

    def __init__(self, total: Shape) -> None:
        self._total = total
        self._lives: dict[str, tuple[threading.Thread, threading.Event]] = {}
        self._known: dict[str, RegisterAnswer] = {}
        """What each machine has on its disk after it has registered."""

    def address(self, name: str) -> str | None:
        return "127.0.0.1"

    def boot(self, machine: Machine) -> None:
        ended = threading.Event()
        thread = threading.Thread(target=self._live, args=(machine, ended), name=machine.name, daemon=True)
        self._lives[machine.name] = thread, ended
        thread.start()

    def stop(self, name: str) -> None:
        thread, ended = self._lives.pop(name)
        ended.set()
        thread.join(20)

    def running(self) -> list[str]:
        """Names of the machines that run."""
        return sorted(self._lives)

    def _live(self, machine: Machine, ended: threading.Event) -> None:
        try:
            files = node_files(machine.user_data)
            settings = tomllib.loads(files["node.toml"].decode())
            url = settings["gateway_url"]
            if machine.name not in self._known:
                request = RegisterRequest(
                    node_url=NOWHERE,
                    instance=settings["instance"],
                    agent_version="0",
                    total=self._total,
                    runtimes=RUNTIMES,
                    labels=settings["labels"],
                )
                self._known[machine.name] = _registered(
                    GatewayClient(url, files["join.token"].decode(), attempts=1), request, ended
                )
            known = self._known[machine.name]
            self._beat(GatewayClient(url, known.credential, attempts=1), known.node_id, ended)
        except (GatewayError, GatewayUnreachableError) as error:
            # A machine that the gateway does not want is one that never becomes a node.
            log.warning("%s: %s", machine.name, error)

    def _beat(self, client: GatewayClient, node_id: str, ended: threading.Event) -> None:
        boot_id, sequence, draining = uuid4().hex, 0, False
        while not ended.wait(BEAT_SECONDS):
            sequence += 1
            heartbeat = Heartbeat(
                sequence=sequence,
                boot_id=boot_id,
                node_url=NOWHERE,
                agent_version="0",
                total=self._total,
                reserved=Shape(),
                used_memory_mb=0,
                used_disk_mb=0,
                runtimes=RUNTIMES,
                inventory=[],
                draining=draining,
            )
            try:
                draining = client.heartbeat(node_id, heartbeat).draining
            except (GatewayError, GatewayUnreachableError) as error:
                if isinstance(error, GatewayError) and not error.retryable:
                    raise
                log.info("node %s: %s", node_id, error)


def _registered(client: GatewayClient, request: RegisterRequest, ended: threading.Event) -> RegisterAnswer:
    """Ask until the gateway takes the machine or refuses it for good, as a node agent does."""
    while True:
        try:
            return client.register(request)
        except (GatewayError, GatewayUnreachableError) as error:
            if (isinstance(error, GatewayError) and not error.retryable) or ended.wait(BEAT_SECONDS):
                raise
