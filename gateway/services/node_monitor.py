"""Watch for nodes whose heartbeats stop: unreachable after a while, lost after a longer one.

Ages are measured on this gateway's monotonic clock, from the moment at which it took in (or learned of) a heartbeat.
Only time in which it has listened counts (`gateway.services.hearing`): at start, and after it was deaf, every node gets
its full time again.
"""

import logging

from sqlmodel import Session

from gateway.core import node_health, transitions
from gateway.core.model import Node, Sandbox
from gateway.core.node_health import HeartbeatLimits
from gateway.errors import ApiError
from gateway.services.hearing import Hearing
from gateway.services.tasks import AsyncClock, Deadlines, NewId
from gateway.services.unit_of_work import UnitOfWork, Written
from gateway.store import nodes, sandboxes
from gateway.wire.states import NodeState

log = logging.getLogger(__name__)


class NodeMonitor:
    """Moves nodes to the state that the age of their last heartbeat asks for."""

    def __init__(
        self, uow: UnitOfWork, clock: AsyncClock, new_id: NewId, limits: HeartbeatLimits, hearing: Hearing
    ) -> None:
        self._uow = uow
        self._hearing = hearing
        self._clock = clock
        self._new_id = new_id
        self._limits = limits
        self._last: dict[str, tuple[float, Node]] = {}
        """By node: the monotonic time of its last heartbeat, and the node after it."""
        self._cut_off = False
        """Whether a node was not given up because no other was heard either."""
        self._deadlines = Deadlines(clock, self._check)

    def heartbeat(self, node: Node) -> None:
        """Take in a sign of life of the node."""
        if self._cut_off:
            self._cut_off = False
            self._hearing.missed("no node was heard for long")
        self._last[node.id] = (self._clock.monotonic(), node)
        self._arm(node)

    def unsaved_heartbeat(self, error: ApiError) -> None:
        """Note that the store could not take a heartbeat in: whoever else reported may have been unheard as well."""
        self._hearing.missed(error.message)

    def forget(self, node_id: str) -> None:
        """Stop watching a node that is gone."""
        self._last.pop(node_id, None)
        self._deadlines.clear(node_id)

    async def run(self) -> None:
        """Check nodes when it is time, for ever."""
        await self._deadlines.run()

    def _arm(self, node: Node) -> None:
        age = node_health.next_check(node.state, self._limits)
        if age is None:
            self._deadlines.clear(node.id)
        else:
            self._deadlines.set(node.id, max(self._last[node.id][0], self._hearing.since) + age)

    async def _check(self, node_id: str) -> None:
        if node_id not in self._last:
            return
        at, known = self._last[node_id]
        age = self._hearing.silence(at)
        if known.state is NodeState.UNREACHABLE and self._hears_nobody():
            self._cut_off = True
            self._deadlines.set(node_id, self._clock.monotonic() + self._limits.unreachable_after)
            return
        try:
            after = await self._uow.commit(lambda session: self._aged(session, node_id, known.beats, age))
        except ApiError as error:
            self._hearing.missed(error.message)
            raise
        if after is None or after.state is NodeState.GONE:
            self.forget(node_id)
        elif after.beats != known.beats:
            self.heartbeat(after)  # another gateway took in a heartbeat
        elif node_id in self._last:
            self._last[node_id] = (self._last[node_id][0], after)
            self._arm(after)

    def _hears_nobody(self) -> bool:
        watched = {NodeState.READY, NodeState.DRAINING, NodeState.UNREACHABLE}
        silences = [self._hearing.silence(at) for at, node in self._last.values() if node.state in watched]
        if not node_health.hears_nobody(silences, self._limits):
            return False
        if not self._cut_off:
            log.warning("none of %d nodes was heard for %.0f s: none is given up", len(silences), min(silences))
        return True

    def _aged(self, session: Session, node_id: str, beats: int, age: float) -> Written[Node | None]:
        """Write the state of a node that is still at ``beats`` heartbeats, the last of them ``age`` seconds old."""
        node = nodes.get(session, node_id)
        if node is None or node.beats != beats:
            return Written(node)
        state = node_health.state_at_age(node.state, age, self._limits)
        if state is node.state:
            return Written(node)
        log.warning("node %s (%s) sent no heartbeat for %.0f s: %s", node.id, node.instance, age, state.value)
        after = nodes.save(session, node, node_health.in_state(node, state))
        lost = give_up(session, node_id, self._new_id, self._clock) if state is NodeState.LOST else ()
        return Written(after, tuple(lost))


def give_up(session: Session, node_id: str, new_id: NewId, clock: AsyncClock) -> list[Sandbox]:
    """Write what becomes of the sandboxes of a node that is given up; return those that changed."""
    changed = []
    for row in sandboxes.on_node(session, node_id):
        after = transitions.without_node(row, new_id(), f"node {node_id} was given up", clock.now())
        if after is not None:
            changed.append(sandboxes.save(session, row, after))
    return changed
