"""Observation: one look at listings, nodes and demand, as a frozen `World`."""

import logging
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, wait
from typing import Any, Final, Protocol

from autoscaler.clock import ClockGuard, DaemonClock
from autoscaler.core import backoff
from autoscaler.core.pools import FleetPolicy
from autoscaler.core.states import WITH_NODE
from autoscaler.core.world import DemandItem, Intent, NodeView, ProviderView, World, demand_items
from autoscaler.lanes import GATEWAY, Lanes
from autoscaler.provider_polling import Pace, ProviderPoller
from autoscaler.store.journal import Journal
from autoscaler.throttled_log import ThrottledLog
from gateway.client import GatewayError, GatewayUnreachableError
from gateway.wire.capacity import Ceilings, Demand
from gateway.wire.nodes import BundleManifest, JoinToken, JoinTokenRequest, NodeRecord
from providers.base import ComputeProvider

log = logging.getLogger(__name__)

BUNDLE_SECONDS: Final = 60.0
"""The gateway's bundle is looked up this often."""
BUNDLE_DIGITS: Final = 12
"""Digits of its digest that instances carry in a label."""
NO_GATEWAY: Final = "the gateway cannot be reached, so nothing is scaled"
NO_BUNDLE: Final = "the bundle for new nodes is not known"

Fleet = tuple[list[NodeRecord], Demand]


class GatewayPort(Protocol):
    """What the autoscaler needs of the gateway; `gateway.client.GatewayClient` has it."""

    def demand(self) -> Demand:
        """Return what waits."""

    def nodes(self) -> list[NodeRecord]:
        """Return all nodes that are not gone."""

    def join_token(self, request: JoinTokenRequest) -> JoinToken:
        """Return a token that works once, for one instance."""

    def drain(self, node_id: str, draining: bool = True) -> NodeRecord:
        """Close or open a node."""

    def remove_node(self, node_id: str, *, machine_gone: bool = False) -> NodeRecord:
        """Forget a node."""

    def bundle(self) -> BundleManifest:
        """Return what new nodes install."""

    def put_ceilings(self, ceilings: Ceilings) -> None:
        """Publish the largest nodes that could be bought."""


class Streaks:
    """For how long things have been seen without a break, on monotonic time."""

    def __init__(self) -> None:
        self._since: dict[str, dict[str, float]] = {}

    def update(self, where: str, things: Iterable[str], now: float) -> dict[str, float]:
        """Record a new look at one place, and forget what it lacks.

        Returns:
            The seconds for which each thing of this look was in every look.
        """
        before = self._since.get(where, {})
        self._since[where] = {thing: before.get(thing, now) for thing in things}
        return {thing: now - since for thing, since in self._since[where].items()}


class Observer:
    """Makes a `World` a tick, and remembers what the last one lacked.

    Args:
        providers: by name.
        gateway: for nodes and demand.
        journal: for rows and back-offs.
        clock: for rows and waits.
        guard: decides whether ages can be trusted.
        policy: from which pressure on a node counts, and how long a side resource is left alone.
        pace: how long to wait for what.
    """

    def __init__(
        self,
        providers: Mapping[str, ComputeProvider],
        gateway: GatewayPort,
        journal: Journal,
        clock: DaemonClock,
        guard: ClockGuard,
        *,
        policy: FleetPolicy,
        pace: Pace = Pace(),
    ) -> None:
        self._poller = ProviderPoller(providers, clock, pace)
        self._gateway = gateway
        self._journal = journal
        self._clock = clock
        self._guard = guard
        self._pools = {pool.name: pool for pool in policy.pools}
        self._leftover_seconds = policy.orphan_seconds
        self._pace = pace
        self._synced_at: float | None = None
        self._pressed = Streaks()
        self._pressed_at: dict[str, float] = {}
        self._leftovers = Streaks()
        self._missing: frozenset[str] = frozenset()
        self._orphans: dict[str, frozenset[str]] = {}
        self._unknown = Streaks()
        self._unknown_nodes: Mapping[str, float] = {}
        self._installs = any(pool.installs for pool in policy.pools)
        self._bundle = ""
        self._bundle_due_at = float("-inf")
        self._log = ThrottledLog(log, clock.monotonic)

    def observe(self, lanes: Lanes) -> World:
        """Look at every provider and the gateway, all at once.  A failing or slow one of them raises nothing.

        Args:
            lanes: where they are called.
        """
        settled = self._guard.check()
        fetched = lanes.start(GATEWAY, self._fetch)
        begun = self._poller.begin(lanes)
        # Rows after that: what was done in these lanes before is written down, and while they look nothing is done.
        intents, backoffs = self._journal.open_intents(), self._journal.backoffs()
        jumped = backoffs.get(backoff.CLOCK)
        awaited: list[Future[Any]] = [*begun, fetched] if fetched is not None else [*begun]
        wait(awaited, self._pace.look_seconds)
        nodes, waiting, builders = self._fleet(fetched)
        views = self._poller.views()
        world = World(
            intents=intents,
            gone=self._journal.gone_names(),
            providers=views,
            nodes=nodes,
            waiting=waiting,
            bundle=self._bundle,
            builders=builders,
            backoffs=backoffs,
            learned=self._journal.learned(),
            spent=self._journal.spent(self._clock.now()),
            clock_settled=settled and (jumped is None or self._clock.now() >= jumped.until),
            synced=self._is_synced(intents, nodes, views),
            missing_before=self._missing,
            orphans_before=frozenset().union(*self._orphans.values()),
            unknown_nodes_before=self._unknown_nodes,
            leftovers_before=self._old_leftovers(views),
        )
        self._remember(world)
        return world

    def untrusted_seconds(self) -> float:
        """Return for how many seconds ages prove nothing after a clock jump that this process has seen."""
        return self._guard.untrusted_seconds()

    def save_clock(self) -> None:
        """Tell the next process where the clocks stood at this look."""
        self._guard.save()

    def _is_synced(
        self, intents: tuple[Intent, ...], nodes: tuple[NodeView, ...] | None, views: Mapping[str, ProviderView]
    ) -> bool:
        """Return whether one heartbeat period has passed since the gateway first answered.

        An empty fleet is in sync at once.
        """
        now = self._clock.monotonic()
        if self._synced_at is None and nodes is not None:
            is_empty = not intents and not nodes and all(view.instances == () for view in views.values())
            self._synced_at = now if is_empty else now + self._pace.heartbeat_seconds
        return self._synced_at is not None and now >= self._synced_at

    def _old_leftovers(self, views: Mapping[str, ProviderView]) -> frozenset[str]:
        """Return the side resources that every complete listing has named for long enough."""
        now = self._clock.monotonic()
        found: set[str] = set()
        for name, view in views.items():
            if view.instances is not None:
                found |= {
                    each
                    for each, seconds in self._leftovers.update(name, view.leftovers, now).items()
                    if seconds >= self._leftover_seconds
                }
        return frozenset(found)

    def _fetch(self) -> Fleet | str:
        """Return nodes and demand, or why they cannot be had."""
        try:
            found = self._gateway.nodes(), self._gateway.demand()
        except (GatewayError, GatewayUnreachableError) as error:
            return str(error)
        self._refresh_bundle()
        return found

    def _refresh_bundle(self) -> None:
        """Look up what new nodes install, when it is due; a failure leaves the last answer standing."""
        now = self._clock.monotonic()
        if not self._installs or now < self._bundle_due_at:
            return
        self._bundle_due_at = now + BUNDLE_SECONDS
        try:
            self._bundle = self._gateway.bundle().sha256[:BUNDLE_DIGITS]
        except (GatewayError, GatewayUnreachableError) as error:
            self._log.report(NO_BUNDLE, str(error))
        else:
            self._log.resolve(NO_BUNDLE)

    def _fleet(
        self, fetched: "Future[Fleet | str] | None"
    ) -> tuple[tuple[NodeView, ...] | None, tuple[DemandItem, ...], int]:
        """Return nodes and demand, or neither: a plan needs both of one moment."""
        if fetched is None or not fetched.done():
            found: Fleet | str = f"no answer within {self._pace.look_seconds:.0f} s"
        else:
            found = fetched.result()
        if isinstance(found, str):
            self._log.report(NO_GATEWAY, found)
            return None, (), 0
        self._log.resolve(NO_GATEWAY)
        records, demand = found
        lasting = self._pressure(records)
        nodes = tuple(
            NodeView.of(record, lasting.get(record.id, 0.0), self._pressed_at.get(record.id)) for record in records
        )
        return nodes, demand_items(demand), demand.prepared_builder_count

    def _pressure(self, records: list[NodeRecord]) -> dict[str, float]:
        """Return for how many seconds each node has been under pressure without a break."""
        now, pressed = self._clock.now(), set()
        for record in records:
            pool = self._pools.get(record.pool)
            shares = (record.pressure.cpu, record.pressure.memory, record.pressure.io)
            if pool is not None and max((share for share in shares if share is not None), default=0.0) >= (
                pool.pressure_percent
            ):
                pressed.add(record.id)
                self._pressed_at[record.id] = now
        known = {record.id for record in records}
        self._pressed_at = {node: at for node, at in self._pressed_at.items() if node in known}
        return self._pressed.update("nodes", pressed, self._clock.monotonic())

    def _remember(self, world: World) -> None:
        """Keep what this look lacked, for the next one; what could not be seen keeps its last mark."""
        missing: set[str] = set()
        unknown: set[str] = set()
        registered = {node.instance for node in world.nodes or ()}
        for intent in world.intents:
            if _is_missing(intent, world):
                missing.add(intent.sighting)
            was_unknown = intent.operation_id in world.unknown_nodes_before
            has_none = intent.name not in registered if world.nodes is not None else was_unknown
            if intent.state in WITH_NODE and has_none:
                unknown.add(intent.operation_id)
        for name in world.listed:
            self._orphans[name] = frozenset(instance.id for instance in world.orphans(name))
        self._missing = frozenset(missing)
        self._unknown_nodes = self._unknown.update("nodes", unknown, self._clock.monotonic())


def _is_missing(intent: Intent, world: World) -> bool:
    if intent.provider not in world.listed:
        return intent.sighting in world.missing_before
    return not world.listed[intent.provider].of(intent.operation_id)
