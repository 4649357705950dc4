"""What comes before anything is started: the root is locked, the port is taken, the engines are tried.

Each failure is one sentence, and leaves nothing behind.
"""

import contextlib
import fcntl
import logging
import socket
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from gateway.wire.closed_ranges import METADATA, AddressPolicy, IpAddress
from gateway.wire.sandboxes import RuntimeName
from node_agent.errors import RuntimeFailure
from node_agent.host.ballast import Ballast
from node_agent.host.conntrack import connection_share
from node_agent.host.firewall import FirewallRules
from node_agent.host.image_budget import ImageBudget
from node_agent.host.machine import most_sandboxes
from node_agent.runtime.base import RuntimeFacts, SandboxRuntime
from node_agent.settings import NodeSettings

log = logging.getLogger(__name__)

LEAST_DISK: Final = 64 * 1024 * 1024  # below this nothing new can begin
BACKLOG: Final = 1024

Factory = Callable[[NodeSettings], SandboxRuntime]
ProbedEngines = Mapping[RuntimeName, tuple[SandboxRuntime, RuntimeFacts]]


class NodeStartError(Exception):
    """The agent cannot start; the sentence says why and what to do."""


@contextlib.contextmanager
def hold_root(root: Path, *, full_disk_is_fine: bool = False) -> Iterator[None]:
    """Make the root and hold its lock.  The kernel releases it when this process dies by any means.

    Args:
        root: directory of everything that the node keeps.
        full_disk_is_fine: whether a full disk is no failure, as for a cleanup.  It is none either where sandboxes are:
            somebody has to serve and to delete them.

    Raises:
        NodeStartError: it cannot be made or written, its disk is full, or another agent runs over it.
    """
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        ballast = Ballast(root)
        ballast.keep()
        has_sandboxes = next(root.glob("*/sandboxes/*"), None) is not None
        if not (full_disk_is_fine or has_sandboxes) and ballast.free() < LEAST_DISK:
            raise NodeStartError(
                f"the disk of {root} is full: less than {LEAST_DISK >> 20} MiB are free; make room first"
            )
        path = root / "agent.lock"
        path.touch(mode=0o600)
        lock = path.open("a+")
    except OSError as error:
        raise NodeStartError(f"the root {root} cannot be used: {error.strerror or error}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise NodeStartError(f"another node agent runs over {root}; stop it, or choose another root") from error
        yield


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; connections wait in it until the server takes them.

    Raises:
        NodeStartError: the address cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named, because asyncio turns Nagle off only on sockets that say they are TCP; with it, answers wait for 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise NodeStartError(
            f"cannot listen on {host} port {port}: {error.strerror or error}; stop what listens there, or set port"
        ) from error
    return listener


def node_url(settings: NodeSettings, listener: socket.socket) -> str:
    """Return the URL at which the gateway reaches this node."""
    if settings.node_url is not None:
        return settings.node_url
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"http://{host}:{listener.getsockname()[1]}"


# -- engines ----------------------------------------------------------------------------------------------------------
# The module of each is loaded only when it is wanted: a node that offers runsc alone needs nothing of Docker's.


def firewall_rules(settings: NodeSettings) -> FirewallRules:
    """Return what the firewall of this node's sandboxes lets through."""
    guarded = METADATA | _addresses_of(settings.gateway_url)
    addresses = AddressPolicy(added=settings.closed_ranges, opened=settings.open_ranges, guarded=guarded)
    connections = settings.max_connections or connection_share(most_sandboxes(settings))
    return FirewallRules(addresses, connections, settings.max_connections_per_second)


def _addresses_of(url: str) -> frozenset[IpAddress]:
    """Return the addresses of the host in ``url``; none where its name cannot be resolved now."""
    host = urlsplit(url).hostname or ""
    try:
        found = {entry[4][0] for entry in socket.getaddrinfo(host, None)}
    except OSError as error:
        log.warning("%s cannot be resolved (%s): only its range closes the gateway to sandboxes", host, error)
        return frozenset()
    return frozenset(ip_address(str(address).partition("%")[0]) for address in found)


def image_budget(settings: NodeSettings) -> ImageBudget:
    """Return what images may take of the disk, one for all engines of a node; its limit is set once it is measured."""
    return _image_budget(settings.root)


@cache
def _image_budget(root: Path) -> ImageBudget:
    return ImageBudget(root / "images")


def _runsc(settings: NodeSettings) -> SandboxRuntime:
    from node_agent.runtime.runsc.runtime import RunscRuntime

    return RunscRuntime(
        settings.root,
        tag=settings.tag,
        base_url=settings.docker_url,
        rules=firewall_rules(settings),
        budget=image_budget(settings),
    )


def _docker(settings: NodeSettings) -> SandboxRuntime:
    from node_agent.runtime.docker_engine.runtime import DockerRuntime

    return DockerRuntime(
        settings.root,
        tag=settings.tag,
        base_url=settings.docker_url,
        rules=firewall_rules(settings),
        allow_runc_without_user_namespaces=settings.allow_runc_without_user_namespaces,
        budget=image_budget(settings),
    )


FACTORIES: Final[Mapping[RuntimeName, Factory]] = {"runsc": _runsc, "docker": _docker}


def probe_engines(settings: NodeSettings, factories: Mapping[RuntimeName, Factory]) -> ProbedEngines:
    """Return the wanted engines that work here, in the wanted order.

    Raises:
        NodeStartError: none works.
    """
    working: dict[RuntimeName, tuple[SandboxRuntime, RuntimeFacts]] = {}
    problems: list[str] = []
    for name in settings.runtimes:
        try:
            runtime = factories[name](settings)
            facts = runtime.probe()
        except RuntimeFailure as failure:
            problems.append(f"{name}: {failure.message}")
            log.warning("the %s runtime is left out: %s", name, failure.message)
            continue
        working[name] = (runtime, facts)
        log.info("the %s runtime works: %s, isolation %s", name, facts.version, ", ".join(facts.isolations))
        for note in facts.notes:
            log.info("%s: %s", name, note)
    if not working:
        raise NodeStartError(
            f"no engine works on this machine: {'; '.join(problems)}; 'sandboxes doctor' shows the cures"
        )
    return working
