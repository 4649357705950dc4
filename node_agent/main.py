"""Composition root of the node agent: the only place that knows every part."""

import asyncio
import logging
import os
import resource
import signal
import socket
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_all
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import uvicorn
import uvloop
from fastapi import FastAPI

from gateway.client import GatewayClient
from gateway.wire import limits
from gateway.wire.nodes import RegisterRequest, RuntimeReport
from gateway.wire.sandboxes import RuntimeName
from node_agent import startup
from node_agent.errors import NodeError, RuntimeFailure
from node_agent.exec.history import HistoryStore
from node_agent.exec.sessions import SessionBounds, Sessions
from node_agent.files.transfer import Transfers
from node_agent.host.firewall_guard import FirewallGuard
from node_agent.host.machine import HostMachine, boot_stages, list_gpus
from node_agent.http.app import Standing, build_app
from node_agent.http.context import NodeParts
from node_agent.install.uninstall import record_engines, remove_traces
from node_agent.membership import (
    Connect,
    HeartbeatLoop,
    IdentityFile,
    ImageListing,
    NodeRegistration,
    NodeReport,
    agent_version,
)
from node_agent.runtime.base import Death, RuntimeFacts
from node_agent.sandboxes.disk_guard import DiskGuard
from node_agent.sandboxes.manager import SandboxManager
from node_agent.sandboxes.meters import Meters
from node_agent.settings import NodeSettings
from node_agent.startup import Factory, NodeStartError, ProbedEngines

log = logging.getLogger(__name__)

CREATORS: Final = 16  # creates at once: each may unpack an image
WORKERS: Final = 32  # deletes, pauses and resumes at once
BLOCKING: Final = 128  # spool reads, signals and file batches at once
KEEP_ALIVE: Final = 75  # longer than the gateway keeps an idle connection, so that it never meets one that just closed
CLEANUP_SECONDS: Final = 60.0


class NodeAgent:
    """The parts of one node agent, wired.

    Args:
        settings: all of the agent's settings.
        engines: the engines that work here.
        node_url: where the gateway reaches this node.
        connect: makes a client of the gateway.
    """

    def __init__(self, settings: NodeSettings, engines: ProbedEngines, node_url: str, connect: Connect) -> None:
        self._settings = settings
        self._runtimes = {name: runtime for name, (runtime, _) in engines.items()}
        self._creators = ThreadPoolExecutor(CREATORS, "create")
        self._workers = ThreadPoolExecutor(WORKERS, "engine")
        self._blocking = ThreadPoolExecutor(BLOCKING, "blocking")
        reports = [_runtime_report(facts) for _, facts in engines.values()]
        gpus = list_gpus() if any(report.gpus for report in reports) else ()
        machine = self._machine = HostMachine(settings, gpus=len(gpus))
        firewalls = [firewall for runtime in self._runtimes.values() for firewall in runtime.firewalls()]
        self._firewall = FirewallGuard(firewalls, lambda: self.heartbeats.poke())
        self.sandboxes = SandboxManager(
            self._runtimes, machine.total, self._refusal, self._creators, self._workers, gpus
        )
        self._disk = DiskGuard(settings.root, self.sandboxes, settings.least_disk_mb // 2)
        store = HistoryStore(settings.root / "spool", settings.spool_mb * limits.MIB)
        bounds = SessionBounds(settings.max_execs, settings.exec_retention)
        self.sessions = Sessions(store, self._blocking, self.sandboxes.find_death, bounds)
        report = NodeReport(
            node_url=node_url,
            agent_version=agent_version(),
            runtimes=reports,
            machine=machine,
            images=ImageListing(self._runtimes, self._workers).digests,
            live_execs=self.sessions.live,
            refusal=self._refusal,
            look_after=self._firewall.poke,
        )
        self._registration = NodeRegistration(
            settings.gateway_url,
            settings.join_token_file,
            IdentityFile(settings.root),
            connect,
            partial(_introduction, settings, report),
        )
        self.meters = Meters(settings.root / "meters.json", self._runtimes)
        self.heartbeats = HeartbeatLoop(self._registration, self.sandboxes, self.meters, report)
        parts = NodeParts(self.sandboxes, self.sessions, Transfers(self._blocking), self._blocking)
        self.app: FastAPI = build_app(parts, control_token=self._registration.control_token, standing=self._standing)

    async def open(self) -> None:
        """Take over what an earlier life left, then begin to report to the gateway.

        Raises:
            RuntimeFailure: an engine could not be asked what it has.
        """
        loop = asyncio.get_running_loop()

        def gone(sandbox_id: str, generation: int, *, death: Death, deleted: bool) -> None:
            end = partial(self.sessions.sandbox_gone, sandbox_id, generation, death=death, deleted=deleted)
            try:
                loop.call_soon_threadsafe(end)
            except RuntimeError:
                log.debug("the loop is closed; sandbox %s ended with the agent", sandbox_id)

        self.sandboxes.listen(self.heartbeats.poke, gone, self.meters.read)
        await loop.run_in_executor(self._blocking, self._adopt)
        self.sessions.open(loop)
        self._disk.start()
        self.heartbeats.start()

    def _adopt(self) -> None:
        self._firewall.start()
        self.sandboxes.adopt()
        self.meters.read_all(self.sandboxes.sandboxes())
        budget = startup.image_budget(self._settings)
        self._machine.measure(self.sandboxes.held_disk_mb(), budget.used_mb())
        budget.limit_mb = self._machine.images_mb

    def close(self) -> None:
        """End the agent's threads.  Sandboxes go on, unless `NodeSettings.cleanup_on_exit` says otherwise."""
        self.heartbeats.stop()
        self._firewall.stop()
        self._disk.stop()
        if self._settings.cleanup_on_exit:
            self._remove_all()
        for pool in (self._creators, self._workers, self._blocking):
            pool.shutdown(wait=False, cancel_futures=True)
        for runtime in self._runtimes.values():
            runtime.close()

    def _remove_all(self) -> None:
        self.sandboxes.draining = True
        deletes: list[Future[None]] = []
        for sandbox in self.sandboxes.sandboxes():
            try:
                deletes.append(self.sandboxes.delete(sandbox.id, sandbox.generation))
            except NodeError as error:
                log.error("not removed: %s", error)
        done, late = wait_all(deletes, timeout=CLEANUP_SECONDS)
        failed = [future for future in done if future.exception() is not None]
        if late or failed:
            log.error("%d sandboxes were not removed in time, %d could not be removed", len(late), len(failed))
        remove_traces(self._runtimes)

    def _refusal(self, disk_mb: int = 0) -> str | None:
        """Return why this machine takes no new sandbox, as a sentence; ``None`` while it does.

        Args:
            disk_mb: MiB of disk that new sandboxes will set aside.
        """
        return self._firewall.problem or self._machine.disk_shortage(disk_mb)

    def _standing(self) -> Standing:
        identity = self._registration.identity
        if identity is None:
            return Standing(None, "starting")
        return Standing(identity.node_id, "draining" if self.sandboxes.draining else "ready")


def _runtime_report(facts: RuntimeFacts) -> RuntimeReport:
    return RuntimeReport(
        name=facts.name,
        version=facts.version,
        isolations=list(facts.isolations),
        pause=facts.pause,
        checkpoint=facts.checkpoint,
        gpus=facts.gpus,
    )


def _introduction(settings: NodeSettings, report: NodeReport) -> RegisterRequest:
    return RegisterRequest(
        node_url=report.node_url,
        instance=settings.instance,
        agent_version=report.agent_version,
        total=report.machine.total(),
        runtimes=report.runtimes,
        labels=settings.labels,
        stages=boot_stages(settings.boot_stages_file),
    )


# -- the process ------------------------------------------------------------------------------------------------------


def run(settings: NodeSettings, factories: Mapping[RuntimeName, Factory], connect: Connect = GatewayClient) -> None:
    """Run the agent until SIGTERM or SIGINT.

    Raises:
        NodeStartError: it cannot start; nothing was started.
    """
    _raise_file_limit()
    with startup.hold_root(settings.root):
        listener = startup.listen(settings.host, settings.port)
        with listener:
            engines = startup.probe_engines(settings, factories)
            try:
                record_engines(settings)
                node = NodeAgent(settings, engines, startup.node_url(settings, listener), connect)
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    runner.run(_until_signal(node, settings, listener))
            except RuntimeFailure as failure:
                raise NodeStartError(f"an engine does not list its sandboxes: {failure.message}") from failure
            except OSError as error:
                raise NodeStartError(f"the agent cannot work in {settings.root}: {error}") from error


async def _until_signal(node: NodeAgent, settings: NodeSettings, listener: socket.socket) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    url = startup.node_url(settings, listener)
    log.info("node agent on %s, root %s, tag %s", url, settings.root, settings.tag)
    await serve(node, settings, listener, stop)


async def serve(node: NodeAgent, settings: NodeSettings, listener: socket.socket, stop: asyncio.Event) -> None:
    """Serve until ``stop`` is set, then let open requests end.

    Raises:
        RuntimeFailure: an engine could not be asked what it has.
    """
    await node.open()
    config = uvicorn.Config(
        node.app,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=settings.graceful_seconds,
    )
    server = _Server(config)
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
    node.sessions.close()
    server.should_exit = True
    await serving
    stopping.cancel()
    await asyncio.get_running_loop().run_in_executor(None, node.close)


class _Server(uvicorn.Server):
    """A server that leaves signals to us: waiting calls have to be woken before connections are waited for."""

    @contextmanager
    def capture_signals(self) -> Any:
        yield


def _raise_file_limit() -> None:
    """Raise the soft limit of 1024: each exec holds several descriptors, and the bounds allow more."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def leave(code: int) -> None:
    """End the process.

    An engine call that hangs would keep its pool's thread, and with it the interpreter, alive for ever.
    """
    logging.shutdown()
    if threading.active_count() > 1:
        os._exit(code)
    raise SystemExit(code)
