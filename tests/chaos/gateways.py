"""Two gateways, two autoscalers, two nodes and their PostgreSQL; and everything that may befall them."""

import contextlib
import dataclasses
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import psycopg
import pytest
from sqlalchemy import make_url

from gateway.client import GatewayClient
from gateway.wire.nodes import JoinTokenRequest
from gateway.wire.resources import Shape
from tests.chaos.balancer import Balancer
from tests.chaos.light_nodes import LightNodes
from tests.engines.postgres import Server, free_port, own_server
from tests.fakes.node import NodeUnderTest, served
from tests.gateway_process import ROOT, GatewayProcess, new_token
from tests.integration.emulated_clouds import Cloud, hetzner_cloud
from tests.integration.emulated_fleet import Fleet, Pool, empty_bundle
from tests.waiting import wait_until

REST_SECONDS: Final = 120.0
BUILDER: Final = Shape(cpus=8, memory_mb=2048, disk_mb=4096, slots=20)


class Daemon(threading.Thread):
    """A process that is started again whenever it ends, as systemd does."""

    def __init__(self, name: str, words: list[str], log: Path, environ: Mapping[str, str]) -> None:
        super().__init__(name=name)
        self.log = log
        self._command = [sys.executable, "-m", "sandboxes", *words]
        # The name by which PostgreSQL knows its connections.
        self._environ = {**os.environ, **environ, "PGAPPNAME": name}
        self._over = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        with self.log.open("ab") as log:
            while not self._over.is_set():
                self._process = subprocess.Popen(self._command, cwd=ROOT, env=self._environ, stdout=log, stderr=log)
                self._process.wait()
                self._over.wait(0.2)

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, if it runs."""
        if self._process is not None:
            self._process.send_signal(number)

    def end(self) -> int:
        """End it in the end; return its exit code."""
        self._over.set()
        self.send(signal.SIGCONT)
        self.send(signal.SIGTERM)
        self.join(40)
        if self.is_alive():
            self.send(signal.SIGKILL)
            self.join(10)
        return -1 if self._process is None else self._process.wait(10)

    def said(self) -> str:
        """Return its log."""
        return self.log.read_text(errors="replace")


@dataclasses.dataclass
class Service:
    """All of it."""

    server: Server
    database: str
    gateways: list[Daemon]
    autoscalers: list[Daemon]
    balancer: Balancer
    operator: str
    cloud: Cloud
    fleet: Fleet
    nodes: list[NodeUnderTest]
    machines: LightNodes

    def both_ready(self) -> bool:
        """Return whether both gateways are ready."""
        return len(self.balancer.ready()) == len(self.gateways)

    def rest(self) -> None:
        """Return once both gateways are ready."""
        wait_until(self.both_ready, REST_SECONDS)

    def held(self) -> list[set[str]]:
        """Return the sandboxes that each node's engine really has."""
        return [{found.order.sandbox_id for found in node.runtime.found()} for node in self.nodes]


@contextlib.contextmanager
def service(directory: Path) -> Iterator[Service]:
    """Run it below ``directory`` until the block ends; the loopback is the test's own."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True, timeout=20)
    with ExitStack() as stack:
        server = stack.enter_context(own_server(tcp=True))
        url = stack.enter_context(server.database())
        journal = stack.enter_context(server.database())
        ports = [free_port(), free_port()]
        balancer = stack.enter_context(Balancer(ports).running())
        environ = {
            "SANDBOXES_GATEWAY_DATABASE_URL": url,
            "SANDBOXES_GATEWAY_HEARTBEAT_INTERVAL": "0.5",
            "SANDBOXES_GATEWAY_BUNDLE_DIR": str(directory / "bundle"),
        }
        empty_bundle(directory / "bundle")
        states = [directory / "gateway1", directory / "gateway2"]
        for state in states:
            state.mkdir(mode=0o700)
            (state / "node-secret").write_text("5a" * 32)
            (state / "node-secret").chmod(0o600)
        operator = _token(states[0], environ)
        gateways = [
            Daemon(
                f"gateway{n}",
                ["gateway", "run", "--port", str(port), "--state-dir", str(state)],
                directory / f"gateway{n}.log",
                environ,
            )
            for n, (port, state) in enumerate(zip(ports, states, strict=True), 1)
        ]
        _started(stack, gateways)
        wait_until(lambda: len(balancer.ready()) == len(ports), REST_SECONDS)
        machines = LightNodes(BUILDER)
        cloud = stack.enter_context(hetzner_cloud(machines))
        fleets = [_fleet(directory / f"as{n}", balancer, operator, cloud, journal) for n in (1, 2)]
        autoscalers = [
            Daemon(
                f"autoscaler{n}",
                ["autoscaler", "run", "--execute", "--config", str(directory / f"as{n}" / "autoscaler.toml")],
                directory / f"autoscaler{n}.log",
                cloud.environ,
            )
            for n in (1, 2)
        ]
        _started(stack, autoscalers)
        nodes = [stack.enter_context(_node(directory / f"node{n}", balancer.url, operator)) for n in (1, 2)]
        made = Service(server, url, gateways, autoscalers, balancer, operator, cloud, fleets[0], nodes, machines)
        wait_until(lambda: len(made.fleet.client.nodes()) == len(nodes), REST_SECONDS)
        yield made


def _started(stack: ExitStack, daemons: list[Daemon]) -> None:
    for daemon in daemons:
        daemon.start()
        stack.callback(daemon.end)


def _token(state: Path, environ: Mapping[str, str]) -> str:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environ.items():
            patch.setenv(name, value)
        return new_token(state, "operator")


def _fleet(directory: Path, balancer: Balancer, operator: str, cloud: Cloud, journal: str) -> Fleet:
    directory.mkdir()
    settings = {"role": "builder", "max": 2, "idle_seconds": 0.5, "hold_seconds": 0.0, "drain_share": 1.0}
    before_all = GatewayProcess(balancer.url, directory, None, [])  # type: ignore[arg-type]  # only its URL is used
    made = Fleet(directory, before_all, operator, [Pool(cloud, "build", settings)], None)
    config = directory / "autoscaler.toml"
    config.write_text(f'database_url = "{journal}"\n{config.read_text()}')
    return made


@contextlib.contextmanager
def _node(root: Path, url: str, operator: str) -> Iterator[NodeUnderTest]:
    root.mkdir()
    token = GatewayClient(url, operator).join_token(JoinTokenRequest(instance=root.name, pool="cpu")).token
    (root / "join-token").write_text(token)
    (root / "join-token").chmod(0o600)
    with served(root, given={"gateway_url": url, "instance": root.name}) as node:
        try:
            yield node
        finally:
            node.remove_all()


# -- what may befall it -----------------------------------------------------------------------------------------------


class Weather:
    """Does one thing after the other to a service, in an order that a seed decides.

    Args:
        service: which.
        seed: of the order.
        away: seconds for which PostgreSQL is frozen, full or out of reach.
        frozen: seconds for which a daemon is frozen.
        stopped: seconds for which PostgreSQL does not run.
    """

    def __init__(self, service: Service, seed: int, *, away: float, frozen: float, stopped: float) -> None:
        self._service = service
        self._chance = random.Random(seed)
        self._away = away
        self._frozen = frozen
        self._stopped = stopped
        self.happened: Counter[str] = Counter()
        self.kinds: dict[str, Callable[[], None]] = {
            "a gateway is killed": lambda: self._any_gateway().send(signal.SIGKILL),
            "an autoscaler is killed": lambda: self._any_autoscaler().send(signal.SIGKILL),
            "a gateway is frozen in a transaction": self._freeze_in_transaction,
            "an autoscaler is frozen": self._freeze_autoscaler,
            "the database crashes": lambda: self._restart("immediate", 0.0),
            "the database is restarted": lambda: self._restart("fast", 0.0),
            "the database is away": lambda: self._restart("fast", self._stopped),
            "the database is frozen": self._freeze_server,
            "backends are terminated": self._terminate,
            "connections are exhausted": self._exhaust,
            "packets are lost": lambda: self._lose("numgen random mod 100 < 40"),
            "the database is out of reach": lambda: self._lose(""),
        }

    def strike(self, kind: str) -> None:
        """Let it happen, and return when it is over."""
        self.kinds[kind]()
        self.happened[kind] += 1

    def order(self) -> list[str]:
        """Return all kinds in a new order."""
        return self._chance.sample(sorted(self.kinds), len(self.kinds))

    def _any_gateway(self) -> Daemon:
        return self._chance.choice(self._service.gateways)

    def _any_autoscaler(self) -> Daemon:
        return self._chance.choice(self._service.autoscalers)

    def _freeze_in_transaction(self) -> None:
        """Stop a gateway that has an open transaction: it is stopped again and again until it is in one."""
        daemon = self._any_gateway()
        open_now = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND state = 'idle in transaction'"
        with self._service.server.admin() as admin:
            for _ in range(2000):
                daemon.send(signal.SIGSTOP)
                time.sleep(0.002)  # what was under way at the server has come to its end
                row = admin.execute(open_now, [daemon.name]).fetchone()
                if row is not None and row[0]:
                    self.happened["- in mid-transaction"] += 1
                    break
                daemon.send(signal.SIGCONT)
                time.sleep(self._chance.uniform(0.0, 0.01))
            else:
                daemon.send(signal.SIGSTOP)
        time.sleep(self._frozen)
        daemon.send(signal.SIGCONT)

    def _freeze_autoscaler(self) -> None:
        daemon = self._any_autoscaler()
        daemon.send(signal.SIGSTOP)
        time.sleep(self._frozen)
        daemon.send(signal.SIGCONT)

    def _restart(self, mode: str, pause: float) -> None:
        self._service.server.stop(mode)
        time.sleep(pause)
        self._service.server.start()

    def _freeze_server(self) -> None:
        self._service.server.freeze()
        time.sleep(self._away)
        self._service.server.thaw()

    def _terminate(self) -> None:
        with self._service.server.admin() as admin:
            admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name <> ''")

    def _exhaust(self) -> None:
        name = make_url(self._service.database).database or ""
        with ExitStack() as stack:
            admin = stack.enter_context(self._service.server.admin())
            end = time.monotonic() + self._away
            while time.monotonic() < end:
                # Whoever has a connection loses it, and what becomes free is taken.
                admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
                with contextlib.suppress(psycopg.OperationalError):
                    while True:
                        stack.enter_context(self._service.server.admin())
                time.sleep(0.2)

    def _lose(self, some: str) -> None:
        """Lose packets to and from the database: all of them, or those for which ``some`` holds."""
        port = self._service.server.port
        rules = f"""
            table inet chaos {{
                chain input {{
                    type filter hook input priority 0;
                    tcp dport {port} {some} drop
                    tcp sport {port} {some} drop
                }}
            }}"""
        subprocess.run(["nft", "-f", "-"], input=rules, text=True, check=True, timeout=20)
        try:
            time.sleep(self._away)
        finally:
            subprocess.run(["nft", "delete", "table", "inet", "chaos"], check=True, timeout=20)
