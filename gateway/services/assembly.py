"""All services of one gateway, put together and run."""

import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Self

from sqlmodel import Session

from gateway.core.model import Node, Sandbox
from gateway.core.node_health import Patience
from gateway.core.transitions import UNSETTLED
from gateway.errors import ApiError
from gateway.services.activity import Activity
from gateway.services.bundle import BundleService
from gateway.services.capacity import CapacityService
from gateway.services.controllers import Drivers, Rim
from gateway.services.directory import Directory
from gateway.services.expiry import Expiry
from gateway.services.node_credentials import lock_state, node_secret
from gateway.services.node_monitor import Silence
from gateway.services.nodes import NodeService
from gateway.services.peers import Neighbours
from gateway.services.ports import Clock, NewId, NodeGateway, SystemClock
from gateway.services.prepared import PreparedService
from gateway.services.route_cache import KnownRoutes
from gateway.services.sandboxes import SandboxService
from gateway.services.scheduler import Dispatcher
from gateway.services.tasks import Background
from gateway.services.tokens import TokenService
from gateway.services.unit_of_work import Ledger
from gateway.settings import GatewaySettings
from gateway.store import nodes, sandboxes, tokens
from gateway.store.db import Database
from gateway.wire.states import SandboxState

log = logging.getLogger(__name__)


def random_id() -> str:
    """A name that nobody else has."""
    return uuid.uuid4().hex


@dataclass(frozen=True)
class Works:
    """What runs behind the services."""

    db: Database
    lock: IO[str]
    rim: Rim
    drivers: Drivers
    expiry: Expiry
    silence: Silence
    activity: Activity
    neighbours: Neighbours


@dataclass(frozen=True)
class Services:
    """What the HTTP edge calls.  ``async with build(...) as services:`` starts and stops the background work."""

    sandboxes: SandboxService
    nodes: NodeService
    capacity: CapacityService
    prepared: PreparedService
    tokens: TokenService
    bundle: BundleService
    works: Works

    async def ready(self) -> None:
        """Returns when the store answers.

        Raises:
            ApiError: ``BUSY`` or ``DISK_FULL``.
        """
        await self.works.db.read(lambda session: tokens.get(session, ""))

    async def __aenter__(self) -> Self:
        """Starts: unsettled sandboxes get their drivers again, nodes their full grace period."""
        works, rim = self.works, self.works.rim
        for reacts in (rim.routes, rim.dispatcher, works.drivers, works.expiry):
            rim.ledger.listen(reacts.on_change)
        for hears in (rim.routes.on_change, rim.dispatcher.on_change):
            rim.ledger.listen_to_others(hears)
        for follows in (works.drivers, works.expiry):
            rim.ledger.listen_to_others(follows.on_others_change)
        known_nodes, known_sandboxes = await works.db.read(_unfinished)
        for node in known_nodes:
            works.silence.heard(node)
        for sandbox in known_sandboxes:
            rim.ledger.publish(sandbox)
        # Only what changes from now on is activity; the rows say when the others were last used.
        rim.ledger.listen(works.activity.on_change)
        for name, loop in {
            "dispatcher": rim.dispatcher.run,
            "expiry": works.expiry.run,
            "housekeeping": works.expiry.housekeep,
            "silence": works.silence.run,
            "activity": works.activity.run,
            **(
                {"neighbours": works.neighbours.listen, "takeover": works.neighbours.take_over}
                if works.db.shared
                else {}
            ),
        }.items():
            rim.background.keep(loop, name)
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Stops all background tasks and closes the store; rows keep what was left undone."""
        await self.works.rim.background.stop()
        try:
            await self.works.activity.flush()
        except ApiError as error:
            log.warning("the last uses of sandboxes were not written: %s", error.message)
        finally:
            self.close()

    def close(self) -> None:
        """Closes the store; also the way out for services that were built and never started."""
        self.works.db.close()
        self.works.lock.close()


def build(
    settings: GatewaySettings,
    node_gateway: NodeGateway,
    clock: Clock | None = None,
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
    ledger = Ledger(db, background)
    dispatcher = Dispatcher(ledger, clock)
    routes = KnownRoutes(clock)
    rim = Rim(ledger, node_gateway, Directory(db, secret), routes, dispatcher, background, clock, new_id)
    activity = Activity(db, clock)
    expiry = Expiry(ledger, clock, settings)
    silence = Silence(ledger, clock, new_id, Patience(settings.unreachable_after, settings.lost_after))
    token_service = TokenService(db, clock, new_id)
    return Services(
        sandboxes=SandboxService(rim, activity, expiry, settings),
        nodes=NodeService(rim, silence, activity, token_service, settings),
        capacity=CapacityService(db, clock, dispatcher),
        prepared=PreparedService(db, clock, new_id),
        tokens=token_service,
        bundle=BundleService(settings.bundle_path),
        works=Works(db, lock, rim, Drivers(rim), expiry, silence, activity, Neighbours(ledger, clock)),
    )


def _unfinished(session: Session) -> tuple[list[Node], list[Sandbox]]:
    """All nodes; and all sandboxes that something will still happen to, by an order or by a deadline."""
    open_rows = sandboxes.in_states(session, set(SandboxState) - {SandboxState.DELETED})
    return nodes.present(session), [row for row in open_rows if row.state in UNSETTLED or row.expires_at is not None]
