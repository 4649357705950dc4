"""One look at everything: listings, nodes and demand, made into a frozen `World`."""

import logging
from collections.abc import Mapping
from typing import Final, Protocol

from autoscaler.clock import Clock, ClockGuard
from autoscaler.core.lifecycle import IntentState
from autoscaler.core.model import Intent, Node, ProviderView, Waiting, World
from autoscaler.core.settle import instances_of
from autoscaler.core.stopping import strays
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


class Observer:
    """Makes a `World` a tick, and keeps in mind what the last one lacked."""

    def __init__(
        self,
        providers: Mapping[str, ComputeProvider],
        gateway: Gateway,
        journal: Journal,
        clock: Clock,
        guard: ClockGuard,
    ) -> None:
        self._providers = providers
        self._gateway = gateway
        self._journal = journal
        self._clock = clock
        self._guard = guard
        self._offers: dict[str, tuple[float, tuple[Offer, ...]]] = {}
        self._quiet_until: dict[str, float] = {}
        self._missing: frozenset[str] = frozenset()
        self._strays: frozenset[str] = frozenset()
        self._unknown_nodes: frozenset[str] = frozenset()

    def observe(self) -> World:
        """Asks every provider and the gateway once.  Nothing here raises for a failing one of them."""
        settled = self._guard.is_settled()
        # Rows first: an instance that is made after this is not listed yet, and its row is not there yet either.
        intents = self._journal.open_intents()
        nodes, waiting = self._fleet()
        world = World(
            intents=intents,
            gone=self._journal.gone_names(),
            providers={name: self._view(name, provider) for name, provider in self._providers.items()},
            nodes=nodes,
            waiting=waiting,
            backoffs=self._journal.backoffs(),
            learned=self._journal.learned(),
            clock_settled=settled,
            missing_before=self._missing,
            strays_before=self._strays,
            unknown_nodes_before=self._unknown_nodes,
        )
        self._remember(world)
        return world

    def _fleet(self) -> tuple[tuple[Node, ...] | None, tuple[Waiting, ...]]:
        """Nodes and demand, or nothing of both: a plan needs them of one moment."""
        try:
            nodes = tuple(_node(record) for record in self._gateway.nodes())
            demand = self._gateway.demand()
        except (GatewayError, GatewayUnreachableError) as error:
            log.warning("the gateway cannot be asked, so nothing is scaled: %s", error)
            return None, ()
        return nodes, tuple(Waiting(item.shape, item.runtime, item.isolation) for item in demand.waiting)

    def _view(self, name: str, provider: ComputeProvider) -> ProviderView:
        offers = self._offers.get(name, (0.0, ()))[1]
        if self._clock.monotonic() < self._quiet_until.get(name, 0.0):
            return ProviderView(provider.caps, None, offers=offers, problem="it asked for fewer calls")
        try:
            inventory = provider.list()
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
        for intent in world.intents:
            if self._is_missing(intent, world):
                missing.add(intent.sighting)
            had_node = intent.state in (IntentState.READY, IntentState.DRAINING)
            if had_node and (intent.name not in registered if world.nodes is not None else _kept(intent, world)):
                unknown.add(intent.operation_id)
        stray = {instance.id for name, view in world.providers.items() for instance in strays(world, name, view)}
        self._missing, self._unknown_nodes = frozenset(missing), frozenset(unknown)
        self._strays = frozenset(stray)

    @staticmethod
    def _is_missing(intent: Intent, world: World) -> bool:
        view = world.providers.get(intent.provider)
        if view is None or view.instances is None:
            return intent.sighting in world.missing_before
        return not instances_of(view, intent.operation_id)


def _kept(intent: Intent, world: World) -> bool:
    return intent.operation_id in world.unknown_nodes_before


def _node(record: NodeRecord) -> Node:
    return Node(
        id=record.id,
        instance=record.instance,
        pool=record.pool,
        state=record.state,
        total=record.total,
        reserved=record.reserved,
        sandboxes=record.sandboxes,
        runtimes=frozenset(runtime.name for runtime in record.runtimes),
        isolations=frozenset(isolation for runtime in record.runtimes for isolation in runtime.isolations),
        heartbeat_at=record.heartbeat_at.timestamp() if record.heartbeat_at is not None else None,
        idle_since=record.idle_since.timestamp() if record.idle_since is not None else None,
    )
