"""Routes that were looked up a moment ago, so that a short call costs no look into the store.

Only routes to running sandboxes are kept, and nobody is refused because of them: whatever else a row says is read each
time. What this gateway changes is dropped at once. What another gateway on the same database changes is dropped after
`TTL` seconds; until then the generation in every call makes the node refuse it, and the route is read again.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from cachetools import TTLCache

from gateway.core.model import Route, Sandbox
from gateway.services.tasks import AsyncClock

TTL: Final = 2.0
MAX_ROUTES: Final = 10_000


@dataclass(eq=False)
class Lookup:
    """A read of one sandbox's rows that is under way."""

    overtaken: bool = False
    """They changed meanwhile, so what was read may be older than that."""


class RouteCache:
    """The routes used last, at most `MAX_ROUTES`."""

    def __init__(self, clock: AsyncClock) -> None:
        self._routes: TTLCache[str, Route] = TTLCache(MAX_ROUTES, TTL, timer=clock.monotonic)
        self._lookups: dict[str, set[Lookup]] = {}

    def get(self, sandbox_id: str) -> Route | None:
        """Return the route, if it is known and young enough."""
        return self._routes.get(sandbox_id)

    @contextmanager
    def lookup(self, sandbox_id: str) -> Iterator[Lookup]:
        """Begin a lookup. Open it before the read whose result is to be kept."""
        lookup = Lookup()
        self._lookups.setdefault(sandbox_id, set()).add(lookup)
        try:
            yield lookup
        finally:
            lookups = self._lookups[sandbox_id]
            lookups.discard(lookup)
            if not lookups:
                del self._lookups[sandbox_id]

    def keep(self, lookup: Lookup, route: Route) -> None:
        """Keep the route that ``lookup`` found, unless it was overtaken."""
        if not lookup.overtaken:
            self._routes[route.sandbox_id] = route

    def on_change(self, sandbox: Sandbox) -> None:
        """React to a change of a sandbox."""
        self.drop(sandbox.id)

    def drop(self, sandbox_id: str) -> None:
        """Drop the route to a sandbox that changed, or whose node refused a call over it."""
        self._routes.pop(sandbox_id, None)
        for lookup in self._lookups.get(sandbox_id, ()):
            lookup.overtaken = True

    def drop_node(self, node_id: str) -> None:
        """Drop the routes to a node that is reached elsewhere from now on, or nowhere."""
        for sandbox_id in [name for name, route in self._routes.items() if route.node.node_id == node_id]:
            self._routes.pop(sandbox_id, None)
        for lookups in self._lookups.values():
            for lookup in lookups:
                lookup.overtaken = True
