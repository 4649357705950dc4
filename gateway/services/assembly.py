"""All services of one gateway, put together and run."""

import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Self

from sqlmodel import Session

from gateway.core.model import Node, Sandbox
from gateway.core.node_health import HeartbeatLimits
from gateway.core.transitions import UNSETTLED
from gateway.errors import ApiError
from gateway.services.bundle import BundleService
from gateway.services.capacity import CapacityService, PreparedService
from gateway.services.controllers import Controllers, NodeOrders, ServiceContext
from gateway.services.expiry import Activity, Expiry
from gateway.services.node_credentials import NodeDirectory, lock_state, node_secret
from gateway.services.node_monitor import NodeMonitor
from gateway.services.nodes import NodeService
from gateway.services.route_cache import RouteCache
from gateway.services.sandboxes import SandboxService
from gateway.services.scheduler import Scheduler
from gateway.services.tasks import AsyncClock, Background, NewId, SystemClock
from gateway.services.tokens import TokenService
from gateway.services.unit_of_work import Peers, UnitOfWork
from gateway.settings import GatewaySettings
from gateway.store import nodes, sandboxes, tokens
from gateway.store.db import Database
from gateway.wire.states import SandboxState

log = logging.getLogger(__name__)


def random_id() -> str:
    """A name that nobody else has."""
    return uuid.uuid4().hex


@dataclass(frozen=True)
class Internals:
    """What runs behind the services."""

    db: Database
    lock: IO[str]
    context: ServiceContext
    controllers: Controllers
    expiry: Expiry
    node_monitor: NodeMonitor
    activity: Activity
    peers: Peers


@dataclass(frozen=True)
class Services:
    """What the HTTP edge calls.  ``async with build(...) as services:`` starts and stops the background work."""

    sandboxes: SandboxService
    nodes: NodeService
    capacity: CapacityService
    prepared: PreparedService
    tokens: TokenService
    bundle: BundleService
    internals: Internals

    async def ready(self) -> None:
        """Returns when the store answers.

        Raises:
            ApiError: ``BUSY`` or ``DISK_FULL``.
        """
        await self.internals.db.read(lambda session: tokens.get(session, ""))

    async def __aenter__(self) -> Self:
        """Starts: unsettled sandboxes get their controllers again, nodes their full grace period."""
        internals, context = self.internals, self.internals.context
        for reacts in (context.routes, context.scheduler, internals.controllers, internals.expiry):
            context.uow.listen(reacts.on_change)
        for hears in (context.routes.on_change, context.scheduler.on_change):
            context.uow.listen_to_others(hears)
        for follows in (internals.controllers, internals.expiry):
            context.uow.listen_to_others(follows.on_others_change)
        known_nodes, known_sandboxes = await internals.db.read(_unfinished)
        for node in known_nodes:
            internals.node_monitor.heard(node)
        for sandbox in known_sandboxes:
            context.uow.publish(sandbox)
        # Only what changes from now on is activity; the rows say when the others were last used.
        context.uow.listen(internals.activity.on_change)
        for name, loop in {
            "scheduler": context.scheduler.run,
            "expiry": internals.expiry.run,
            "housekeeping": internals.expiry.housekeep,
            "node_monitor": internals.node_monitor.run,
            "activity": internals.activity.run,
            **({"peers": internals.peers.listen, "takeover": internals.peers.take_over} if internals.db.shared else {}),
        }.items():
            context.background.keep(loop, name)
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Stops all background tasks and closes the store; rows keep what was left undone."""
        await self.internals.context.background.stop()
        try:
            await self.internals.activity.flush()
        except ApiError as error:
            log.warning("the last uses of sandboxes were not written: %s", error.message)
        finally:
            self.close()

    def close(self) -> None:
        """Closes the store; also the way out for services that were built and never started."""
        self.internals.db.close()
        self.internals.lock.close()


def build(
    settings: GatewaySettings,
    node_gateway: NodeOrders,
    clock: AsyncClock | None = None,
    new_id: NewId = random_id,
    open_database: Callable[[str], Database] = Database.open,
) -> Services:
    """The services over the database of ``settings``: it is made or migrated first (blocking).

    Raises:
        gateway.store.db.StoreError: newer schema, unreachable, not writable, full disk, or in use by another gateway;
            one clear sentence.
    """
    lock = lock_state(settings.state_dir)
    try:
        secret = node_secret(settings.state_dir)
        db = open_database(settings.url)
    except BaseException:
        lock.close()
        raise
    clock = clock or SystemClock()
    background = Background(clock)
    uow = UnitOfWork(db, background)
    scheduler = Scheduler(uow, clock)
    routes = RouteCache(clock)
    context = ServiceContext(uow, node_gateway, NodeDirectory(db, secret), routes, scheduler, background, clock, new_id)
    activity = Activity(db, clock)
    expiry = Expiry(uow, clock, settings)
    node_monitor = NodeMonitor(uow, clock, new_id, HeartbeatLimits(settings.unreachable_after, settings.lost_after))
    token_service = TokenService(db, clock, new_id)
    return Services(
        sandboxes=SandboxService(context, activity, expiry, settings),
        nodes=NodeService(context, node_monitor, activity, token_service, settings),
        capacity=CapacityService(db, clock, scheduler),
        prepared=PreparedService(db, clock, new_id),
        tokens=token_service,
        bundle=BundleService(settings.bundle_path),
        internals=Internals(db, lock, context, Controllers(context), expiry, node_monitor, activity, Peers(uow, clock)),
    )


def _unfinished(session: Session) -> tuple[list[Node], list[Sandbox]]:
    """All nodes; and all sandboxes that something will still happen to, by an order or by a deadline."""
    open_rows = sandboxes.in_states(session, set(SandboxState) - {SandboxState.DELETED})
    return nodes.present(session), [row for row in open_rows if row.state in UNSETTLED or row.expires_at is not None]
