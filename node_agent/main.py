"""Composition root of the node agent: the only place that knows every part."""

import asyncio
import logging
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_all
from contextlib import contextmanager
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import uvicorn
import uvloop
from fastapi import FastAPI

from gateway.client import GatewayClient
from gateway.wire import limits
from gateway.wire.nodes import RegisterRequest, RuntimeReport
from gateway.wire.sandboxes import RuntimeName
from node_agent.errors import NodeError, RuntimeFailure
from node_agent.exec.history import HistoryStore
from node_agent.exec.sessions import SessionBounds, Sessions
from node_agent.files.transfer import Transfers
from node_agent.host.machine import Machine, count_gpus
from node_agent.http.app import Standing, build_app
from node_agent.http.context import NodeParts
from node_agent.install.cleanup import record_engines, remove_traces
from node_agent.membership.boot import boot_stages
from node_agent.membership.heartbeat import Agent, Gateway, NodeFacts
from node_agent.membership.identity import IdentityFile
from node_agent.runtime.base import Death, RuntimeFacts, SandboxRuntime
from node_agent.sandboxes.manager import SandboxManager
from node_agent.settings import NodeSettings
from node_agent.startup import Factory, StartError, held_root, listening, origin, probed

log = logging.getLogger(__name__)

CREATORS: Final = 16  # creates at once: each may unpack an image
WORKERS: Final = 32  # deletes, pauses and resumes at once
BLOCKING: Final = 64  # spool reads, signals and file batches at once
KEEP_ALIVE: Final = 75  # longer than the gateway keeps an idle connection, so that it never meets one that just closed
CLEANUP_SECONDS: Final = 60.0
IMAGES_AGE: Final = 30.0  # a listing of images costs an engine call, and a heartbeat must not

Probed = Mapping[RuntimeName, tuple[SandboxRuntime, RuntimeFacts]]
Connect = Callable[[str, str], Gateway]


class Node:
    """The parts of one node agent, wired."""

    def __init__(self, settings: NodeSettings, engines: Probed, node_url: str, connect: Connect) -> None:
        self._settings = settings
        self._runtimes = {name: runtime for name, (runtime, _) in engines.items()}
        creators = ThreadPoolExecutor(CREATORS, "create")
        workers = ThreadPoolExecutor(WORKERS, "engine")
        blocking = ThreadPoolExecutor(BLOCKING, "blocking")
        self._pools = (creators, workers, blocking)
        reports = [_report(facts) for _, facts in engines.values()]
        gpus = count_gpus() if any(report.gpus for report in reports) else 0
        machine = self._machine = Machine(settings, gpus=gpus)
        self.sandboxes = SandboxManager(self._runtimes, machine.total, machine.disk_shortage, creators, workers)
        spool = HistoryStore(settings.root / "spool", settings.spool_mb * limits.MIB)
        bounds = SessionBounds(settings.max_execs, settings.exec_retention)
        self.sessions = Sessions(spool, blocking, self.sandboxes.find_death, bounds)
        self.agent = Agent(
            gateway_url=settings.gateway_url,
            join_token_file=settings.join_token_file,
            identity=IdentityFile(settings.root),
            connect=connect,
            sandboxes=self.sandboxes,
            facts=NodeFacts(
                node_url=node_url,
                agent_version=agent_version(),
                register=partial(_registration, settings, machine, reports),
                machine=machine,
                runtimes=reports,
                images=_Images(self._runtimes, workers).digests,
                live_execs=self.sessions.live,
            ),
        )
        parts = NodeParts(self.sandboxes, self.sessions, Transfers(blocking), blocking)
        self.app: FastAPI = build_app(parts, control_token=self._control_token, standing=self._standing)

    async def open(self) -> None:
        """Takes over what an earlier life left, then begins to tell the gateway.

        Raises:
            RuntimeFailure: an engine could not be asked what it has.
        """
        loop = asyncio.get_running_loop()

        def gone(sandbox_id: str, generation: int, *, death: Death, deleted: bool) -> None:
            tell = partial(self.sessions.sandbox_gone, sandbox_id, generation, death=death, deleted=deleted)
            try:
                loop.call_soon_threadsafe(tell)
            except RuntimeError:
                log.debug("the loop is closed; sandbox %s ended with the agent", sandbox_id)

        self.sandboxes.listen(self.agent.poke, gone)
        await loop.run_in_executor(self._pools[2], self._adopt)
        self.sessions.open(loop)
        self.agent.start()

    def _adopt(self) -> None:
        self.sandboxes.adopt()
        self._machine.measure(self.sandboxes.used_disk_mb())

    def close(self) -> None:
        """Ends the agent's threads.  Sandboxes go on, unless `NodeSettings.cleanup_on_exit` says otherwise."""
        self.agent.stop()
        if self._settings.cleanup_on_exit:
            self._remove_all()
        for pool in self._pools:
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

    def _control_token(self) -> str | None:
        identity = self.agent.identity
        return identity.control_token if identity else None

    def _standing(self) -> Standing:
        identity = self.agent.identity
        if identity is None:
            return Standing(None, "starting")
        return Standing(identity.node_id, "draining" if self.sandboxes.draining else "ready")


class _Images:
    """Digests of the images that start here without a pull, as they were listed at most `IMAGES_AGE` seconds ago.

    They are listed behind the heartbeat's back: an engine that hangs must not make the node look dead.
    """

    def __init__(self, runtimes: Mapping[RuntimeName, SandboxRuntime], executor: Executor) -> None:
        self._runtimes = runtimes
        self._executor = executor
        self._listed: list[str] = []
        self._until = 0.0
        self._listing: Future[None] | None = None

    def digests(self) -> list[str]:
        """The last listing; begins a new one where it is old."""
        if time.monotonic() >= self._until and (self._listing is None or self._listing.done()):
            self._until = time.monotonic() + IMAGES_AGE
            self._listing = self._executor.submit(self._list)
        return self._listed

    def _list(self) -> None:
        try:
            self._listed = sorted({digest for runtime in self._runtimes.values() for digest in runtime.images()})
        except RuntimeFailure as failure:
            log.warning("the images could not be listed: %s", failure.message)


class _Server(uvicorn.Server):
    """A server that leaves signals to us: waiting calls have to be told before connections are waited for."""

    @contextmanager
    def capture_signals(self) -> Any:
        yield


async def serve(node: Node, settings: NodeSettings, listener: socket.socket, stop: asyncio.Event) -> None:
    """Serves until ``stop`` is set, then lets open requests end.

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


def run(settings: NodeSettings, factories: Mapping[RuntimeName, Factory], connect: Connect = GatewayClient) -> None:
    """Runs the agent until SIGTERM or SIGINT.

    Raises:
        StartError: it cannot start; nothing was started.
    """
    _raise_file_limit()
    with held_root(settings.root):
        listener = listening(settings.host, settings.port)
        with listener:
            engines = probed(settings, factories)
            try:
                record_engines(settings)
                node = Node(settings, engines, origin(settings, listener), connect)
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    runner.run(_until_signal(node, settings, listener))
            except RuntimeFailure as failure:
                raise StartError(f"an engine does not say what it has: {failure.message}") from failure
            except OSError as error:
                raise StartError(f"the agent cannot work in {settings.root}: {error}") from error


async def _until_signal(node: Node, settings: NodeSettings, listener: socket.socket) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    log.info("node agent on %s, root %s, tag %s", origin(settings, listener), settings.root, settings.tag)
    await serve(node, settings, listener, stop)


def _raise_file_limit() -> None:
    """Each exec holds several descriptors, and the customary soft limit of 1024 is below what the bounds allow."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def leave(code: int) -> None:
    """Ends the process.

    An engine call that hangs would keep its pool's thread, and with it the interpreter, alive for ever.
    """
    logging.shutdown()
    if threading.active_count() > 1:
        os._exit(code)
    raise SystemExit(code)


def _report(facts: RuntimeFacts) -> RuntimeReport:
    return RuntimeReport(
        name=facts.name,
        version=facts.version,
        isolations=list(facts.isolations),
        pause=facts.pause,
        checkpoint=facts.checkpoint,
        gpus=facts.gpus,
    )


def _registration(
    settings: NodeSettings, machine: Machine, reports: list[RuntimeReport], node_url: str, agent_version: str
) -> RegisterRequest:
    return RegisterRequest(
        node_url=node_url,
        instance=settings.instance,
        agent_version=agent_version,
        total=machine.total(),
        runtimes=reports,
        labels=settings.labels,
        stages=boot_stages(settings.boot_stages_file),
    )


def agent_version() -> str:
    """Version of the installed distribution; ``unknown`` in a checkout that is not installed."""
    try:
        return version("sandbox-fleet")
    except PackageNotFoundError:
        return "unknown"
