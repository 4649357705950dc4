"""One look at everything: listings, nodes and demand, made into a frozen `World`."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from autoscaler.clock import Clock, ClockGuard
from autoscaler.core import backoff
from autoscaler.core.lifecycle import IntentState
from autoscaler.core.lookup import Listed, listed
from autoscaler.core.model import FleetPolicy, Intent, Node, ProviderView, Waiting, World
from autoscaler.core.stopping import strays
from autoscaler.core.views import node_of, wanted
from autoscaler.memory import Lasting
from autoscaler.store.journal import Journal
from gateway.client import GatewayError, GatewayUnreachableError
from gateway.wire.capacity import Ceilings, Demand
from gateway.wire.nodes import JoinToken, JoinTokenRequest, NodeRecord
from providers.base import ComputeProvider, ErrorKind, Offer, ProviderError

log = logging.getLogger(__name__)

OFFERS_SECONDS: Final = 60.0
"""Offers are asked for this often; a failed answer leaves the last ones standing."""


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

    def remove_node(self, node_id: str) -> NodeRecord:
        """Forgets a node."""

    def put_ceilings(self, ceilings: Ceilings) -> None:
        """Tells what could be had at most."""


@dataclass(frozen=True)
class Pace:
    """How long an observer waits for what."""

    heartbeat_seconds: float = 0.0
    """After a start nothing is changed until every node has had this long to be heard of, unless there is none."""
    list_seconds: float = 0.0
    """Between two listings of a provider that counts calls."""


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
        self._providers = providers
        self._gateway = gateway
        self._journal = journal
        self._clock = clock
        self._guard = guard
        self._pools = {pool.name: pool for pool in policy.pools} if policy is not None else {}
        self._leftover_seconds = policy.orphan_seconds if policy is not None else float("inf")
        self._pace = pace
        self._listed_at: dict[str, float] = {}
        self._synced_at: float | None = None
        self._pressed = Lasting()
        self._pressed_at: dict[str, float] = {}
        self._left = Lasting()
        self._offers: dict[str, tuple[float, tuple[Offer, ...]]] = {}
        self._quiet_until: dict[str, float] = {}
        self._missing: frozenset[str] = frozenset()
        self._strays: frozenset[str] = frozenset()
        self._unknown_nodes: frozenset[str] = frozenset()

    def observe(self) -> World:
        """Asks every provider and the gateway once.  Nothing here raises for a failing one of them."""
        settled, backoffs = self._guard.is_settled(), self._journal.backoffs()
        jumped = backoffs.get(backoff.CLOCK)
        # Rows first: an instance that is made after this is not listed yet, and its row is not there yet either.
        intents = self._journal.open_intents()
        nodes, waiting, builders = self._fleet()
        views = {name: self._view(name, provider) for name, provider in self._providers.items()}
        world = World(
            intents=intents,
            gone=self._journal.gone_names(),
            providers=views,
            nodes=nodes,
            waiting=waiting,
            builders=builders,
            backoffs=backoffs,
            learned=self._journal.learned(),
            spent=self._journal.spent(self._clock.now()),
            clock_settled=settled and (jumped is None or self._clock.now() >= jumped.until),
            synced=self._is_synced(intents, nodes, views),
            missing_before=self._missing,
            strays_before=self._strays,
            unknown_nodes_before=self._unknown_nodes,
            leftovers_before=self._leftovers(views),
        )
        self._remember(world)
        return world

    def clock_rest(self) -> float:
        """Seconds for which ages prove nothing after a jump of the clock that this process has seen."""
        return self._guard.rest()

    def _is_synced(
        self, intents: tuple[Intent, ...], nodes: tuple[Node, ...] | None, views: Mapping[str, ProviderView]
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

    def _fleet(self) -> tuple[tuple[Node, ...] | None, tuple[Waiting, ...], int]:
        """Nodes and demand, or nothing of both: a plan needs them of one moment."""
        try:
            records = self._gateway.nodes()
            demand = self._gateway.demand()
        except (GatewayError, GatewayUnreachableError) as error:
            log.warning("the gateway cannot be asked, so nothing is scaled: %s", error)
            return None, (), 0
        lasting = self._pressure(records)
        nodes = tuple(
            node_of(record, lasting.get(record.id, 0.0), self._pressed_at.get(record.id)) for record in records
        )
        waiting, builders = wanted(demand)
        return nodes, waiting, builders

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

    def _view(self, name: str, provider: ComputeProvider) -> ProviderView:
        offers = self._offers.get(name, (0.0, ()))[1]
        if self._clock.monotonic() < self._quiet_until.get(name, 0.0):
            return ProviderView(provider.caps, None, offers=offers, problem="it asked for fewer calls")
        rest = self._listed_at.get(name, float("-inf")) + self._pace.list_seconds - self._clock.monotonic()
        if provider.caps.calls_per_hour is not None and rest > 0:
            problem = f"it is listed again in {rest:.0f} s"
            return ProviderView(provider.caps, None, offers=offers, problem=problem, is_resting=True)
        try:
            inventory = provider.list()
            self._listed_at[name] = self._clock.monotonic()
            offers = self._fresh_offers(name, provider)
        except ProviderError as error:
            if error.kind is ErrorKind.RATE_LIMIT:
                self._quiet_until[name] = self._clock.monotonic() + (error.retry_after or 60.0)
            log.warning("provider %s cannot be asked (%s): %s", name, error.kind, error)
            return ProviderView(provider.caps, None, offers=offers, problem=str(error))
        except Exception as error:
            # A plugin that breaks must not stop the other providers; it is blind until it answers.
            log.exception("provider %s broke", name)
            return ProviderView(provider.caps, None, offers=offers, problem=f"{type(error).__name__}: {error}")
        taken_at = inventory.taken_at.timestamp()
        return ProviderView(provider.caps, inventory.instances, taken_at, offers, inventory.leftovers)

    def _fresh_offers(self, name: str, provider: ComputeProvider) -> tuple[Offer, ...]:
        asked_at, offers = self._offers.get(name, (float("-inf"), ()))
        if self._clock.monotonic() - asked_at < OFFERS_SECONDS:
            return offers
        fresh = tuple(provider.offers())
        self._offers[name] = (self._clock.monotonic(), fresh)
        return fresh

    def _remember(self, world: World) -> None:
        """What this look lacked, for the next one.  What could not be seen keeps its last mark."""
        missing: set[str] = set()
        unknown: set[str] = set()
        registered = {node.instance for node in world.nodes or ()}
        seen = listed(world)
        for intent in world.intents:
            if self._is_missing(intent, world, seen):
                missing.add(intent.sighting)
            had_node = intent.state in (IntentState.READY, IntentState.DRAINING)
            if had_node and (intent.name not in registered if world.nodes is not None else _kept(intent, world)):
                unknown.add(intent.operation_id)
        # A blind provider has shown nothing, so what was seen there before has to be seen twice anew.
        stray = {instance.id for name in seen for instance in strays(world, name, seen[name], world.providers[name])}
        self._missing, self._unknown_nodes = frozenset(missing), frozenset(unknown)
        self._strays = frozenset(stray)

    @staticmethod
    def _is_missing(intent: Intent, world: World, seen: Mapping[str, Listed]) -> bool:
        if intent.provider not in seen:
            return intent.sighting in world.missing_before
        return not seen[intent.provider].of(intent.operation_id)


def _kept(intent: Intent, world: World) -> bool:
    return intent.operation_id in world.unknown_nodes_before
