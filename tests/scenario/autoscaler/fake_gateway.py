"""Enough of a gateway in virtual time: join tokens, nodes that register and beat, sandboxes that are placed."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from gateway.client import GatewayError, GatewayUnreachableError
from gateway.wire.capacity import Ceilings, Demand, PreparedCapacity, WaitingSandbox
from gateway.wire.errors import ErrorBody, ErrorCode
from gateway.wire.nodes import BundleManifest, JoinToken, JoinTokenRequest, NodeRecord, RuntimeReport
from gateway.wire.resources import Shape
from gateway.wire.states import NodeState
from providers.testing.fake import FakeCloud, Machine

NODE = Shape(cpus=4, memory_mb=7680, disk_mb=79872, slots=250)
SMALL = Shape(cpus=1, memory_mb=1024, disk_mb=1024, slots=1)
REGISTER_SECONDS = 5.0
UNREACHABLE_SECONDS, LOST_SECONDS = 20, 300
RUNTIMES = [RuntimeReport(name="runsc", version="1", isolations=["gvisor"])]
NEVER = timedelta(seconds=-1)


@dataclass
class Grant:
    """What one join token allows; the rules are those of `gateway.services.registration`."""

    number: int
    """Later ones are greater."""
    request: JoinTokenRequest
    expires_at: datetime
    used: bool = False


@dataclass
class FakeGateway:
    """Enough of a gateway."""

    cloud: FakeCloud
    """Whose time it follows."""
    clouds: list[FakeCloud]
    """Whose machines it hears of."""
    records: dict[str, NodeRecord] = field(default_factory=dict)
    placed: dict[str, tuple[str, Shape]] = field(default_factory=dict)
    waiting: dict[str, Shape] = field(default_factory=dict)
    prepared: dict[str, PreparedCapacity] = field(default_factory=dict)
    ceilings: Ceilings | None = None
    heartbeat_seconds: float = 5.0
    unreachable: bool = False
    builders: int = 0
    bundle_sha256: str = "a" * 64
    late: str | None = None
    """A node that gets work at the last moment before it is closed."""
    silent: set[str] = field(default_factory=set)
    """Instances whose node agent says nothing."""
    closed: dict[str, datetime | None] = field(default_factory=dict)
    """Nodes that are closed, with their last heartbeat at that moment."""
    grants: dict[str, Grant] = field(default_factory=dict)
    """By their secret."""
    agents: dict[str, str] = field(default_factory=dict)
    """Machines, by id, that hold the present credential of a node."""
    on_register: Callable[[Machine, Grant], None] | None = None
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    # -- what the autoscaler calls ------------------------------------------------------------------------------------

    def demand(self) -> Demand:
        self._answer("demand")
        waiting = [WaitingSandbox(sandbox_id=i, shape=s, since=self.cloud.now) for i, s in self.waiting.items()]
        return Demand(
            waiting=waiting,
            pending_count=len(waiting),
            pending_resources=Shape(),
            prepared=list(self.prepared.values()),
            prepared_builder_count=self.builders,
        )

    def nodes(self) -> list[NodeRecord]:
        self._answer("nodes")
        return list(self.records.values())

    def join_token(self, request: JoinTokenRequest) -> JoinToken:
        self._answer("join_token")
        secret = self.grant(request)
        self._answered("join_token")
        return JoinToken(token=secret, instance=request.instance, expires_at=self.grants[secret].expires_at)

    def drain(self, node_id: str, draining: bool = True) -> NodeRecord:
        self._answer("drain")
        record = self._record(node_id)
        if draining and self.late == node_id and node_id not in self.closed:
            self.late = None
            self.placed[f"late-{next(self._numbers)}"] = (node_id, SMALL)
            self._count()
            record = self._record(node_id)
        self.records[node_id] = record.model_copy(update={"state": NodeState.DRAINING if draining else NodeState.READY})
        if draining:
            self.closed.setdefault(node_id, record.heartbeat_at)
        else:
            self.closed.pop(node_id, None)
        self._answered("drain")
        return self.records[node_id]

    def remove_node(self, node_id: str, *, machine_gone: bool = False) -> NodeRecord:
        self._answer("remove_node")
        record = self._record(node_id)
        given_up = {NodeState.LOST, NodeState.UNREACHABLE} if machine_gone else {NodeState.LOST}
        if record.sandboxes and record.state not in given_up:
            raise _refusal(ErrorCode.CONFLICT, f"node {node_id} holds sandboxes")
        for sandbox in [s for s, (node, _) in self.placed.items() if node == node_id]:
            del self.placed[sandbox]
        removed = self.records.pop(node_id)
        self.closed.pop(node_id, None)
        self.agents = {machine: node for machine, node in self.agents.items() if node != node_id}
        self._answered("remove_node")
        return removed

    def bundle(self) -> BundleManifest:
        self._answer("bundle")
        return BundleManifest(version="1", sha256=self.bundle_sha256, files=[])

    def put_ceilings(self, ceilings: Ceilings) -> None:
        self._answer("put_ceilings")
        self.ceilings = ceilings

    # -- what the world does ------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Register nodes, send heartbeats and place sandboxes by the cloud's present time."""
        for machine in [machine for cloud in self.clouds for machine in cloud.machines.values()]:
            ran = self.cloud.now - machine.runs_at if machine.runs_at is not None else NEVER
            if machine.lost or machine.gone_at is not None or machine.instance.name in self.silent:
                continue
            node = self.agents.get(machine.instance.id)
            if node is not None and ran >= timedelta():
                self._beat(self.records[node])
            elif node is None and ran.total_seconds() >= REGISTER_SECONDS:
                self._try_to_register(machine)
        self._age()
        self._place()
        self._count()

    def arrive(self, names: list[str], shape: Shape) -> None:
        """Create sandboxes; each claims a prepared unit of its shape."""
        for name in names:
            self.waiting[name] = shape
            unit = next((each for each in self.prepared.values() if each.resources == shape), None)
            if unit is not None:
                self._prepare(unit.prepare_id, unit.model_copy(update={"count": unit.count - 1}))

    def prepare(self, prepare_id: str, count: int, shape: Shape, seconds: float) -> None:
        """Ask for a burst ahead."""
        now = self.cloud.now
        self.prepared[prepare_id] = PreparedCapacity(
            prepare_id=prepare_id, resources=shape, count=count, total_resources=Shape(),
            created_at=now, updated_at=now, expires_at=now + timedelta(seconds=seconds),
        )  # fmt: skip

    def finish(self, sandbox: str) -> None:
        """Delete a sandbox."""
        self.waiting.pop(sandbox, None)
        self.placed.pop(sandbox, None)
        self._count()

    def grant(self, request: JoinTokenRequest, *, number: int | None = None) -> str:
        """Return a new join token; ``number`` sets its place among the others."""
        made = next(self._numbers)
        secret = f"join-{made}"
        expires = self.cloud.now + timedelta(seconds=request.ttl_seconds)
        self.grants[secret] = Grant(made if number is None else number, request, expires)
        return secret

    def work_on(self, node_id: str) -> list[str]:
        """Return the sandboxes of a node."""
        return [sandbox for sandbox, (node, _) in self.placed.items() if node == node_id]

    def record_of(self, machine: Machine) -> NodeRecord | None:
        """Return the node that a machine is, if it is one."""
        return self.records.get(self.agents.get(machine.instance.id, ""))

    def _prepare(self, prepare_id: str, unit: PreparedCapacity) -> None:
        if unit.count:
            self.prepared[prepare_id] = unit
        else:
            del self.prepared[prepare_id]

    def _try_to_register(self, machine: Machine) -> None:
        name = machine.instance.name
        of_name = [secret for secret, grant in self.grants.items() if grant.request.instance == name]
        # A machine of a cloud that keeps user data is known to have the last token of its name.
        grant = self.grants.get(machine.user_data.partition(" ")[2] or next(reversed(of_name), ""))
        if grant is None or grant.request.instance != name or grant.used or grant.expires_at <= self.cloud.now:
            return
        others = [g for g in self.grants.values() if g.request.instance == name and g.number > grant.number]
        if any(g.request.operation_id != grant.request.operation_id for g in others):
            return
        if self.on_register is not None:
            self.on_register(machine, grant)
        self.register(machine, grant)

    def register(self, machine: Machine, grant: Grant) -> None:
        """Make the machine a node, or let it take over the node of its name."""
        grant.used = True
        known = next((r for r in self.records.values() if r.instance == machine.instance.name), None)
        node_id = known.id if known is not None else f"node-{next(self._numbers)}"
        has_gpu = machine.instance.type == "gpu"
        self.records[node_id] = NodeRecord(
            id=node_id,
            instance=machine.instance.name,
            pool=grant.request.pool,
            role=grant.request.role,
            state=NodeState.DRAINING if node_id in self.closed else NodeState.READY,
            node_url="http://node",
            agent_version="1",
            total=NODE.model_copy(update={"gpus": 1}) if has_gpu else NODE,
            reserved=Shape(),
            runtimes=RUNTIMES,
            sandboxes=0,
            registered_at=self.cloud.now,
            heartbeat_at=self.cloud.now,
            idle_since=self.cloud.now,
            operation_id=grant.request.operation_id,
        )
        self.agents = {i: node for i, node in self.agents.items() if node != node_id} | {machine.instance.id: node_id}

    def _beat(self, record: NodeRecord) -> None:
        if record.heartbeat_at and (self.cloud.now - record.heartbeat_at).total_seconds() < self.heartbeat_seconds:
            return
        back = record.state in (NodeState.UNREACHABLE, NodeState.LOST)
        opened = NodeState.DRAINING if record.id in self.closed else NodeState.READY
        state = opened if back else record.state
        self.records[record.id] = record.model_copy(update={"heartbeat_at": self.cloud.now, "state": state})

    def _age(self) -> None:
        for record in list(self.records.values()):
            silent = (self.cloud.now - (record.heartbeat_at or record.registered_at)).total_seconds()
            if silent > LOST_SECONDS:
                self.records[record.id] = record.model_copy(update={"state": NodeState.LOST})
            elif silent > UNREACHABLE_SECONDS:
                self.records[record.id] = record.model_copy(update={"state": NodeState.UNREACHABLE})
        self.prepared = {i: unit for i, unit in self.prepared.items() if unit.expires_at > self.cloud.now}

    def _place(self) -> None:
        free = {
            record.id: record.total.minus(self._reserved(record.id))
            for record in self.records.values()
            if record.state is NodeState.READY and record.role != "builder"
        }
        for sandbox, shape in list(self.waiting.items()):
            node_id = next((node for node, room in free.items() if shape.fits(room)), None)
            if node_id is not None:
                self.placed[sandbox] = (node_id, shape)
                free[node_id] = free[node_id].minus(shape)
                del self.waiting[sandbox]

    def _reserved(self, node_id: str) -> Shape:
        return sum((shape for node, shape in self.placed.values() if node == node_id), Shape())

    def _count(self) -> None:
        for record in list(self.records.values()):
            number = len(self.work_on(record.id))
            idle = None if number else record.idle_since or self.cloud.now
            changes = {"sandboxes": number, "reserved": self._reserved(record.id), "idle_since": idle}
            self.records[record.id] = record.model_copy(update=changes)

    def _record(self, node_id: str) -> NodeRecord:
        try:
            return self.records[node_id]
        except KeyError:
            raise _refusal(ErrorCode.NODE_NOT_FOUND, f"no node {node_id}") from None

    def _answer(self, method: str) -> None:
        if self.cloud.on_call is not None:
            self.cloud.on_call(f"gateway.{method}")
        if self.unreachable:
            raise GatewayUnreachableError("no answer")

    def _answered(self, method: str) -> None:
        if self.cloud.on_answer is not None:
            self.cloud.on_answer(f"gateway.{method}")


def _refusal(code: ErrorCode, message: str) -> GatewayError:
    body = ErrorBody(error=message, code=code)
    return GatewayError(message, status=409, body=body, retryable=False, retry_after=None)
