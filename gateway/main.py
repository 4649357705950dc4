"""Put a gateway together and serve it: the only place that knows all its parts."""

import asyncio
import contextlib
import logging
import resource
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

import uvloop

from gateway.errors import ApiError, GatewayStartError
from gateway.http.app import MAX_REQUESTS, build_app
from gateway.http.server import GatewayServer
from gateway.node_client import NodeClient
from gateway.services.assembly import Services, build
from gateway.services.tokens import TokenService
from gateway.settings import GatewaySettings

_log = logging.getLogger("gateway")

RESERVED_FILES: Final = 512  # descriptors for the database, logs, idle connections and calls that are always let in


def run(settings: GatewaySettings) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        GatewayStartError: the port, the state directory, the database or the tokens do not allow it; nothing runs.
    """
    allowed = most_requests(_raise_open_files())
    if allowed < MAX_REQUESTS:
        _log.warning("the limit of open files lets in %d requests at once; raise it (ulimit -n) for more", allowed)
    with _listener(settings.host, settings.port) as listener:
        node_client = NodeClient()
        services = build(settings, node_client)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            try:
                runner.run(_serve(services, node_client, listener, allowed))
            except ApiError as error:
                # Once it serves, every refusal is some call's, so this one is the start's: its database has gone since.
                raise GatewayStartError(f"the gateway cannot start: {error.message}") from error


def most_requests(open_files: int) -> int:
    """Return how many requests may be in flight with so many descriptors: one that goes on to a node needs two."""
    return max(1, min(MAX_REQUESTS, (open_files - RESERVED_FILES) // 2))


def _raise_open_files() -> int:
    """Raise the limit of descriptors as far as is of use and the system allows; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    useful = 2 * MAX_REQUESTS + RESERVED_FILES
    wanted = useful if hard == resource.RLIM_INFINITY else min(useful, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return useful if soft == resource.RLIM_INFINITY else soft


@contextlib.contextmanager
def _listener(host: str, port: int) -> Iterator[socket.socket]:
    """Bind the gateway's address before anything else is touched; the server listens on the socket later."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named, because asyncio turns Nagle off only on sockets that say they are TCP; with it, answers wait for 40 ms.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind((host, port))
        except OSError as error:
            raise GatewayStartError(
                f"cannot listen on {host} port {port}: {error.strerror or error};"
                " stop what holds it, or choose another with --port"
            ) from error
        yield made


async def _serve(services: Services, node_client: NodeClient, listener: socket.socket, allowed: int) -> None:
    try:
        await _require_token(services.tokens)
        await services.internals.context.directory.require_agreement()
    except BaseException:
        services.close()
        raise
    async with node_client, services:
        await GatewayServer(build_app(services, node_client, max_requests=allowed)).serve(sockets=[listener])
    _log.info("the gateway has stopped")


async def _require_token(tokens: TokenService) -> None:
    """Refuse to start without a token: a gateway that nobody can use helps nobody, and an open one is worse."""
    records = (await tokens.all()).tokens
    now = datetime.now(UTC)
    if not any(
        record.revoked_at is None and (record.expires_at is None or record.expires_at > now) for record in records
    ):
        raise GatewayStartError(
            "there is no token yet, and without one the gateway does not start;"
            " make the first with: sandboxes token create --name admin --scope operator"
        )
