"""A gateway in memory: what waits, where it is placed, and which nodes there are.

It answers the autoscaler with the wire's own models and places sandboxes by the gateway's own rule, the oldest request
first; what does not fit holds up nothing of another kind.  Builds, which the gateway does not place, go to the open
builder with the fewest places left.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from autoscaler.core.pools import PoolPolicy
from gateway.client import GatewayError
from gateway.core.model import Node
from gateway.core.placement import NodeRoom, Placed, PlacementBatch, Requirements
from gateway.wire.capacity import Ceilings, Demand, PreparedCapacity, WaitingSandbox
from gateway.wire.errors import ErrorBody, ErrorCode
from gateway.wire.nodes import BundleManifest, JoinToken, JoinTokenRequest, NodeRecord, RuntimeReport
from gateway.wire.resources import Shape
from gateway.wire.states import NodeState
from simulator.trace import NOTHING, Amounts, TraceJob, amounts_of_node, plus

PREPARED_SECONDS: Final = 900.0
"""Prepared units that nobody claims expire so long after they were wanted."""


class WorkLostError(Exception):
    """An instance was deleted with work on it: the autoscaler has a defect, and no figure of the run means anything."""


@dataclass
class SimulatedNode:
    """One node that has registered."""

    node: Node
    pool: PoolPolicy
    gives: Amounts
    reserved: Shape
    free_builds: int
    registered_at: float
    idle_since: float | None
    jobs: int = 0
    record: NodeRecord | None = None
    """What the autoscaler is answered, until something of it changes."""

    @property
    def is_draining(self) -> bool:
        """Whether it takes nothing new."""
        return self.node.state is NodeState.DRAINING

    @property
    def room(self) -> NodeRoom:
        """The node as placement sees it."""
        return NodeRoom(self.node, self.reserved)


@dataclass
class UnclaimedUnits:
    """Units that were asked for ahead and are not claimed yet."""

    id: str
    needs: Requirements
    count: int
    expires_at: float


@dataclass
class WaitingJobs:
    """Jobs that need the same, each with its place in the order of requests."""

    needs: Requirements
    jobs: deque[tuple[int, TraceJob]] = field(default_factory=deque)


@dataclass
class Tally:
    """Sums that change with every event."""

    waiting: int = 0
    running: int = 0
    wanted: Amounts = NOTHING
    used: Amounts = NOTHING
    capacity: Amounts = NOTHING


@dataclass
class SimulatedGateway:
    """The autoscaler's `GatewayPort`.

    Attributes:
        at: returns the datetime of a moment of the simulation.
        on_start: is called with each job that has found room.
    """

    at: Callable[[float], datetime]
    heartbeat_seconds: float
    builds_per_node: int
    on_start: Callable[[TraceJob], None]
    now: float = 0.0
    has_changed: bool = True
    """Whether something has happened that the autoscaler could act on; the simulation resets it at each tick."""
    tally: Tally = field(default_factory=Tally)
    fleet: dict[str, SimulatedNode] = field(default_factory=dict)
    """By node id, in order of registration, which is the order of their ids."""
    _sandboxes: dict[str, WaitingJobs] = field(default_factory=dict)
    """Those that wait, by `Requirements.key`."""
    _builds: deque[TraceJob] = field(default_factory=deque)
    _signals: dict[str, WaitingSandbox] = field(default_factory=dict)
    _prepared: list[UnclaimedUnits] = field(default_factory=list)
    _places: dict[str, str] = field(default_factory=dict)
    """The node of each running job."""
    _open_builds: int = 0
    """Builds that wait or run."""
    _requests: int = 0
    _joined: int = 0

    # -- what the autoscaler calls ------------------------------------------------------------------------------------

    def demand(self) -> Demand:
        """Return what waits and what was asked for ahead."""
        self._prepared = [units for units in self._prepared if units.count and units.expires_at > self.now]
        return Demand(
            waiting=list(self._signals.values()),
            pending_count=len(self._signals),
            pending_resources=Shape(),
            prepared=[self._prepared_capacity(units) for units in self._prepared],
            prepared_builder_count=math.ceil(self._open_builds / self.builds_per_node),
        )

    def nodes(self) -> list[NodeRecord]:
        """Return all nodes that have registered and are not forgotten."""
        # The heartbeats of a node that is not closed prove nothing to anyone, so its record is made once a change.
        for node in self.fleet.values():
            if node.record is None or node.is_draining:
                node.record = self._record(node)
        return [node.record for node in self.fleet.values() if node.record is not None]

    def join_token(self, request: JoinTokenRequest) -> JoinToken:
        """Return a token; nobody checks it here."""
        expires = self.at(self.now) + timedelta(seconds=request.ttl_seconds)
        return JoinToken(token="simulated", instance=request.instance, expires_at=expires)  # noqa: S106 - no secret

    def drain(self, node_id: str, draining: bool = True) -> NodeRecord:
        """Close or open a node."""
        node = self._known(node_id)
        state = NodeState.DRAINING if draining else NodeState.READY
        node.node, node.record = replace(node.node, state=state), None
        if not draining:
            self._place([node])
        return self._record(node)

    def remove_node(self, node_id: str, *, machine_gone: bool = False) -> NodeRecord:
        """Forget a node."""
        record = self._record(self._known(node_id))
        self._drop(node_id)
        return record

    def bundle(self) -> BundleManifest:
        """Return an empty bundle: a simulated node installs nothing."""
        return BundleManifest(version="", sha256="", files=[])

    def put_ceilings(self, ceilings: Ceilings) -> None:
        """Ignore what could be bought at most: every job of a trace is accepted."""

    # -- what the simulation does -------------------------------------------------------------------------------------

    def is_calm(self) -> bool:
        """Return whether nothing waits, is prepared or builds, and every node is open and has work."""
        idle = any(node.is_draining or not node.jobs for node in self.fleet.values())
        return not (idle or self.tally.waiting or self._prepared or self._open_builds)

    def prepare(self, job: TraceJob, count: int, expires_at: float) -> None:
        """Ask ahead for capacity for ``count`` jobs like this one."""
        self._prepared.append(UnclaimedUnits(f"prepared-{job.id}", requirements_of(job), count, expires_at))

    def submit(self, jobs: Iterable[TraceJob]) -> None:
        """Accept jobs, and start those that find room."""
        self.has_changed = True
        for job in jobs:
            self._requests += 1
            self.tally.waiting += 1
            self.tally.wanted = plus(self.tally.wanted, job.needs)
            if job.is_build:
                self._open_builds += 1
                self._builds.append(job)
                continue
            needs = requirements_of(job)
            self._sandboxes.setdefault(needs.key, WaitingJobs(needs)).jobs.append((self._requests, job))
            self._claim(needs)
            self._signals[job.id] = WaitingSandbox(
                sandbox_id=job.id,
                shape=job.shape,
                runtime=job.batch.runtime,
                isolation=job.batch.isolation,
                since=self.at(self.now),
            )
        self._place(self.fleet.values())

    def finish(self, job: TraceJob) -> None:
        """End a job, and give its room to what waits."""
        node = self.fleet[self._places.pop(job.id)]
        if job.is_build:
            node.free_builds += 1
            self._open_builds -= 1
            self.has_changed = True
        else:
            node.reserved = node.reserved.minus(job.shape)
        node.jobs -= 1
        node.record = None
        if not node.jobs:
            node.idle_since = self.now
            self.has_changed = True
        self.tally.running -= 1
        self.tally.used = plus(self.tally.used, job.needs, -1)
        self._place([node])

    def register(self, instance: str, operation_id: str, pool: PoolPolicy, total: Shape) -> None:
        """Add a node, which takes what waits."""
        self._joined += 1
        runtimes = tuple(
            RuntimeReport(name=name, version="1", isolations=sorted(pool.isolations), gpus=total.gpus > 0)  # type: ignore[arg-type]  # the policy's names are the wire's
            for name in sorted(pool.runtimes)
        )
        node = Node(
            id=f"node-{self._joined:06d}",
            instance=instance,
            pool=pool.name,
            state=NodeState.READY,
            node_url="http://node.invalid",
            agent_version="1",
            total=total,
            runtimes=runtimes,
            registered_at=self.at(self.now),
            heartbeat_at=self.at(self.now),
            operation_id=operation_id,
            role=pool.role,
        )
        gives = amounts_of_node(pool, total, self.builds_per_node)
        places = self.builds_per_node if pool.hosts_builds else 0
        self.fleet[node.id] = SimulatedNode(node, pool, gives, Shape(), places, self.now, self.now)
        self.has_changed = True
        self.tally.capacity = plus(self.tally.capacity, gives)
        self._place([self.fleet[node.id]])

    def vanish(self, instance: str) -> None:
        """Drop the node of an instance that was deleted."""
        for node_id, node in list(self.fleet.items()):
            if node.node.instance == instance:
                self._drop(node_id)

    # -- placing ------------------------------------------------------------------------------------------------------

    def _place(self, nodes: Iterable[SimulatedNode]) -> None:
        nodes = list(nodes)
        self._place_builds(nodes)
        if not self._sandboxes or not nodes:
            return
        batch = PlacementBatch([node.room for node in nodes])
        fitting = dict(self._sandboxes)
        while fitting:
            key = min(fitting, key=lambda each: fitting[each].jobs[0][0])
            placed = batch.place(fitting[key].needs)
            if not isinstance(placed, Placed):
                del fitting[key]
                continue
            _, job = fitting[key].jobs.popleft()
            if not fitting[key].jobs:
                del fitting[key], self._sandboxes[key]
            node = self.fleet[placed.node_id]
            node.reserved += job.shape
            self._start(job, node)

    def _place_builds(self, nodes: Iterable[SimulatedNode]) -> None:
        builders = [node for node in nodes if node.free_builds and not node.is_draining]
        while self._builds and builders:
            node = min(builders, key=lambda each: each.free_builds)
            node.free_builds -= 1
            if not node.free_builds:
                builders.remove(node)
            self._start(self._builds.popleft(), node)

    def _start(self, job: TraceJob, node: SimulatedNode) -> None:
        node.jobs += 1
        node.idle_since = node.record = None
        self._places[job.id] = node.node.id
        self._signals.pop(job.id, None)
        tally = self.tally
        tally.waiting -= 1
        tally.running += 1
        tally.wanted = plus(tally.wanted, job.needs, -1)
        tally.used = plus(tally.used, job.needs)
        self.on_start(job)

    def _claim(self, needs: Requirements) -> None:
        for units in self._prepared:
            if units.needs.key == needs.key and units.count and units.expires_at > self.now:
                units.count -= 1
                return

    # -- records ------------------------------------------------------------------------------------------------------

    def _record(self, node: SimulatedNode) -> NodeRecord:
        beats = math.floor((self.now - node.registered_at) / self.heartbeat_seconds)
        known = node.node
        return NodeRecord(
            id=known.id,
            instance=known.instance,
            pool=known.pool,
            state=known.state,
            node_url=known.node_url,
            agent_version=known.agent_version,
            total=known.total,
            reserved=node.reserved,
            runtimes=list(known.runtimes),
            sandboxes=node.jobs,
            registered_at=known.registered_at,
            heartbeat_at=self.at(node.registered_at + beats * self.heartbeat_seconds),
            idle_since=None if node.idle_since is None else self.at(node.idle_since),
            operation_id=known.operation_id,
        )

    def _prepared_capacity(self, units: UnclaimedUnits) -> PreparedCapacity:
        return PreparedCapacity(
            prepare_id=units.id,
            resources=units.needs.shape,
            count=units.count,
            total_resources=units.needs.shape,
            runtime=units.needs.runtime,
            isolation=units.needs.isolation,
            created_at=self.at(self.now),
            updated_at=self.at(self.now),
            expires_at=self.at(units.expires_at),
        )

    def _known(self, node_id: str) -> SimulatedNode:
        if node_id not in self.fleet:
            body = ErrorBody(error=f"no node {node_id}", code=ErrorCode.NODE_NOT_FOUND)
            raise GatewayError(f"no node {node_id}", status=404, body=body, retryable=False, retry_after=None)
        return self.fleet[node_id]

    def _drop(self, node_id: str) -> None:
        node = self.fleet.pop(node_id)
        if node.jobs:
            raise WorkLostError(f"{node.node.instance} was deleted with {node.jobs} jobs on it")
        self.tally.capacity = plus(self.tally.capacity, node.gives, -1)


def requirements_of(job: TraceJob) -> Requirements:
    """Return what a sandbox needs of a node, as placement sees it."""
    return Requirements(job.shape, job.batch.runtime, job.batch.isolation)
