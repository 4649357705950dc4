"""Routes that were looked up a moment ago, so that a short call costs no look into the store.

Only routes to running sandboxes are kept, and nobody is refused because of them: whatever else a row says is read each
time.  What this gateway changes is forgotten at once.  What another gateway on the same database changes is forgotten
after `KEPT_SECONDS`; until then the generation in every call makes the node refuse it, and the route is read again.
"""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from gateway.core.model import Route, Sandbox
from gateway.services.tasks import AsyncClock

KEPT_SECONDS: Final = 2.0
MOST_KEPT: Final = 10_000


@dataclass(eq=False)
class Reading:
    """Somebody reads the rows of one sandbox now."""

    overtaken: bool = False
    """They changed meanwhile, so what was read may be older than that."""


class RouteCache:
    """The routes used last, at most `MOST_KEPT`."""

    def __init__(self, clock: AsyncClock) -> None:
        self._clock = clock
        self._routes: OrderedDict[str, tuple[float, Route]] = OrderedDict()
        self._readings: dict[str, set[Reading]] = {}

    def get(self, sandbox_id: str) -> Route | None:
        """The route, if it is known and young enough."""
        known = self._routes.get(sandbox_id)
        if known is None:
            return None
        until, route = known
        if until <= self._clock.monotonic():
            del self._routes[sandbox_id]
            return None
        self._routes.move_to_end(sandbox_id)
        return route

    @contextmanager
    def reading(self, sandbox_id: str) -> Iterator[Reading]:
        """Open it before the read whose result is to be kept."""
        reading = Reading()
        self._readings.setdefault(sandbox_id, set()).add(reading)
        try:
            yield reading
        finally:
            readings = self._readings[sandbox_id]
            readings.discard(reading)
            if not readings:
                del self._readings[sandbox_id]

    def keep(self, reading: Reading, route: Route) -> None:
        """Remembers what ``reading`` found, unless it was overtaken."""
        if reading.overtaken:
            return
        self._routes[route.sandbox_id] = (self._clock.monotonic() + KEPT_SECONDS, route)
        self._routes.move_to_end(route.sandbox_id)
        if len(self._routes) > MOST_KEPT:
            self._routes.popitem(last=False)

    def on_change(self, sandbox: Sandbox) -> None:
        """Reacts to a change of a sandbox."""
        self.forget(sandbox.id)

    def forget(self, sandbox_id: str) -> None:
        """It changed, or its node says so."""
        self._routes.pop(sandbox_id, None)
        for reading in self._readings.get(sandbox_id, ()):
            reading.overtaken = True

    def forget_node(self, node_id: str) -> None:
        """The node is reached elsewhere from now on, or nowhere."""
        for sandbox_id in [name for name, (_, route) in self._routes.items() if route.node.node_id == node_id]:
            del self._routes[sandbox_id]
        for readings in self._readings.values():
            for reading in readings:
                reading.overtaken = True
