"""All services of one gateway, put together and run."""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import IO, Final, Self

from sqlmodel import Session

from gateway.bundle import BundleService
from gateway.core.model import Node, Sandbox
from gateway.core.node_health import HeartbeatLimits
from gateway.core.transitions import UNSETTLED
from gateway.errors import ApiError, GatewayStartError
from gateway.services.audit import AuditLog
from gateway.services.capacity import CapacityService, PreparedService
from gateway.services.controllers import Controllers, NodeOrders, ServiceContext
from gateway.services.expiry import Activity, Reaper
from gateway.services.hearing import Hearing
from gateway.services.node_credentials import NodeDirectory, lock_state, node_secret
from gateway.services.node_monitor import NodeMonitor
from gateway.services.nodes import NodeService
from gateway.services.policies import PolicyFile
from gateway.services.route_cache import RouteCache
from gateway.services.sandboxes import SandboxService
from gateway.services.scheduler import Scheduler
from gateway.services.tasks import AsyncClock, Background, NewId, SystemClock, random_id
from gateway.services.tokens import TokenService
from gateway.services.unit_of_work import Peers, UnitOfWork
from gateway.services.usage import UsageService
from gateway.settings import GatewaySettings
from gateway.store import nodes, sandboxes
from gateway.store.audit_files import AuditFiles
from gateway.store.db import Database
from gateway.store.failures import disk_full
from gateway.wire import limits
from gateway.wire.errors import ErrorCode
from gateway.wire.settings import ConfigurationError
from gateway.wire.states import ENDED, SandboxState

log = logging.getLogger(__name__)

RESERVE_RETRY: Final = 5.0
"""Seconds between two attempts to make the disk's reserve whole again."""


READY_SECONDS: Final = 1.0
"""For so long the answer of one probe is everybody's."""
READY_WAIT: Final = 2.0
"""Seconds that a probe is waited for: a balancer does not wait much longer."""


class Readiness:
    """Tries whether the store takes a write: one probe at a time, however many ask."""

    def __init__(self, db: Database, background: Background, clock: AsyncClock) -> None:
        self._db = db
        self._background = background
        self._clock = clock
        self._probe: asyncio.Task[ApiError | None] | None = None
        self._ended = -math.inf

    async def check(self) -> None:
        """Return when a write was taken, `READY_SECONDS` ago at most.

        Raises:
            ApiError: as `Database.probe`; ``BUSY`` also when nothing was taken within `READY_WAIT`.
        """
        probe = self._probe
        if probe is None or (probe.done() and self._clock.monotonic() >= self._ended + READY_SECONDS):
            probe = self._probe = self._background.start(self._try(), "readiness")
        done, _ = await asyncio.wait({probe}, timeout=READY_WAIT)
        if not done:
            message = f"the gateway's database has taken no write for {READY_WAIT:g} s; try again"
            raise ApiError(ErrorCode.BUSY, message, retry_after=READY_WAIT)
        if (refusal := probe.result()) is not None:
            raise refusal

    async def _try(self) -> ApiError | None:
        try:
            await self._db.probe()
        except ApiError as error:
            return error
        finally:
            self._ended = self._clock.monotonic()
        return None


@dataclass(frozen=True)
class Internals:
    """What works behind the services."""

    db: Database
    lock: IO[str]
    context: ServiceContext
    controllers: Controllers
    reaper: Reaper
    node_monitor: NodeMonitor
    activity: Activity
    hearing: Hearing
    peers: Peers
    readiness: Readiness

    def subscribe(self) -> None:
        """Subscribe everything that reacts to changes of sandboxes, but for `Activity`."""
        uow, routes, scheduler = self.context.uow, self.context.routes, self.context.scheduler
        for listener in (routes.on_change, scheduler.on_change, self.controllers.on_change, self.reaper.on_change):
            uow.subscribe(listener)
        for listener in (
            routes.on_change,
            scheduler.on_change,
            self.controllers.on_peer_change,
            self.reaper.on_peer_change,
        ):
            uow.subscribe_to_peers(listener)

    async def refill_reserve(self) -> None:
        """Take back what deletes on a full disk have used, for ever: nothing tells when there is room again."""
        while True:
            await self.context.clock.sleep(RESERVE_RETRY)
            await self.db.keep_reserve()

    def loops(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """Return the endless loops of the background by name."""
        loops: dict[str, Callable[[], Awaitable[None]]] = {
            "scheduler": self.context.scheduler.run,
            "ttls": self.reaper.ttls.run,
            "leases": self.reaper.leases.run,
            "housekeeping": self.reaper.housekeep,
            "node monitor": self.node_monitor.run,
            "activity": self.activity.run,
            "hearing": self.hearing.run,
            "disk reserve": self.refill_reserve,
        }
        if self.db.shared:
            loops |= {"change feed": self.peers.follow_changes, "takeover": self.peers.take_over}
        return loops


@dataclass(frozen=True)
class Services:
    """What the HTTP room calls. ``async with build(...) as services:`` starts and stops the background work."""

    sandboxes: SandboxService
    nodes: NodeService
    capacity: CapacityService
    prepared: PreparedService
    tokens: TokenService
    policies: PolicyFile
    bundle: BundleService
    audit: AuditLog
    usage: UsageService
    internals: Internals

    async def ready(self) -> None:
        """Return when the store takes a write, or has taken one a moment ago.

        Raises:
            ApiError: ``BUSY`` or ``DISK_FULL``.
        """
        await self.internals.readiness.check()

    async def require_room(self) -> None:
        """Return when the disk's reserve is whole, so that something new may be made.

        Raises:
            ApiError: ``DISK_FULL``.
        """
        if not await self.internals.db.keep_reserve():
            raise disk_full(
                "nothing new is made, because the disk of the gateway's database is full: what is left is for deletes,"
                " pauses and revocations; delete what is no longer needed, or free space there"
            )

    async def __aenter__(self) -> Self:
        """Start: unsettled sandboxes get their controllers again, nodes their full grace period."""
        internals, uow = self.internals, self.internals.context.uow
        internals.subscribe()
        if not await internals.db.keep_reserve():
            log.warning(
                "the disk of the gateway's database has no room for its reserve; nothing new is made until it has"
            )
        known_nodes, unfinished = await internals.db.read(_unfinished)
        for node in known_nodes:
            internals.node_monitor.heartbeat(node)
        for sandbox in unfinished:
            uow.publish(sandbox)
        # Only what changes from now on is activity; the rows say when the others were last used.
        uow.subscribe(internals.activity.on_change)
        uow.subscribe(self.audit.on_change)
        await self.audit.started()
        for name, loop in {**internals.loops(), "audit log": self.audit.run, "policy file": self.policies.run}.items():
            internals.context.background.keep(loop, name)
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Stop all background tasks and close the store; rows keep what was left undone."""
        await self.internals.context.background.stop()
        try:
            await self.internals.activity.flush()
        except ApiError as error:
            log.warning("the last uses of sandboxes were not written: %s", error.message)
        finally:
            await self.audit.flush()
            self.close()

    def close(self) -> None:
        """Close the store; also the way out for services that were built and never started."""
        self.audit.close()
        self.internals.db.close()
        self.internals.lock.close()


def build(
    settings: GatewaySettings,
    orders: NodeOrders,
    clock: AsyncClock | None = None,
    new_id: NewId = random_id,
    open_database: Callable[[str], Database] = Database.open,
) -> Services:
    """Return the services over the database of ``settings``, which is made or migrated first (blocking).

    Args:
        settings: of this gateway.
        orders: gives orders to nodes.
        clock: ``None`` takes the machine's.
        new_id: returns a new name at each call.
        open_database: opens the database at a URL.

    Raises:
        gateway.errors.StoreError: newer schema, unreachable, not writable, full disk, or in use by another gateway.
        gateway.errors.GatewayStartError: the policy file is wrong.
    """
    clock = clock or SystemClock()
    policies = _policies(settings, clock)
    lock = lock_state(settings.state_dir)
    try:
        secret = node_secret(settings.state_dir)
        db = _open(settings, open_database)
    except BaseException:
        lock.close()
        raise
    context = _context(db, secret, orders, clock, new_id)
    uow = context.uow
    peers, readiness = Peers(uow, clock, settings), Readiness(db, context.background, clock)
    hearing = Hearing(db, clock, settings.heartbeat_interval)
    activity = Activity(db, clock, hearing)
    reaper = Reaper(uow, activity, clock, settings, hearing)
    heartbeat_limits = HeartbeatLimits(settings.unreachable_after, settings.lost_after)
    node_monitor = NodeMonitor(uow, clock, new_id, heartbeat_limits, hearing)
    token_service = TokenService(db, clock, new_id)
    return Services(
        sandboxes=SandboxService(context, activity, reaper, settings),
        nodes=NodeService(context, node_monitor, reaper, token_service, settings),
        capacity=CapacityService(db, clock, context.scheduler),
        prepared=PreparedService(db, clock, new_id),
        tokens=token_service,
        policies=policies,
        bundle=BundleService(settings.bundle_path),
        audit=AuditLog(audit_files(settings), clock),
        usage=UsageService(db),
        internals=Internals(
            db, lock, context, Controllers(context), reaper, node_monitor, activity, hearing, peers, readiness
        ),
    )


def _open(settings: GatewaySettings, open_database: Callable[[str], Database]) -> Database:
    db = open_database(settings.url)
    db.want_reserve(settings.reserve_mb * limits.MIB)
    try:
        db.hear_notices_on(settings.database_direct_url)
    except BaseException:
        db.close()
        raise
    return db


def _policies(settings: GatewaySettings, clock: AsyncClock) -> PolicyFile:
    try:
        return PolicyFile(settings.policy_file, clock)
    except ConfigurationError as error:
        raise GatewayStartError(f"{error}; correct it, 'sandboxes policy show' reads it as the gateway does") from error


def audit_files(settings: GatewaySettings) -> AuditFiles:
    """Return the files of the audit log of ``settings``."""
    return AuditFiles(
        settings.state_dir / "audit", max_bytes=settings.audit_max_mb * limits.MIB, days=settings.audit_days
    )


def _context(db: Database, secret: bytes, orders: NodeOrders, clock: AsyncClock, new_id: NewId) -> ServiceContext:
    background = Background(clock)
    uow = UnitOfWork(db, background)
    return ServiceContext(
        uow=uow,
        orders=orders,
        directory=NodeDirectory(db, secret),
        routes=RouteCache(clock),
        scheduler=Scheduler(uow, clock),
        background=background,
        clock=clock,
        new_id=new_id,
    )


def _unfinished(session: Session) -> tuple[list[Node], list[Sandbox]]:
    """Return all nodes; and all sandboxes that something will still happen to, by an order or by a deadline."""
    present = sandboxes.in_states(session, set(SandboxState) - {SandboxState.DELETED})
    return nodes.present(session), [
        row for row in present if row.state in UNSETTLED | ENDED or row.expires_at is not None
    ]
