"""One look at everything: listings, nodes and demand, made into a frozen `World`."""

import logging
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, wait
from typing import Any, Final, Protocol

from autoscaler.clock import Clock, ClockGuard
from autoscaler.core import backoff
from autoscaler.core.pools import FleetPolicy
from autoscaler.core.states import WITH_NODE
from autoscaler.core.world import DemandItem, Intent, NodeView, ProviderView, World, demand_items
from autoscaler.lanes import GATEWAY, Lanes
from autoscaler.provider_polling import Lookout
from autoscaler.provider_polling import Pace as Pace
from autoscaler.store.journal import Journal
from autoscaler.throttled_log import Remarks
from gateway.client import GatewayError, GatewayUnreachableError
from gateway.wire.capacity import Ceilings, Demand
from gateway.wire.nodes import BundleManifest, JoinToken, JoinTokenRequest, NodeRecord
from providers.base import ComputeProvider

log = logging.getLogger(__name__)

BUNDLE_SECONDS: Final = 60.0
"""The gateway's bundle is asked for this often."""
BUNDLE_DIGITS: Final = 12
"""Of its digest that instances carry in a label."""
NOT_ASKED: Final = "the gateway cannot be asked, so nothing is scaled"
NO_BUNDLE: Final = "what new nodes install is not known"

Asked = tuple[list[NodeRecord], Demand]


class Lasting:
    """Remembers since when each thing has been seen without a break, on monotonic time."""

    def __init__(self) -> None:
        self._since: dict[str, dict[str, float]] = {}

    def seen(self, where: str, things: Iterable[str], now: float) -> dict[str, float]:
        """Takes a new look at one place; what it lacks is forgotten.

        Returns:
            The seconds for which each thing that it has was there in every look.
        """
        before = self._since.get(where, {})
        self._since[where] = {thing: before.get(thing, now) for thing in things}
        return {thing: now - since for thing, since in self._since[where].items()}


class Gateway(Protocol):
    """What the autoscaler needs of the gateway; `gateway.client.GatewayClient` has it."""

    def demand(self) -> Demand:
        """What waits."""

    def nodes(self) -> list[NodeRecord]:
        """All that are not gone."""

    def join_token(self, request: JoinTokenRequest) -> JoinToken:
        """A token that works once, for one instance."""

    def drain(self, node_id: str, draining: bool = True) -> NodeRecord:
        """Closes or opens a node."""

    def remove_node(self, node_id: str, *, machine_gone: bool = False) -> NodeRecord:
        """Forgets a node."""

    def bundle(self) -> BundleManifest:
        """What new nodes install."""

    def put_ceilings(self, ceilings: Ceilings) -> None:
        """Tells what could be had at most."""


class Observer:
    """Makes a `World` a tick, and keeps in mind what the last one lacked.

    Args:
        policy: from which pressure on a node counts, and how long a side resource is left alone.
        pace: how long it waits for what.
    """

    def __init__(
        self,
        providers: Mapping[str, ComputeProvider],
        gateway: Gateway,
        journal: Journal,
        clock: Clock,
        guard: ClockGuard,
        *,
        policy: FleetPolicy | None = None,
        pace: Pace = Pace(),
    ) -> None:
        self._lookout = Lookout(providers, clock, pace)
        self._gateway = gateway
        self._journal = journal
        self._clock = clock
        self._guard = guard
        self._pools = {pool.name: pool for pool in policy.pools} if policy is not None else {}
        self._leftover_seconds = policy.orphan_seconds if policy is not None else float("inf")
        self._pace = pace
        self._synced_at: float | None = None
        self._pressed = Lasting()
        self._pressed_at: dict[str, float] = {}
        self._left = Lasting()
        self._missing: frozenset[str] = frozenset()
        self._orphans: dict[str, frozenset[str]] = {}
        self._unknown = Lasting()
        self._unknown_nodes: Mapping[str, float] = {}
        self._installs = policy is not None and any(pool.installs for pool in policy.pools)
        self._bundle = ""
        self._bundle_again_at = float("-inf")
        self._remarks = Remarks(log, clock.monotonic)

    def observe(self, lanes: Lanes) -> World:
        """Asks every provider and the gateway, all at once.  Nothing here raises for a failing or slow one of them.

        Args:
            lanes: where they are asked.
        """
        settled = self._guard.is_settled()
        asked = lanes.start(GATEWAY, self._ask)
        begun = self._lookout.begin(lanes)
        # Rows after that: what was done in these lanes before is written down, and while they look nothing is done.
        intents, backoffs = self._journal.open_intents(), self._journal.backoffs()
        jumped = backoffs.get(backoff.CLOCK)
        awaited: list[Future[Any]] = [*begun, asked] if asked is not None else [*begun]
        wait(awaited, self._pace.look_seconds)
        nodes, waiting, builders = self._fleet(asked)
        views = self._lookout.views()
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
            leftovers_before=self._leftovers(views),
        )
        self._remember(world)
        return world

    def clock_rest(self) -> float:
        """Seconds for which ages prove nothing after a jump of the clock that this process has seen."""
        return self._guard.rest()

    def keep_clock(self) -> None:
        """Lets the next process know where the clocks stood at this look."""
        self._guard.keep()

    def _is_synced(
        self, intents: tuple[Intent, ...], nodes: tuple[NodeView, ...] | None, views: Mapping[str, ProviderView]
    ) -> bool:
        """Whether one heartbeat period has passed since the gateway first answered; nothing cannot be out of step."""
        now = self._clock.monotonic()
        if self._synced_at is None and nodes is not None:
            is_bare = not intents and not nodes and all(view.instances == () for view in views.values())
            self._synced_at = now if is_bare else now + self._pace.heartbeat_seconds
        return self._synced_at is not None and now >= self._synced_at

    def _leftovers(self, views: Mapping[str, ProviderView]) -> frozenset[str]:
        """Side resources that every complete listing has named for long enough."""
        now = self._clock.monotonic()
        found: set[str] = set()
        for name, view in views.items():
            if view.instances is not None:
                found |= {
                    each
                    for each, seconds in self._left.seen(name, view.leftovers, now).items()
                    if seconds >= self._leftover_seconds
                }
        return frozenset(found)

    def _ask(self) -> Asked | str:
        """Nodes and demand, or why not."""
        try:
            found = self._gateway.nodes(), self._gateway.demand()
        except (GatewayError, GatewayUnreachableError) as error:
            return str(error)
        self._look_at_bundle()
        return found

    def _look_at_bundle(self) -> None:
        """What new nodes install; a failed answer leaves the last one standing."""
        now = self._clock.monotonic()
        if not self._installs or now < self._bundle_again_at:
            return
        self._bundle_again_at = now + BUNDLE_SECONDS
        try:
            self._bundle = self._gateway.bundle().sha256[:BUNDLE_DIGITS]
        except (GatewayError, GatewayUnreachableError) as error:
            self._remarks.tell(NO_BUNDLE, str(error))
        else:
            self._remarks.over(NO_BUNDLE)

    def _fleet(
        self, asked: "Future[Asked | str] | None"
    ) -> tuple[tuple[NodeView, ...] | None, tuple[DemandItem, ...], int]:
        """Nodes and demand, or nothing of both: a plan needs them of one moment."""
        if asked is None or not asked.done():
            found: Asked | str = f"it has not answered within {self._pace.look_seconds:.0f} s"
        else:
            found = asked.result()
        if isinstance(found, str):
            self._remarks.tell(NOT_ASKED, found)
            return None, (), 0
        self._remarks.over(NOT_ASKED)
        records, demand = found
        lasting = self._pressure(records)
        nodes = tuple(
            NodeView.of(record, lasting.get(record.id, 0.0), self._pressed_at.get(record.id)) for record in records
        )
        return nodes, demand_items(demand), demand.prepared_builder_count

    def _pressure(self, records: list[NodeRecord]) -> dict[str, float]:
        """For how many seconds each node has been under pressure without a break."""
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
        return self._pressed.seen("nodes", pressed, self._clock.monotonic())

    def _remember(self, world: World) -> None:
        """What this look lacked, for the next one.  What could not be seen keeps its last mark."""
        missing: set[str] = set()
        unknown: set[str] = set()
        registered = {node.instance for node in world.nodes or ()}
        for intent in world.intents:
            if self._is_missing(intent, world):
                missing.add(intent.sighting)
            had_node = intent.state in WITH_NODE
            if had_node and (intent.name not in registered if world.nodes is not None else _kept(intent, world)):
                unknown.add(intent.operation_id)
        for name in world.listed:
            self._orphans[name] = frozenset(instance.id for instance in world.orphans(name))
        self._missing = frozenset(missing)
        self._unknown_nodes = self._unknown.seen("nodes", unknown, self._clock.monotonic())

    @staticmethod
    def _is_missing(intent: Intent, world: World) -> bool:
        if intent.provider not in world.listed:
            return intent.sighting in world.missing_before
        return not world.listed[intent.provider].of(intent.operation_id)


def _kept(intent: Intent, world: World) -> bool:
    return intent.operation_id in world.unknown_nodes_before
