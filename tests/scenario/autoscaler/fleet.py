"""A whole fleet in virtual time: a fake cloud, a gateway in memory, and an autoscaler that can die at any point."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from autoscaler.clock import Clock, ClockGuard
from autoscaler.core.model import FleetPolicy, PoolPolicy
from autoscaler.creating import Chances
from autoscaler.execute import Executor, Preparation
from autoscaler.observe import Observer
from autoscaler.reconcile import Reconciler, Report
from autoscaler.store.journal import Journal
from gateway.client import GatewayError, GatewayUnreachableError
from gateway.wire.capacity import Ceilings, Demand, WaitingSandbox
from gateway.wire.errors import ErrorBody, ErrorCode
from gateway.wire.nodes import JoinToken, JoinTokenRequest, NodeRecord, RuntimeReport
from gateway.wire.resources import Shape
from gateway.wire.states import NodeState
from providers.testing.fake import EPOCH, FakeCloud, FakeProvider, SimulatedCrash

DEPLOYMENT = "test"
NODE = Shape(cpus=4, memory_mb=7680, disk_mb=79872, slots=250)
SMALL = Shape(cpus=1, memory_mb=1024, disk_mb=1024, slots=1)
REGISTER_SECONDS = 5.0
HEARTBEAT_SECONDS = 5.0
RUNTIMES = [RuntimeReport(name="runsc", version="1", isolations=["gvisor"])]


class VirtualClock(Clock):
    """Follows the cloud's time; ``skew`` is what the wall clock is off."""

    def __init__(self, cloud: FakeCloud) -> None:
        self._cloud = cloud
        self.skew = 0.0

    def now(self) -> float:
        return self._cloud.now.timestamp() + self.skew

    def monotonic(self) -> float:
        return (self._cloud.now - EPOCH).total_seconds() + 1000.0


@dataclass
class FakeGateway:
    """Enough of a gateway: nodes that register and beat, sandboxes that wait and are placed."""

    cloud: FakeCloud
    """Whose time it follows."""
    clouds: list[FakeCloud]
    """Whose machines it hears of."""
    records: dict[str, NodeRecord] = field(default_factory=dict)
    placed: dict[str, tuple[str, Shape]] = field(default_factory=dict)
    waiting: dict[str, Shape] = field(default_factory=dict)
    ceilings: Ceilings | None = None
    unreachable: bool = False
    builders: int = 0
    late: str | None = None
    """A node that gets work at the last moment before it is closed."""
    silent: set[str] = field(default_factory=set)
    """Instances whose node agent says nothing."""
    closed: dict[str, datetime | None] = field(default_factory=dict)
    """Nodes that are closed, with their last heartbeat at that moment."""
    tokens: dict[str, set[str]] = field(default_factory=dict)
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    # -- what the autoscaler calls ------------------------------------------------------------------------------------

    def demand(self) -> Demand:
        self._answer("demand")
        waiting = [WaitingSandbox(sandbox_id=i, shape=s, since=self.cloud.now) for i, s in self.waiting.items()]
        return Demand(
            waiting=waiting,
            pending_count=len(waiting),
            pending_resources=Shape(),
            prepared_builder_count=self.builders,
        )

    def nodes(self) -> list[NodeRecord]:
        self._answer("nodes")
        return list(self.records.values())

    def join_token(self, request: JoinTokenRequest) -> JoinToken:
        self._answer("join_token")
        token = f"join-{next(self._numbers)}"
        self.tokens.setdefault(request.instance, set()).add(token)
        self._answered("join_token")
        expires = self.cloud.now + timedelta(seconds=request.ttl_seconds)
        return JoinToken(token=token, instance=request.instance, expires_at=expires)

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

    def remove_node(self, node_id: str) -> NodeRecord:
        self._answer("remove_node")
        record = self._record(node_id)
        if record.sandboxes and record.state is not NodeState.LOST:
            raise _refusal(ErrorCode.CONFLICT, f"node {node_id} holds sandboxes")
        for sandbox in [s for s, (node, _) in self.placed.items() if node == node_id]:
            del self.placed[sandbox]
        removed = self.records.pop(node_id)
        self._answered("remove_node")
        return removed

    def put_ceilings(self, ceilings: Ceilings) -> None:
        self._answer("put_ceilings")
        self.ceilings = ceilings

    # -- what the world does ------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Registers, beats and places by the cloud's present time."""
        for machine in [machine for cloud in self.clouds for machine in cloud.machines.values()]:
            name = machine.instance.name
            ran = self.cloud.now - machine.runs_at if machine.runs_at is not None else timedelta(seconds=-1)
            known = next((r for r in self.records.values() if r.instance == name), None)
            if machine.lost or machine.gone_at is not None or name in self.silent:
                continue
            if known is None and ran.total_seconds() >= REGISTER_SECONDS and self.tokens.get(name):
                self._register(name, machine.instance.labels.get("sandbox-fleet/pool", ""))
            elif known is not None and ran.total_seconds() >= 0:
                self._beat(known)
        self._age()
        self._place()
        self._count()

    def finish(self, sandbox: str) -> None:
        """A sandbox is deleted."""
        self.waiting.pop(sandbox, None)
        self.placed.pop(sandbox, None)
        self._count()

    def _register(self, name: str, pool: str) -> None:
        node_id = f"node-{next(self._numbers)}"
        self.records[node_id] = NodeRecord(
            id=node_id,
            instance=name,
            pool=pool,
            state=NodeState.READY,
            node_url="http://node",
            agent_version="1",
            total=NODE,
            reserved=Shape(),
            runtimes=RUNTIMES,
            sandboxes=0,
            registered_at=self.cloud.now,
            heartbeat_at=self.cloud.now,
            idle_since=self.cloud.now,
        )

    def _beat(self, record: NodeRecord) -> None:
        if record.heartbeat_at and (self.cloud.now - record.heartbeat_at).total_seconds() < HEARTBEAT_SECONDS:
            return
        back = record.state in (NodeState.UNREACHABLE, NodeState.LOST)
        opened = NodeState.DRAINING if record.id in self.closed else NodeState.READY
        state = opened if back else record.state
        self.records[record.id] = record.model_copy(update={"heartbeat_at": self.cloud.now, "state": state})

    def _age(self) -> None:
        for record in list(self.records.values()):
            silent = (self.cloud.now - (record.heartbeat_at or record.registered_at)).total_seconds()
            if silent > 300:
                self.records[record.id] = record.model_copy(update={"state": NodeState.LOST})
            elif silent > 20:
                self.records[record.id] = record.model_copy(update={"state": NodeState.UNREACHABLE})

    def _place(self) -> None:
        for sandbox, shape in list(self.waiting.items()):
            for record in self.records.values():
                if record.state is NodeState.READY and shape.fits(record.total.minus(self._reserved(record.id))):
                    self.placed[sandbox] = (record.id, shape)
                    del self.waiting[sandbox]
                    break

    def _reserved(self, node_id: str) -> Shape:
        return sum((shape for node, shape in self.placed.values() if node == node_id), Shape())

    def _count(self) -> None:
        for record in list(self.records.values()):
            number = sum(1 for node, _ in self.placed.values() if node == record.id)
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


class Watched:
    """Calls ``on_commit`` before and after every commit of the journal that it is mixed into."""

    on_commit: Callable[[str], None] | None = None

    def __getattribute__(self, name: str) -> object:
        value = super().__getattribute__(name)
        hook = super().__getattribute__("on_commit")
        if hook is None or name not in {"add", "move", "amend", "settle", "hold_back", "release"}:
            return value

        def around(*args: object, **kwargs: object) -> object:
            hook(f"before {name}")
            answer = value(*args, **kwargs)  # type: ignore[operator]
            hook(f"after {name}")
            return answer

        return around


class CrashingJournal(Watched, Journal):
    """The journal in a database, watched."""


def pool(**changes: object) -> PoolPolicy:
    values: dict[str, object] = {
        "name": "cpu",
        "provider": "fake",
        "role": "sandbox",
        "min": 0,
        "max": 4,
        "idle_seconds": 60.0,
        "boot_seconds": 300.0,
        "cpu_overcommit": 1.0,
    }
    return PoolPolicy(**(values | changes))  # type: ignore[arg-type]


class Fleet:
    """An autoscaler over fakes; `restart` is what a new process would do."""

    def __init__(self, directory: Path, *pools: PoolPolicy, **policy: object) -> None:
        self.policy = FleetPolicy(deployment=DEPLOYMENT, pools=pools or (pool(),), **policy)  # type: ignore[arg-type]
        self.clouds = {name: FakeCloud() for name in dict.fromkeys(each.provider for each in self.policy.pools)}
        self.cloud = next(iter(self.clouds.values()))
        self.gateway = FakeGateway(self.cloud, [*self.clouds.values()])
        self.clock = VirtualClock(self.cloud)
        self.providers = {name: self.make_provider(name, cloud) for name, cloud in self.clouds.items()}
        self.provider = next(iter(self.providers.values()))
        self.url = f"sqlite:///{directory / 'journal.db'}"
        self.on_step: Callable[[str], None] | None = None
        self.reports: list[Report] = []
        self._sandboxes = itertools.count(1)
        self._ids = itertools.count(1)
        self.journal = self.restart()

    def restart(self) -> Journal:
        """Drops everything that was in memory."""
        self.journal: Journal = self.open_journal()
        self.watch(self.on_step)
        providers = self.providers
        preparations = {
            each.name: Preparation("image", lambda name, token: f"{name} {token}") for each in self.policy.pools
        }
        self.reconciler = Reconciler(
            observer=Observer(
                providers,
                self.gateway,
                self.journal,
                self.clock,
                ClockGuard(self.clock, 600.0, lambda _jump: None),
                policy=self.policy,
            ),
            journal=self.journal,
            gateway=self.gateway,
            policy=self.policy,
            clock=self.clock,
            executor=Executor(
                self.journal,
                providers,
                self.gateway,
                self.policy,
                preparations,
                self.clock,
                Chances(self._new_id, lambda: 1.0),
            ),
        )
        return self.journal

    def open_journal(self) -> Journal:
        """What a new process finds."""
        if hasattr(self, "journal"):
            self.journal.close()
        return CrashingJournal.open(self.url)

    def make_provider(self, name: str, cloud: FakeCloud) -> FakeProvider:
        """The provider that the autoscaler gets for one cloud."""
        return FakeProvider(cloud, DEPLOYMENT)

    def watch(self, on_step: Callable[[str], None] | None) -> None:
        """Tells every commit and every call, before and after it; what it raises comes from there."""
        self.on_step = on_step
        self.journal.on_commit = on_step  # type: ignore[attr-defined]
        for cloud in self.clouds.values():
            cloud.on_call = on_step and (lambda method: on_step(f"call {method}"))
            cloud.on_answer = on_step and (lambda method: on_step(f"answer {method}"))

    def tick(self, seconds: float = 2.0) -> Report:
        """Time passes, then one tick."""
        for cloud in self.clouds.values():
            cloud.advance(seconds)
        self.gateway.step()
        report = self.reconciler.tick()
        self.reports = [*self.reports[-9:], report]
        self.check()
        return report

    def crashing_tick(self, seconds: float = 2.0) -> bool:
        """As `tick`; a crash in it is followed by a restart.  Whether there was one."""
        try:
            self.tick(seconds)
        except SimulatedCrash:
            self.check()
            self.restart()
            return True
        return False

    def until(self, condition: Callable[[], bool], ticks: int = 400) -> None:
        """Ticks until ``condition`` holds."""
        for _ in range(ticks):
            if condition():
                return
            self.tick()
        last = self.reports[-1] if self.reports else None
        raise AssertionError(f"not within {ticks} ticks; last: {last}")

    def ask(self, count: int = 1, shape: Shape = SMALL) -> list[str]:
        """Sandboxes that want room."""
        names = [f"s{next(self._sandboxes)}" for _ in range(count)]
        self.gateway.waiting |= dict.fromkeys(names, shape)
        return names

    def check(self) -> None:
        """What must hold at every moment."""
        machines_of = [entry for cloud in self.clouds.values() for entry in cloud.by_operation().items()]
        for operation, machines in machines_of:
            assert len(machines) == 1, f"operation {operation} has {machines}"
        for each in self.policy.pools:
            rows = [intent for intent in self.journal.open_intents() if intent.pool == each.name]
            assert len(rows) <= each.max, f"{each.name} has {len(rows)} rows"
            live = {intent.name for intent in rows}
            drained = {i.name for i in rows if i.state == "deleting" and "drained and empty" in i.detail}
            for node, _ in self.gateway.placed.values():
                assert self.gateway.records[node].instance not in drained, f"{node} was stopped with work on it"
            for machine in [machine for cloud in self.clouds.values() for machine in cloud.machines.values()]:
                labels = machine.instance.labels
                if labels.get("sandbox-fleet/pool") == each.name and machine.gone_at is None:
                    assert machine.instance.name in live, f"{machine.instance.name} has no row"

    def states(self) -> list[str]:
        """States of all rows that are not gone."""
        return [intent.state.value for intent in self.journal.open_intents()]

    def _new_id(self) -> str:
        return f"op{next(self._ids):010d}"


def at(seconds: float) -> datetime:
    """A moment of the fake world."""
    return datetime.fromtimestamp(seconds, UTC)
