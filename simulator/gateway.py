"""A gateway in memory: what waits, where it is placed, and which nodes there are.

It answers the autoscaler with the wire's own models, and places by the gateway's rule: best fit, the longest waiting
first, and what does not fit holds up nobody of another shape.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from autoscaler.core.pools import PoolPolicy
from gateway.client import GatewayError
from gateway.wire.capacity import Ceilings, Demand, PreparedCapacity, WaitingSandbox
from gateway.wire.errors import ErrorBody, ErrorCode
from gateway.wire.nodes import BundleManifest, JoinToken, JoinTokenRequest, NodeRecord, RuntimeReport
from gateway.wire.resources import Shape
from gateway.wire.sandboxes import Isolation, RuntimeName
from gateway.wire.states import NodeState
from simulator import amounts
from simulator.amounts import Amounts
from simulator.trace import Job

PREPARED_SECONDS = 900.0
"""Prepared units that nobody claims expire so long after they were wanted."""

Kind = tuple[Amounts, str | None, str]


class WorkLostError(Exception):
    """An instance was deleted with work on it: the autoscaler has a defect, and no figure of the run means anything."""


@dataclass
class Host:
    """One node."""

    record: NodeRecord
    pool: PoolPolicy
    total: Amounts
    free: Amounts
    registered_at: float
    idle_since: float | None
    jobs: int = 0
    is_draining: bool = False
    told: NodeRecord | None = None
    """Its record, until something of it changes."""

    def welcomes(self, kind: Kind) -> bool:
        """Whether such jobs may run there, whatever room there is."""
        need, runtime, isolation = kind
        if need[-1]:
            return not self.is_draining
        runs = (runtime is None or runtime in self.pool.runtimes) and isolation in self.pool.isolations
        return runs and not self.is_draining


@dataclass
class Prepared:
    """Units that were asked for ahead and not claimed yet."""

    id: str
    shape: Shape
    runtime: RuntimeName | None
    isolation: Isolation
    count: int
    expires_at: float


@dataclass
class Tally:
    """Sums that change with every event."""

    waiting: int = 0
    running: int = 0
    wanted: Amounts = amounts.ZERO
    used: Amounts = amounts.ZERO
    capacity: Amounts = amounts.ZERO


@dataclass
class SimulatedGateway:
    """The autoscaler's `Gateway`.

    Attributes:
        at: the datetime of a moment of the simulation.
        on_start: is told each job that has found room.
    """

    at: Callable[[float], datetime]
    heartbeat_seconds: float
    builds_per_node: int
    on_start: Callable[[Job], None]
    now: float = 0.0
    has_changed: bool = True
    """Whether something has happened that the autoscaler could act on; whoever looks sets it back."""
    tally: Tally = field(default_factory=Tally)
    hosts: dict[str, Host] = field(default_factory=dict)
    """By node id, in order of registration, which is the order of their ids."""
    _queues: dict[Kind, deque[tuple[int, Job]]] = field(default_factory=dict)
    _signals: dict[str, WaitingSandbox] = field(default_factory=dict)
    _prepared: list[Prepared] = field(default_factory=list)
    _places: dict[str, tuple[str, Amounts]] = field(default_factory=dict)
    _builds: int = 0
    _asked: int = 0
    _joined: int = 0

    # -- what the autoscaler calls ------------------------------------------------------------------------------------

    def demand(self) -> Demand:
        """What waits and what was asked for ahead."""
        self._prepared = [unit for unit in self._prepared if unit.count and unit.expires_at > self.now]
        return Demand(
            waiting=list(self._signals.values()),
            pending_count=len(self._signals),
            pending_resources=Shape(),
            prepared=[self._told(unit) for unit in self._prepared],
            prepared_builder_count=math.ceil(self._builds / self.builds_per_node),
        )

    def nodes(self) -> list[NodeRecord]:
        """All that have registered and are not forgotten."""
        # The heartbeats of a node that is not closed prove nothing to anyone, so its record is made once a change.
        for host in self.hosts.values():
            if host.told is None or host.is_draining:
                host.told = self._record(host)
        return [host.told for host in self.hosts.values() if host.told is not None]

    def join_token(self, request: JoinTokenRequest) -> JoinToken:
        """A token; nobody checks it here."""
        expires = self.at(self.now) + timedelta(seconds=request.ttl_seconds)
        return JoinToken(token="simulated", instance=request.instance, expires_at=expires)  # noqa: S106 - no secret

    def drain(self, node_id: str, draining: bool = True) -> NodeRecord:
        """Closes or opens a node."""
        host = self._host(node_id)
        host.is_draining, host.told = draining, None
        if not draining:
            self._place([host])
        return self._record(host)

    def remove_node(self, node_id: str, *, machine_gone: bool = False) -> NodeRecord:
        """Forgets a node."""
        record = self._record(self._host(node_id))
        self._drop(node_id)
        return record

    def bundle(self) -> BundleManifest:
        """Nothing that a simulated node would install."""
        return BundleManifest(version="", sha256="", files=[])

    def put_ceilings(self, ceilings: Ceilings) -> None:
        """What the gateway would refuse by; every job of a trace is taken in here."""

    def is_calm(self) -> bool:
        """Whether nothing waits, is prepared or builds, and every node is open and has work."""
        idle = any(host.is_draining or not host.jobs for host in self.hosts.values())
        return not (idle or self.tally.waiting or self._prepared or self._builds)

    # -- what the world does ------------------------------------------------------------------------------------------

    def prepare(self, job: Job, count: int, expires_at: float) -> None:
        """Capacity for ``count`` jobs like this one is asked for ahead."""
        name, batch = f"prepared-{job.id}", job.batch
        self._prepared.append(Prepared(name, job.shape, batch.runtime, batch.isolation, count, expires_at))

    def submit(self, jobs: Iterable[Job]) -> None:
        """Jobs come; those that find room start at once."""
        self.has_changed = True
        for job in jobs:
            kind = _kind(job)
            self._asked += 1
            self._queues.setdefault(kind, deque()).append((self._asked, job))
            self.tally.waiting += 1
            self.tally.wanted = amounts.plus(self.tally.wanted, kind[0])
            if job.is_build:
                self._builds += 1
                continue
            self._claim(job)
            self._signals[job.id] = WaitingSandbox(
                sandbox_id=job.id,
                shape=job.shape,
                runtime=job.batch.runtime,
                isolation=job.batch.isolation,
                since=self.at(self.now),
            )
        self._place(self.hosts.values())

    def finish(self, job: Job) -> None:
        """A job ends, and gives its room back."""
        node_id, need = self._places.pop(job.id)
        host = self.hosts[node_id]
        host.free = amounts.plus(host.free, need)
        host.jobs -= 1
        host.told = None
        if not host.jobs:
            host.idle_since = self.now
            self.has_changed = True
        self.tally.running -= 1
        self.tally.used = amounts.plus(self.tally.used, need, -1)
        self._builds -= job.is_build
        self.has_changed |= job.is_build
        self._place([host])

    def register(self, instance: str, operation_id: str, pool: PoolPolicy, gives: Shape) -> None:
        """A node comes, and takes what waits."""
        self._joined += 1
        node_id = f"node-{self._joined:06d}"
        total = amounts.of_node(pool, gives, self.builds_per_node)
        record = NodeRecord(
            id=node_id,
            instance=instance,
            pool=pool.name,
            state=NodeState.READY,
            node_url="http://node.invalid",
            agent_version="1",
            total=gives,
            reserved=Shape(),
            runtimes=[
                RuntimeReport(name=name, version="1", isolations=sorted(pool.isolations), gpus=gives.gpus > 0)  # type: ignore[arg-type]  # the policy's names are the wire's
                for name in sorted(pool.runtimes)
            ],
            sandboxes=0,
            registered_at=self.at(self.now),
            operation_id=operation_id,
        )
        host = Host(record, pool, total, total, self.now, self.now)
        self.hosts[node_id] = host
        self.has_changed = True
        self.tally.capacity = amounts.plus(self.tally.capacity, total)
        self._place([host])

    def vanish(self, instance: str) -> None:
        """An instance was deleted: its node takes nothing more."""
        for node_id, host in list(self.hosts.items()):
            if host.record.instance == instance:
                self._drop(node_id)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _place(self, hosts: Iterable[Host]) -> None:
        """Puts what waits into these nodes, the longest waiting first."""
        hosts = list(hosts)
        open_ = {kind: queue for kind, queue in self._queues.items() if queue}
        while open_ and hosts:
            kind = min(open_, key=lambda each: open_[each][0][0])
            host = _best(kind, hosts)
            if host is None:
                del open_[kind]
                continue
            queue = open_[kind]
            _, job = queue.popleft()
            if not queue:
                del open_[kind], self._queues[kind]
            self._start(job, host, kind[0])

    def _start(self, job: Job, host: Host, need: Amounts) -> None:
        host.free = amounts.plus(host.free, need, -1)
        host.jobs += 1
        host.idle_since = host.told = None
        self._places[job.id] = (host.record.id, need)
        self._signals.pop(job.id, None)
        tally = self.tally
        tally.waiting -= 1
        tally.running += 1
        tally.wanted = amounts.plus(tally.wanted, need, -1)
        tally.used = amounts.plus(tally.used, need)
        self.on_start(job)

    def _claim(self, job: Job) -> None:
        for unit in self._prepared:
            same = (unit.shape, unit.runtime, unit.isolation) == (job.shape, job.batch.runtime, job.batch.isolation)
            if same and unit.count and unit.expires_at > self.now:
                unit.count -= 1
                return

    def _record(self, host: Host) -> NodeRecord:
        beats = math.floor((self.now - host.registered_at) / self.heartbeat_seconds)
        taken = amounts.plus(host.total, host.free, -1)
        changes = {
            "state": NodeState.DRAINING if host.is_draining else NodeState.READY,
            "sandboxes": host.jobs,
            "reserved": _shape(taken),
            "heartbeat_at": self.at(host.registered_at + beats * self.heartbeat_seconds),
            "idle_since": None if host.idle_since is None else self.at(host.idle_since),
        }
        return host.record.model_copy(update=changes)

    def _told(self, unit: Prepared) -> PreparedCapacity:
        return PreparedCapacity(
            prepare_id=unit.id,
            resources=unit.shape,
            count=unit.count,
            total_resources=unit.shape,
            runtime=unit.runtime,
            isolation=unit.isolation,
            created_at=self.at(self.now),
            updated_at=self.at(self.now),
            expires_at=self.at(unit.expires_at),
        )

    def _host(self, node_id: str) -> Host:
        if node_id not in self.hosts:
            body = ErrorBody(error=f"no node {node_id}", code=ErrorCode.NODE_NOT_FOUND)
            raise GatewayError(f"no node {node_id}", status=404, body=body, retryable=False, retry_after=None)
        return self.hosts[node_id]

    def _drop(self, node_id: str) -> None:
        host = self.hosts.pop(node_id)
        if host.jobs:
            raise WorkLostError(f"{host.record.instance} was deleted with {host.jobs} jobs on it")
        self.tally.capacity = amounts.plus(self.tally.capacity, host.total, -1)


def _kind(job: Job) -> Kind:
    return (job.needs, None, "") if job.is_build else (job.needs, job.batch.runtime, job.batch.isolation)


def _best(kind: Kind, hosts: Iterable[Host]) -> Host | None:
    """The node with the smallest share left; of equals the first that registered."""
    best: Host | None = None
    least = math.inf
    for host in hosts:
        share = amounts.left(kind[0], host.free, host.total) if host.welcomes(kind) else None
        if share is not None and share < least:
            best, least = host, share
    return best


def _shape(taken: Amounts) -> Shape:
    cpus, memory, disk, gpus, slots, _ = (max(0.0, amount) for amount in taken)
    return Shape.model_construct(
        cpus=cpus, memory_mb=round(memory), disk_mb=round(disk), gpus=round(gpus), slots=round(slots)
    )
